//! A model in Rust of the image's C reader, for tests and for `status`, and the check of a page when it is mapped.

use std::mem::{offset_of, size_of};
use std::ptr::NonNull;

use crate::anchor::NSEC_PER_SEC;
use crate::clock::{ClockSet, base_index};
use crate::layout::{
    ABI, AHEAD_UNKNOWN, AnchorCell, FLOOR_LIMIT_NS, HISTORY, Header, Latch, MAGIC, PAGE_SIZE, Page,
    WATCH_ALLOWS_NON_INVARIANT,
};
use crate::reason::Reason;
use crate::sync::{Ordering, fence};
use crate::writer::{Stats, Watch, Withdrawal};

const REALTIME: u32 = 0;
/// The clock id that has a latch of its own.
const MONOTONIC_RAW: u32 = 4;

/// Attempts before this model falls back to the kernel for a page that keeps changing. The image tries until it
/// succeeds; the model checker needs an end.
const ATTEMPTS: u32 = if cfg!(loom) { 2 } else { 32 };

/// Reason why a page is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// Fewer bytes than a page has.
    #[error("the page is truncated: {found} bytes instead of {PAGE_SIZE}")]
    Truncated {
        /// Bytes found.
        found: usize,
    },
    /// Not a page, or one whose writer has not finished its header.
    #[error("not a fastpath page: it begins with {found:#018x} instead of {MAGIC:#018x}")]
    Magic {
        /// The first eight bytes.
        found: u64,
    },
    /// A page of another layout version.
    #[error("the page has layout version {found}; this fastpath reads version {ABI}")]
    Abi {
        /// The page's version.
        found: u32,
    },
    /// A page whose size contradicts its version.
    #[error("the page says that it is {found} bytes long; version {ABI} is {expected}")]
    Size {
        /// The page's own size.
        found: u32,
        /// The size of this version.
        expected: u32,
    },
}

/// Checks the header of a page that is about to be mapped or read. `bytes` is the whole file.
pub fn check(bytes: &[u8]) -> Result<(), PageError> {
    if bytes.len() < PAGE_SIZE {
        return Err(PageError::Truncated { found: bytes.len() });
    }
    let u32_at = |offset: usize| {
        let mut value = [0; 4];
        value.copy_from_slice(&bytes[offset..offset + 4]);
        u32::from_ne_bytes(value)
    };
    let mut magic = [0; 8];
    magic.copy_from_slice(&bytes[..8]);
    check_header(
        u64::from_ne_bytes(magic),
        u32_at(offset_of!(Header, abi)),
        u32_at(offset_of!(Header, size)),
    )
}

impl Page {
    /// Does the [`check`] of a page that is already mapped.
    pub fn check(&self) -> Result<(), PageError> {
        let header = &self.header;
        // The magic was stored last.
        let magic = header.magic.load(Ordering::Acquire);
        check_header(
            magic,
            header.abi.load(Ordering::Relaxed),
            header.size.load(Ordering::Relaxed),
        )
    }
}

fn check_header(magic: u64, abi: u32, size: u32) -> Result<(), PageError> {
    if magic != MAGIC {
        return Err(PageError::Magic { found: magic });
    }
    if abi != ABI {
        return Err(PageError::Abi { found: abi });
    }
    if size as usize != size_of::<Page>() {
        return Err(PageError::Size {
            found: size,
            expected: size_of::<Page>() as u32,
        });
    }
    Ok(())
}

/// Reads clocks from a page as the image does.
pub struct Reader<'p> {
    page: &'p Page,
}

/// Result of one attempt.
enum Attempt<T> {
    /// An anchor answers.
    Answer(T),
    /// None does, and readers were shown this time at most.
    Floor(T),
    Nothing,
    Again,
}

impl<'p> Reader<'p> {
    /// Returns a reader of a page in ordinary memory.
    pub fn new(page: &'p Page) -> Reader<'p> {
        Reader { page }
    }

    /// Returns a reader of a mapped page.
    ///
    /// # Safety
    /// `page` is aligned to 64 bytes and [`PAGE_SIZE`] bytes from it stay mapped and readable for `'p`.
    pub unsafe fn from_ptr(page: NonNull<u8>) -> Reader<'p> {
        // SAFETY: the caller guarantees that the memory is mapped for 'p and aligned; a page is valid in any bit
        // pattern.
        Reader::new(unsafe { page.cast::<Page>().as_ref() })
    }

