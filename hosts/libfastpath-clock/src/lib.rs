//! CLOCK_MONOTONIC and bounds of UTC by the CPU's counter, for programs that would otherwise read the counter themselves.
//!
//! `docs/clock.md` is the guide. Times come from a page of `fastpathd`'s, which is withdrawn when the counter cannot be
//! believed; where there is none, from the kernel. The code is that of `fastpath-clock.h`.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fmt;
use std::io;
use std::ops::{Add, AddAssign, RangeInclusive, Sub, SubAssign};
use std::time::{Duration, SystemTime};

#[cfg(feature = "publish")]
use fastpath as _;

/// The reasons for which a page has no times, as the publisher defines them.
#[allow(dead_code)]
#[path = "../../../core/page/src/reason.rs"]
mod reason;

/// `struct fastpath_clock_evidence`
#[repr(C)]
struct ClockEvidence {
    source: c_int,
    is_used: c_int,
    reason: u32,
    comparisons: u32,
    within_cycles: u64,
    withdrawals: u64,
    is_not_invariant: c_int,
    error: c_int,
    tried: *const c_char,
    said: *const c_char,
}

/// `struct fastpath_clock_utc`
#[repr(C)]
#[derive(Default)]
struct Bounds {
    earliest_ns: u64,
    latest_ns: u64,
}

/// `struct fastpath_clock_check`
#[repr(C)]
struct ClockCheck {
    path: c_int,
    is_slow: c_int,
    read_ns: f64,
    syscall_ns: f64,
    counter_reads: f64,
    clocksource: [c_char; 32],
    reason: *const c_char,
    says: [c_char; 160],
}

unsafe extern "C" {
    safe fn fastpath_clock_open(flags: c_uint) -> c_int;
    safe fn fastpath_clock_read() -> u64;
    safe fn fastpath_clock_read_unordered() -> u64;
    safe fn fastpath_clock_now_bounded(utc: &mut Bounds) -> c_int;
    fn fastpath_clock_evidence(facts: *mut ClockEvidence);
    fn fastpath_clock_check(check: *mut ClockCheck) -> c_int;
}

/// `FASTPATH_CLOCK_MAY_PUBLISH`
const MAY_PUBLISH: c_uint = 1;

/// Where times come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The kernel's vDSO, or its system call.
    Kernel,
    /// A page of fastpathd's.
    Daemon,
    /// A page that a thread of this process publishes.
    Own,
}

impl Source {
    fn from_number(number: c_int) -> Source {
        match number {
            1 => Source::Daemon,
            2 => Source::Own,
            _ => Source::Kernel,
        }
    }
}

/// Finds a page: asks fastpathd for one (waits at most two seconds); else, if `may_publish` and with the feature `publish`,
/// publishes in a thread of this process. Call it before the program starts threads and installs seccomp filters. If the source is the kernel, it may be
/// called again later; otherwise the page stays for the life of the process.
pub fn open(may_publish: bool) -> Source {
    Source::from_number(fastpath_clock_open(if may_publish { MAY_PUBLISH } else { 0 }))
}

/// Returns CLOCK_MONOTONIC in nanoseconds, ordered after all earlier loads of this thread. It never goes back.
#[inline]
pub fn now() -> u64 {
    fastpath_clock_read()
}

/// Returns the same, but the CPU may read its counter before earlier loads of this thread have finished. Times of one
/// thread stay in order; one may be before a time that another thread has shown. `fastpath-clock.h` says more.
#[inline]
pub fn now_unordered() -> u64 {
    fastpath_clock_read_unordered()
}

/// Returns between which times UTC is, as far as the daemon that synchronizes the kernel's clock says; `None`: it is not
/// synchronized. `fastpath-clock.h` says what is in the bounds, and when this is a system call, adjtimex(2).
pub fn now_bounded() -> Option<RangeInclusive<SystemTime>> {
    let mut utc = Bounds::default();
    let at = |ns| SystemTime::UNIX_EPOCH + Duration::from_nanos(ns);
    (fastpath_clock_now_bounded(&mut utc) != 0).then(|| at(utc.earliest_ns)..=at(utc.latest_ns))
}

/// Why the counter is used for times, or is not.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// Where times come from.
    pub source: Source,
    /// Whether the page answers at this moment. If not, the kernel does.
    pub is_used: bool,
    /// Comparisons of all CPUs' counters by fastpathd since it started.
    pub comparisons: u32,
    /// Bound on the distance of any two CPUs' counters in the last comparison, in counts; 0: unknown.
    pub within_cycles: u64,
    /// How often times were taken off this page.
    pub withdrawals: u64,
    /// Whether the publisher was made to trust a counter without a guaranteed rate.
    pub is_not_invariant: bool,
    /// Why the kernel answers; `None`: the page answers, or is not seeded yet.
    pub why_not: Option<String>,
}

