//! The publisher in the host's memory.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use fastpath_publish::host::evidence::Trust;
use fastpath_publish::host::image::Image;
use fastpath_publish::host::{
    Advice, BadRelation, Bracket, Busy, ClockSet, NotPublished, Publisher, PublisherConfig, Reason, Refreshed,
    Relation, Sample, Source, ThisHost, Trap,
};

use crate::error::{Error, answer};
use crate::page::page_at;
use crate::plain::{Sized32, give, size_of_32, take};
use crate::verdict::TRUST_COUNTER;

/// `FASTPATH_PUBLISHER_SIZE`
pub const PUBLISHER_SIZE: usize = 24576;
/// `FASTPATH_PUBLISHER_ALIGN`
pub const PUBLISHER_ALIGN: usize = 64;
/// `FASTPATH_ON_DEMAND`
pub const ON_DEMAND: u32 = 1;

/// `fastpath_read_counter_fn`
pub type ReadCounter = unsafe extern "C" fn(*mut c_void) -> u64;
/// `fastpath_read_clock_fn`
pub type ReadClock = unsafe extern "C" fn(*mut c_void, i32, *mut u64) -> c_int;

/// `struct fastpath_publisher_options`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PublisherOptions {
    /// Size of this struct.
    pub size: u32,
    /// `FASTPATH_ON_DEMAND`, `FASTPATH_TRUST_COUNTER`
    pub flags: u32,
    /// A bit for each clock; 0: all.
    pub clocks: u32,
    /// Bits of fraction of `multiplier`.
    pub fraction_bits: u32,
    /// Multiplier; 0 means 1.
    pub multiplier: u64,
    /// Offset of the guest's counter.
    pub offset: u64,
    /// NULL: the CPU's counter.
    pub read_counter: Option<ReadCounter>,
    /// NULL: clock_gettime(2).
    pub read_clock: Option<ReadClock>,
    /// Argument of both functions.
    pub context: *mut c_void,
}

/// `struct fastpath_bracket`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CBracket {
    /// Counter before the clock, in host counts.
    pub before_cycles: u64,
    /// Nanoseconds since the clock's epoch.
    pub time_ns: u64,
    /// Counter after the clock, in host counts.
    pub after_cycles: u64,
}

/// `struct fastpath_sample`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CSample {
    /// Size of this struct.
    pub size: u32,
    /// A bit for each clock that is filled in.
    pub clocks: u32,
    /// CLOCK_MONOTONIC.
    pub monotonic: CBracket,
    /// CLOCK_REALTIME.
    pub realtime: CBracket,
    /// CLOCK_MONOTONIC_RAW.
    pub monotonic_raw: CBracket,
    /// CLOCK_BOOTTIME.
    pub boottime: CBracket,
    /// CLOCK_TAI.
    pub tai: CBracket,
}

/// `struct fastpath_trap`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CTrap {
    /// Size of this struct.
    pub size: u32,
    /// Clock that the guest asked for.
    pub clock_id: i32,
    /// Image of the guest's instance.
    pub image: Option<&'static Image>,
    /// Address of the image in the guest.
    pub image_address: u64,
    /// The guest's program counter, behind the system-call instruction.
    pub pc: u64,
    /// The host's answer, in nanoseconds; 0: unknown.
    pub answered_ns: u64,
}

/// `struct fastpath_state`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CState {
    /// Size of this struct.
    pub size: u32,
    /// A bit for each clock that the page answers.
    pub clocks: u32,
    /// Reason of the withdrawal; 0: not withdrawn.
    pub withdrawn_reason: u32,
    /// 1: the page has, or had, an anchor.
    pub seeded: u32,
    /// Anchors published.
    pub refreshes: u64,
    /// Error before the last refresh, in nanoseconds.
    pub residual_ns: i64,
    /// Age of the newest anchor, in nanoseconds.
    pub age_ns: i64,
    /// Max age of that anchor, in nanoseconds.
    pub cap_ns: u64,
    /// The page's MONOTONIC less the host's, in nanoseconds.
    pub drift_ns: i64,
    /// Time between samples, in nanoseconds.
    pub next_window_ns: u64,
    /// Nanoseconds per guest count.
    pub ns_per_cycle: f64,
}