    /// Returns the age of the newest anchor at a value of the counter, in nanoseconds: 0 for one that is about to take
    /// effect, `None` without one. For statistics: a read in the middle of a refresh may use the anchor before.
    pub fn age_ns(&self, counter: u64) -> Option<u64> {
        let anchor = &self.page.hres.copy[0];
        let (mult, shift) = (
            anchor.mult.load(Ordering::Relaxed),
            anchor.shift.load(Ordering::Relaxed),
        );
        let cycles = counter.saturating_sub(anchor.base_cycles.load(Ordering::Relaxed));
        let ns = (u128::from(cycles) * u128::from(mult)).checked_shr(shift)?;
        let is_anchor = anchor.cap_cycles.load(Ordering::Relaxed) != 0;
        is_anchor.then(|| u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Returns seconds and nanoseconds of a clock id at the value that `counter` reads, or `None` where the reader must
    /// fall back to the kernel. `counter` is in the counts of the anchors.
    pub fn read(&self, clock_id: u32, counter: impl FnMut() -> u64) -> Option<(u64, u32)> {
        match self.look(clock_id, ATTEMPTS, counter) {
            Attempt::Answer(time) => Some(time),
            _ => None,
        }
    }

    /// Returns the latest time that any reader can have had of a clock id. A reader returns it where the kernel answers
    /// less, and leaves the page only after [`ahead_ns`] has become 0.
    pub fn floor(&self, clock_id: u32, counter: impl FnMut() -> u64) -> Option<(u64, u32)> {
        match self.look(clock_id, u32::MAX, counter) {
            Attempt::Answer(time) | Attempt::Floor(time) => Some(time),
            _ => None,
        }
    }

    /// Returns what a program gets, as the image's slow path does (`READ_SLOWLY` in core/image/vdso/clock_gettime.h). `kernel`
    /// reads the kernel's clock.
    pub fn answer(
        &self,
        clock_id: u32,
        mut counter: impl FnMut() -> u64,
        kernel: impl FnOnce() -> (u64, u32),
    ) -> (u64, u32) {
        let before = match self.look(clock_id, u32::MAX, &mut counter) {
            Attempt::Answer(time) => return time,
            Attempt::Floor(floor) => Some(floor),
            _ => None,
        };
        let kernel = kernel();
        let floor = match self.look(clock_id, u32::MAX, &mut counter) {
            Attempt::Answer(time) => return time,
            Attempt::Floor(floor) => Some(floor),
            _ => before,
        };
        floor.filter(|floor| ahead_ns(*floor, kernel) > 0).unwrap_or(kernel)
    }

    /// Returns the earliest and the latest UTC in nanoseconds since 1970, as `fastpath_clock_now_bounded()` does; `None`
    /// where that asks the kernel.
    pub fn utc(&self, counter: impl FnMut() -> u64) -> Option<(u64, u64)> {
        let bounds = |copy: &AnchorCell, index, elapsed_cycles: u64| {
            let (sec, nsec) = compute(copy, index, elapsed_cycles);
            let error_ns = copy.utc_error_ns.load(Ordering::Relaxed);
            let grown = elapsed_cycles.wrapping_mul(u64::from(copy.utc_error_mult.load(Ordering::Relaxed)));
            let grown_ns = grown.wrapping_shr(copy.shift.load(Ordering::Relaxed)) + 1;
            let now_ns = sec.wrapping_mul(NSEC_PER_SEC).wrapping_add(u64::from(nsec));
            (error_ns, now_ns, error_ns.wrapping_add(grown_ns))
        };
        match self.look_for(REALTIME, ATTEMPTS, counter, bounds) {
            Attempt::Answer((1.., now_ns, error_ns)) => Some((now_ns.saturating_sub(error_ns), now_ns + error_ns)),
            _ => None,
        }
    }

    fn look(&self, clock_id: u32, attempts: u32, counter: impl FnMut() -> u64) -> Attempt<(u64, u32)> {
        self.look_for(clock_id, attempts, counter, compute)
    }

    fn look_for<T>(
        &self,
        clock_id: u32,
        attempts: u32,
        mut counter: impl FnMut() -> u64,
        compute: impl Fn(&AnchorCell, usize, u64) -> T,
    ) -> Attempt<T> {
        let Some(index) = base_index(clock_id) else {
            return Attempt::Nothing;
        };
        let latch = if clock_id == MONOTONIC_RAW {
            &self.page.raw
        } else {
            &self.page.hres
        };
        for _ in 0..attempts {
            match attempt(latch, clock_id, &mut counter, |copy, elapsed| {
                compute(copy, index, elapsed)
            }) {
                Attempt::Again => {}
                result => return result,
            }
        }
        Attempt::Nothing
    }

    /// Returns the clocks that the page is kept for; none if the page does not say.
    pub fn clocks(&self) -> ClockSet {
        ClockSet(self.page.header.clocks.load(Ordering::Relaxed)).intersection(ClockSet::ALL)
    }

    /// Returns the publisher's statistics.
    pub fn stats(&self) -> Stats {
        let stats = &self.page.stats;
        Stats {
            refreshes: stats.refreshes.load(Ordering::Relaxed),
            residual_ns: stats.residual_ns.load(Ordering::Relaxed) as i64,
            publisher_pid: stats.publisher_pid.load(Ordering::Relaxed),
            withdrawn_reason: Reason::from_code(stats.withdrawn_reason.load(Ordering::Relaxed)),
        }
    }

    /// Returns how often anchors were withdrawn.
    pub fn withdrawals(&self) -> u64 {
        self.page.stats.withdrawals.load(Ordering::Acquire)
    }

    /// Returns the last withdrawals, oldest first: at most [`HISTORY`]. One that is being written is left out.
    pub fn history(&self) -> impl Iterator<Item = Withdrawal> {
        let count = self.withdrawals();
        let cells = &self.page.stats.history;
        (count.saturating_sub(HISTORY as u64)..count).filter_map(move |number| {
            let entry = &cells[(number % HISTORY as u64) as usize];
            let reason = entry.reason.load(Ordering::Acquire);
            let boottime_ns = entry.boottime_ns.load(Ordering::Relaxed);
            let ahead_ns = entry.ahead_ns.load(Ordering::Relaxed) as i64;
            fence(Ordering::Acquire);
            (entry.reason.load(Ordering::Relaxed) == reason).then_some(Withdrawal {
                boottime_ns,
                reason: Reason::from_code(reason)?,
                ahead_ns: (ahead_ns != AHEAD_UNKNOWN).then_some(ahead_ns),
            })
        })
    }

    /// Returns the publisher's comparisons of the CPUs' counters.
    pub fn watch(&self) -> Watch {
        let stats = &self.page.stats;
        Watch {
            warp_tests: stats.warp_tests.load(Ordering::Relaxed),
            warp_within_cycles: Some(stats.warp_within_cycles.load(Ordering::Relaxed)).filter(|cycles| *cycles != 0),
            allows_non_invariant: stats.watch_flags.load(Ordering::Relaxed) & WATCH_ALLOWS_NON_INVARIANT != 0,
        }
    }
}

/// Returns by how many nanoseconds a floor is later than the kernel's answer; 0 if it does not bind (`fp_is_later` in
/// core/image/vdso/latch.c).
pub fn ahead_ns(floor: (u64, u32), kernel: (u64, u32)) -> u64 {
    let ns = |(sec, nsec): (u64, u32)| i128::from(sec) * i128::from(NSEC_PER_SEC) + i128::from(nsec);
    let ahead_ns = u64::try_from(ns(floor) - ns(kernel)).unwrap_or(0);
    if ahead_ns <= u64::from(FLOOR_LIMIT_NS) {
        ahead_ns
    } else {
        0
    }
}

fn attempt<T>(
    latch: &Latch,
    clock_id: u32,
    counter: &mut impl FnMut() -> u64,
    compute: impl Fn(&AnchorCell, u64) -> T,
) -> Attempt<T> {
    let seq = latch.copy[0].seq.load(Ordering::Acquire);
    let odd = seq & 1 == 1;
    let mut copy = &latch.copy[usize::from(odd)];
    if !has_floor(copy, clock_id) {
        return Attempt::Nothing;
    }
    let now = counter();
    let mut elapsed_cycles = now.wrapping_sub(copy.base_cycles.load(Ordering::Relaxed));
    if !odd && (elapsed_cycles as i64) < 0 {
        // The newest anchor is not in force yet: the one before it answers.
        copy = &latch.copy[1];
        elapsed_cycles = now.wrapping_sub(copy.base_cycles.load(Ordering::Relaxed));
        if !has_floor(copy, clock_id) {
            return Attempt::Nothing;
        }
    }
    let mut answers = copy.answered().0 >> clock_id & 1 == 1;
    let cap_cycles = u64::from(copy.cap_cycles.load(Ordering::Relaxed));
    if elapsed_cycles > cap_cycles {
        answers = false;
        elapsed_cycles = if (elapsed_cycles as i64) < 0 { 0 } else { cap_cycles };
    }
    let time = compute(copy, elapsed_cycles);
    // Orders the loads above before the recheck, which an acquire load of seq would not do.
    fence(Ordering::Acquire);
    if latch.copy[0].seq.load(Ordering::Relaxed) != seq {
        return Attempt::Again;
    }
    if answers {
        Attempt::Answer(time)
    } else {
        Attempt::Floor(time)
    }
}

fn has_floor(copy: &AnchorCell, clock_id: u32) -> bool {
    copy.floors.load(Ordering::Relaxed) >> clock_id & 1 == 1
}

/// Torn fields can give any value here, which the recheck discards. The wrapping arithmetic keeps them from panicking.
fn compute(copy: &AnchorCell, index: usize, elapsed_cycles: u64) -> (u64, u32) {
    let mult = u64::from(copy.mult.load(Ordering::Relaxed));
    let shift = copy.shift.load(Ordering::Relaxed);
    let sec = copy.base[index].sec.load(Ordering::Relaxed);
    let nsec_shifted = copy.base[index].nsec_shifted.load(Ordering::Relaxed);
    let ns = elapsed_cycles
        .wrapping_mul(mult)
        .wrapping_add(nsec_shifted)
        .wrapping_shr(shift);
    if ns >= NSEC_PER_SEC {
        (sec.wrapping_add(1), (ns - NSEC_PER_SEC) as u32)
    } else {
        (sec, ns as u32)
    }
}