/// Returns why the counter is used, or is not. Do not call it while another thread calls [`open`].
pub fn evidence() -> Evidence {
    let mut facts = std::mem::MaybeUninit::uninit();
    // SAFETY: the function fills in the whole struct.
    let facts: ClockEvidence = unsafe {
        fastpath_clock_evidence(facts.as_mut_ptr());
        facts.assume_init()
    };
    let why_not = if facts.tried.is_null() {
        reason::Reason::from_code(facts.reason).map(|reason| text(reason.description()))
    } else {
        // SAFETY: with `tried`, both are texts of static life.
        let [mut why, said] = [facts.tried, facts.said].map(|part| text(unsafe { CStr::from_ptr(part) }));
        if facts.error != 0 {
            why += &format!(": {}", io::Error::from_raw_os_error(facts.error));
        }
        Some(if said.is_empty() { why } else { format!("{why}: {said}") })
    };
    Evidence {
        source: Source::from_number(facts.source),
        is_used: facts.is_used != 0,
        comparisons: facts.comparisons,
        within_cycles: facts.within_cycles,
        withdrawals: facts.withdrawals,
        is_not_invariant: facts.is_not_invariant != 0,
        why_not,
    }
}

fn text(from: &CStr) -> String {
    from.to_string_lossy().into_owned()
}

/// How the program's own reads of CLOCK_MONOTONIC, by clock_gettime(3) and so by [`std::time::Instant`], are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// By system calls: the process has no vDSO.
    None,
    /// By system calls.
    Syscall,
    /// By the kernel's vDSO, or a sandbox's.
    Vdso,
    /// By fastpath.
    Fastpath,
}

/// What a clock read costs in this process.
#[derive(Clone, Debug)]
pub struct Check {
    /// How reads are answered.
    pub path: Path,
    /// Whether reads are slow; `None`: unknown.
    pub is_slow: Option<bool>,
    /// Cost of a read, in nanoseconds; 0: unknown.
    pub read_ns: f64,
    /// Cost of the system call clock_gettime, in nanoseconds; 0: unknown.
    pub syscall_ns: f64,
    /// Cost of a read in ordered reads of the CPU's counter; 0: unknown.
    pub counter_reads: f64,
    /// The kernel's clocksource; empty if it cannot be read.
    pub clocksource: String,
    /// A stable word: `fast`, `no-vdso`, `clocksource`, `not-used`, `unknown`.
    pub reason: String,
    /// A sentence for a log.
    pub says: String,
}

/// Checks what a clock read costs in this process, for a warning when a program starts. `fastpath-clock.h` says how, how long
/// that takes, and which calls it makes.
pub fn check() -> Check {
    let mut found = std::mem::MaybeUninit::uninit();
    // SAFETY: the function fills in the whole struct.
    let found: ClockCheck = unsafe {
        fastpath_clock_check(found.as_mut_ptr());
        found.assume_init()
    };
    // SAFETY: all three are texts that end in a zero; the reason is of static life.
    let [clocksource, reason, says] =
        [found.clocksource.as_ptr(), found.reason, found.says.as_ptr()].map(|of| text(unsafe { CStr::from_ptr(of) }));
    Check {
        path: match found.path {
            1 => Path::Syscall,
            2 => Path::Vdso,
            3 => Path::Fastpath,
            _ => Path::None,
        },
        is_slow: (found.is_slow >= 0).then_some(found.is_slow > 0),
        read_ns: found.read_ns,
        syscall_ns: found.syscall_ns,
        counter_reads: found.counter_reads,
        clocksource,
        reason,
        says,
    }
}

/// A time of CLOCK_MONOTONIC. It has the functions of [`std::time::Instant`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// Returns the present time.
    #[inline]
    pub fn now() -> Instant {
        Instant(now())
    }

    /// Returns the nanoseconds of CLOCK_MONOTONIC.
    pub fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time since then.
    pub fn elapsed(&self) -> Duration {
        Instant::now() - *self
    }

    /// Returns the time since an earlier time, or 0 if that is later.
    pub fn duration_since(&self, earlier: Instant) -> Duration {
        self.checked_duration_since(earlier).unwrap_or_default()
    }

    /// Returns the time since an earlier time, or 0 if that is later.
    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.duration_since(earlier)
    }

    /// Returns the time since an earlier time; `None` if that is later.
    pub fn checked_duration_since(&self, earlier: Instant) -> Option<Duration> {
        self.0.checked_sub(earlier.0).map(Duration::from_nanos)
    }

    /// Returns a later time; `None` if it is too late for this type.
    pub fn checked_add(&self, duration: Duration) -> Option<Instant> {
        let nanos = duration.as_nanos().try_into().ok()?;
        self.0.checked_add(nanos).map(Instant)
    }

    /// Returns an earlier time; `None` if it is before the clock's beginning.
    pub fn checked_sub(&self, duration: Duration) -> Option<Instant> {
        let nanos = duration.as_nanos().try_into().ok()?;
        self.0.checked_sub(nanos).map(Instant)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Duration::from_nanos(self.0).fmt(f)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Panics if the time is too late for this type, as that of [`std::time::Instant`] does.
    fn add(self, duration: Duration) -> Instant {
        self.checked_add(duration).expect("a time in the range of the clock")
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    /// Panics if the time is before the clock's beginning, as that of [`std::time::Instant`] may.
    fn sub(self, duration: Duration) -> Instant {
        self.checked_sub(duration).expect("a time in the range of the clock")
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.duration_since(earlier)
    }
}

/// The programs on the page.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/clock.md")]
struct Guide;