// SAFETY: `#[repr(C)]`, with its size first, and made of integers and pointers.
unsafe impl Sized32 for PublisherOptions {}
// SAFETY: `#[repr(C)]`, with its size first, and made of integers.
unsafe impl Sized32 for CSample {}
// SAFETY: `#[repr(C)]`, with its size first, and made of integers and pointers; an image that is NULL is None.
unsafe impl Sized32 for CTrap {}
// SAFETY: `#[repr(C)]`, with its size first, and made of integers and a float.
unsafe impl Sized32 for CState {}

/// The host's functions, or the built-in ones.
struct Callbacks {
    read_counter: Option<ReadCounter>,
    read_clock: Option<ReadClock>,
    context: *mut c_void,
}

// SAFETY: the header requires functions that may be called in any thread.
unsafe impl Sync for Callbacks {}

impl Source for Callbacks {
    fn counter(&self) -> u64 {
        match self.read_counter {
            // SAFETY: the host gave both, and guarantees that the function may be called with it in any thread.
            Some(read) => unsafe { read(self.context) },
            None => ThisHost.counter(),
        }
    }

    fn clock(&self, id: i32) -> Option<u64> {
        match self.read_clock {
            Some(read) => {
                let mut time_ns = 0;
                // SAFETY: the host gave both, and guarantees that the function may be called with it in any thread; it
                // stores one u64, for which `time_ns` is valid.
                (unsafe { read(self.context, id, &mut time_ns) } == 0).then_some(time_ns)
            }
            None => ThisHost.clock(id),
        }
    }
}

/// The contents of a `fastpath_publisher`.
#[repr(C)]
pub struct Object {
    /// [`MAGIC`] once the rest is initialized.
    magic: AtomicU64,
    publisher: MaybeUninit<Publisher<'static, Callbacks>>,
}

/// "publishr"
const MAGIC: u64 = u64::from_le_bytes(*b"publishr");

const _: () = {
    assert!(size_of::<Object>() <= PUBLISHER_SIZE);
    assert!(align_of::<Object>() <= PUBLISHER_ALIGN);
    assert!(!std::mem::needs_drop::<Publisher<'static, Callbacks>>());
};

/// Makes a publisher.
///
/// # Safety
/// `publisher` is NULL or `FASTPATH_PUBLISHER_SIZE` writable bytes that no other code uses yet; `page` is NULL or a
/// page, writable for as long as the publisher is used; `options` is NULL or a struct that begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_publisher_init(
    publisher: *mut Object,
    page: *mut c_void,
    options: *const PublisherOptions,
) -> c_int {
    // SAFETY: the caller guarantees what `fastpath_publisher_init` requires.
    answer(unsafe { publisher_init(publisher, page.cast(), options) })
}

unsafe fn publisher_init(
    publisher: *mut Object,
    page: *mut u8,
    options: *const PublisherOptions,
) -> Result<c_int, Error> {
    let (source, options) = if options.is_null() {
        let source = Callbacks {
            read_counter: None,
            read_clock: None,
            context: std::ptr::null_mut(),
        };
        (source, PublisherConfig::default())
    } else {
        // SAFETY: the caller guarantees that the options begin with their size.
        unsafe { publisher_options(options)? }
    };
    if !can_hold(publisher) {
        return Err(Error::INVALID);
    }
    // SAFETY: the caller guarantees that the page is mapped for as long as the publisher is used.
    let page = unsafe { page_at(page)? };
    // SAFETY: the caller guarantees that no other code uses this memory yet. The assertions above prove that it is
    // large enough.
    unsafe {
        (*publisher).magic.store(0, Ordering::Relaxed);
        (*publisher).publisher.write(Publisher::new(page, source, options));
        (*publisher).magic.store(MAGIC, Ordering::Release);
    }
    Ok(0)
}

unsafe fn publisher_options(options: *const PublisherOptions) -> Result<(Callbacks, PublisherConfig), Error> {
    // SAFETY: the caller guarantees that the options begin with their size.
    let options = unsafe { take(options)? };
    let clocks = match options.clocks {
        0 => ClockSet::ALL,
        clocks => ClockSet(clocks),
    };
    if options.flags & !(ON_DEMAND | TRUST_COUNTER) != 0 || !ClockSet::ALL.contains(clocks) {
        return Err(Error::INVALID);
    }
    let multiplier = match (options.multiplier, options.fraction_bits) {
        (0, 0) => 1,
        (multiplier, _) => multiplier,
    };
    let relation = Relation::new(multiplier, options.fraction_bits, options.offset)
        .map_err(|BadRelation { .. }| Error::COUNTER)?;
    let source = Callbacks {
        read_counter: options.read_counter,
        read_clock: options.read_clock,
        context: options.context,
    };
    Ok((
        source,
        PublisherConfig {
            clocks,
            on_demand: options.flags & ON_DEMAND != 0,
            relation,
            trust: if options.flags & TRUST_COUNTER != 0 {
                Trust::AllowNonInvariant
            } else {
                Trust::Invariant
            },
        },
    ))
}

/// Returns whether a host's memory is aligned as a `fastpath_publisher`.
fn can_hold(object: *const Object) -> bool {
    !object.is_null() && object.addr().is_multiple_of(PUBLISHER_ALIGN)
}

/// Returns the publisher in a host's memory, if there is one.
unsafe fn publisher_in<'a>(object: *const Object) -> Result<&'a Publisher<'static, Callbacks>, Error> {
    if !can_hold(object) {
        return Err(Error::INVALID);
    }
    // SAFETY: the caller guarantees a `fastpath_publisher`, initialized or zeroed; if the magic is there, so is the
    // publisher.
    unsafe {
        if (*object).magic.load(Ordering::Acquire) != MAGIC {
            return Err(Error::INVALID);
        }
        Ok((*object).publisher.assume_init_ref())
    }
}

fn refreshed(result: Result<Refreshed, NotPublished>) -> Result<c_int, Error> {
    match result {
        Ok(Refreshed::Waiting) => Ok(0),
        Ok(Refreshed::Published) => Ok(1),
        Ok(Refreshed::Withdrawn(_)) => Ok(2),
        Ok(Refreshed::Missed) => Ok(3),
        Ok(Refreshed::NoSample) | Err(NotPublished::NoSample | NotPublished::Impossible) => Err(Error::SAMPLE),
        Err(NotPublished::Busy(Busy)) => Err(Error::BUSY),
    }
}

/// Converts a sample of the host.
unsafe fn sample_at(sample: *const CSample) -> Result<Sample, Error> {
    // SAFETY: the caller guarantees that the sample begins with its size.
    let sample = unsafe { take(sample)? };
    let clocks = ClockSet(sample.clocks);
    if !ClockSet::ALL.contains(clocks) {
        return Err(Error::INVALID);
    }
    let bracket = |bracket: CBracket, clock: ClockSet| {
        clocks.contains(clock).then_some(Bracket {
            before: bracket.before_cycles,
            time_ns: bracket.time_ns,
            after: bracket.after_cycles,
        })
    };
    Ok(Sample {
        mono: bracket(sample.monotonic, ClockSet::MONOTONIC).ok_or(Error::SAMPLE)?,
        real: bracket(sample.realtime, ClockSet::REALTIME).ok_or(Error::SAMPLE)?,
        raw: bracket(sample.monotonic_raw, ClockSet::MONOTONIC_RAW),
        boot: bracket(sample.boottime, ClockSet::BOOTTIME),
        tai: bracket(sample.tai, ClockSet::TAI),
        ntp: None,
    })
}

/// Takes a sample, or the host's, and carries out its result.
///
/// # Safety
/// `publisher` is NULL, zeroed or made by [`fastpath_publisher_init`]; `sample` is NULL or a struct that begins with
/// its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_publish(publisher: *const Object, sample: *const CSample) -> c_int {
    // SAFETY: the caller guarantees the publisher.
    answer(unsafe { publisher_in(publisher) }.and_then(|publisher| {
        if sample.is_null() {
            return refreshed(publisher.publish());
        }
        // SAFETY: the caller guarantees the sample.
        let sample = unsafe { sample_at(sample)? };
        refreshed(publisher.publish_sample(&sample))
    }))
}

/// Does the same after CLOCK_REALTIME was set.
///
/// # Safety
/// As for [`fastpath_publish`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_publish_step(publisher: *const Object, sample: *const CSample) -> c_int {
    // SAFETY: the caller guarantees the publisher.
    answer(unsafe { publisher_in(publisher) }.and_then(|publisher| {
        if sample.is_null() {
            return refreshed(publisher.publish_step());
        }
        // SAFETY: the caller guarantees the sample.
        let sample = unsafe { sample_at(sample)? };
        refreshed(publisher.publish_step_sample(&sample))
    }))
}

/// Takes all clocks off the page.
///
/// # Safety
/// As for [`fastpath_publish`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_withdraw(publisher: *const Object, reason: u32) -> c_int {
    let Some(reason @ Reason::Host(_)) = Reason::from_code(reason) else {
        return Error::INVALID.0;
    };
    // SAFETY: the caller guarantees the publisher.
    answer(
        unsafe { publisher_in(publisher) }.and_then(|publisher| match publisher.withdraw(reason) {
            Ok(()) => Ok(0),
            Err(Busy) => Err(Error::BUSY),
        }),
    )
}

/// Returns the description of a withdrawal's reason.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_reason_string(reason: u32) -> *const c_char {
    let text = Reason::from_code(reason).map_or(c"not withdrawn", Reason::description);
    text.as_ptr()
}

/// Returns what to do when the guest made a system call.
///
/// # Safety
/// As for [`fastpath_publish`]; `trap` is NULL or a struct that begins with its size, and its image is NULL or came
/// from `fastpath_image_of`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_trapped(publisher: *const Object, trap: *const CTrap) -> c_int {
    // SAFETY: the caller guarantees the publisher.
    answer(unsafe { publisher_in(publisher) }.and_then(|publisher| {
        // SAFETY: the caller guarantees the trap.
        let trap = unsafe { take(trap)? };
        let image = trap.image.ok_or(Error::INVALID)?;
        let advice = publisher.trapped(&Trap {
            system_calls: image.system_calls(),
            image_address: trap.image_address,
            pc: trap.pc,
            clock_id: trap.clock_id,
            answered_ns: (trap.answered_ns != 0).then_some(trap.answered_ns),
        });
        Ok(match advice {
            Advice::LeaveAlone => 0,
            Advice::Seed => 1,
            Advice::Refresh => 2,
        })
    }))
}

/// Stores the state of the page.
///
/// # Safety
/// As for [`fastpath_publish`]; `state` is NULL or a struct that begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_state_of(publisher: *const Object, state: *mut CState) -> c_int {
    // SAFETY: the caller guarantees the publisher.
    answer(unsafe { publisher_in(publisher) }.and_then(|publisher| {
        let found = publisher.state();
        let found = CState {
            size: size_of_32::<CState>(),
            clocks: found.clocks.0,
            withdrawn_reason: found.withdrawn_reason.map_or(0, Reason::code),
            seeded: u32::from(found.seeded),
            refreshes: found.refreshes,
            residual_ns: found.residual_ns,
            age_ns: found.age_ns,
            cap_ns: found.cap_ns,
            drift_ns: found.drift_ns,
            next_window_ns: found.next_window_ns,
            ns_per_cycle: found.ns_per_cycle,
        };
        // SAFETY: the caller guarantees the state.
        unsafe { give(state, found) }.map(|()| 0)
    }))
}
