//! From the anchor in force to the next: continuous, towards the kernel's clock, and never back.

use fastpath_page::anchor::{UtcError, reshift_up};
use fastpath_page::{Anchor, ClockSet, Rate};

use crate::bracket::Bracket;
use crate::clocks::MONOTONIC;
use crate::line::{Line, cycles_between, ns_between};

/// Largest relative rate at which an invisible error is worked off.
const STEEPEST: f64 = 0.005;
/// While the clocks are visibly ahead of the kernel's, they run slower than it by at most this part: nearly flat, so
/// that the kernel catches up soon, and never at rest, so that a program that waits for the next nanosecond gets it.
const FLATTEST: f64 = 1.0 - 1.0 / 64.0;
/// An error beyond half a system call's cost (and noise) is visible to a program that mixes both, as time that goes
/// backwards. Further behind, readers step forward, which is visible to none of them. The kernel's clock has been seen
/// to be read 60 ns after a call and 90 ns before its return by an AMD EPYC of family 26; the fastest CPUs without
/// mitigations are assumed to take a third of that.
pub const VISIBLE_NS: f64 = 25.0;
const ONE_Q64: f64 = 18_446_744_073_709_551_616.0;
/// Mean error of the kernel's times, which are whole nanoseconds, rounded down.
const ROUNDED_DOWN_NS: f64 = 0.5;

/// The start, the rate and the max age of the next anchor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Course {
    pub rate: Rate,
    /// The clock's value at the new base, in units of 2^-rate.shift ns since its epoch.
    pub start_ns_shifted: u128,
    /// Counts after the new base for which the anchor may be read.
    pub cap_cycles: u32,
}

impl Course {
    /// Returns an anchor that answers no clock yet.
    pub(crate) fn anchor_at(&self, base_cycles: u64) -> Anchor {
        Anchor {
            clocks: ClockSet::NONE,
            base_cycles,
            rate: self.rate,
            cap_cycles: self.cap_cycles,
            base: Default::default(),
            utc_error: UtcError::default(),
        }
    }
}

/// The times of an anchor, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Time until the next anchor is due.
    pub window_ns: u64,
    /// Longest time for which it may be read.
    pub cap_ns: u64,
}

/// The latest time of a clock that a reader can have had when the next anchor begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    ns_shifted: u128,
    shift: u32,
    /// Whether readers have fallen back to the kernel since then.
    pub expired: bool,
}

impl Shown {
    /// Returns what the anchor in force shows when the next one begins; without one, what the withdrawn anchor showed
    /// at its end, whatever the counter did since.
    pub(crate) fn by(
        in_force: Option<Anchor>,
        withdrawn: Option<Anchor>,
        index: usize,
        effective_at: u64,
    ) -> Option<Shown> {
        let anchor = in_force.or(withdrawn)?;
        // No reader uses an anchor past its end: the next must not begin below the value that it showed last.
        let end = anchor.end_cycles();
        let expired = in_force.is_none() || (effective_at.wrapping_sub(end) as i64) > 0;
        Some(Shown {
            ns_shifted: anchor.ns_shifted_at(index, if expired { end } else { effective_at }),
            shift: anchor.rate.shift,
            expired,
        })
    }

    /// Returns how far this is ahead of the kernel's clock at `effective_at`, as `line` predicts it.
    pub(crate) fn ahead_ns(&self, line: &Line, effective_at: u64) -> f64 {
        ahead_of_origin_ns(self.ns_shifted, self.shift, line.origin_ns) - kernel_above_ns(line, effective_at)
    }
}

fn kernel_above_ns(line: &Line, effective_at: u64) -> f64 {
    line.above_origin_ns(effective_at) + ROUNDED_DOWN_NS
}

/// Returns the course at `effective_at` to the kernel's clock, as `line` predicts it, until the new anchor ends. `None`
/// if no page can hold this rate or time.
///
/// A new anchor begins where readers were (`shown`), or later, and is never visibly behind the kernel's clock as it is
/// known. If it is behind, it steps forward; if it is ahead, it runs slower than the kernel, and has the
/// kernel's time at its own end. It is not read beyond that point, where it would be behind.
pub(crate) fn steer(
    shown: Option<Shown>,
    line: &Line,
    effective_at: u64,
    times: Times,
    noise_ns: f64,
) -> Option<Course> {
    let natural = rate_of(line.ns_per_cycle)?;
    let kernel = shifted(line.origin_ns, kernel_above_ns(line, effective_at), natural.shift)?;
    let at_the_kernel = |start_ns_shifted| Course {
        rate: natural,
        start_ns_shifted,
        cap_cycles: natural.cap_for_ns(times.cap_ns),
    };
    let Some(shown) = shown else {
        return Some(at_the_kernel(kernel));
    };

    let ahead_ns = shown.ahead_ns(line, effective_at);
    let visible_ns = visible_ns(noise_ns);
    if ahead_ns < -visible_ns || (shown.expired && ahead_ns < 0.0) {
        // Rounding alone could go below what was shown, so compare in the new units.
        let shown = reshift_up(shown.ns_shifted, shown.shift, natural.shift);
        return Some(at_the_kernel(kernel.max(shown)));
    }
    // At most what fits one anchor: the next corrects the rest.
    let is_visible = ahead_ns > visible_ns;
    let cap_ns = if is_visible {
        times.cap_ns.min(times.window_ns + times.window_ns / 2)
    } else {
        times.cap_ns
    };
    let steepest = if is_visible { FLATTEST } else { STEEPEST };
    let correction = (ahead_ns / cap_ns.max(1) as f64).clamp(-STEEPEST, steepest);
    let rate = rate_of(line.ns_per_cycle * (1.0 - correction))?;
    Some(Course {
        rate,
        start_ns_shifted: reshift_up(shown.ns_shifted, shown.shift, rate.shift),
        // In the kernel's time, not in that of an anchor that runs slower.
        cap_cycles: natural.cap_for_ns(cap_ns).min(rate.max_cap()),
    })
}

/// Returns the error, in nanoseconds, that a program cannot see when it mixes reads of the page and of the kernel.
pub(crate) fn visible_ns(noise_ns: f64) -> f64 {
    VISIBLE_NS + 4.0 * noise_ns
}

/// Returns whether an anchor's MONOTONIC is behind the kernel's by more than `tolerance_ns`. Readers that switch from
/// the kernel to such an anchor would see time go back.
pub fn is_behind(anchor: &Anchor, kernel: &Bracket, tolerance_ns: f64) -> bool {
    let at = if cycles_between(anchor.base_cycles, kernel.after) < 0 {
        anchor.base_cycles
    } else {
        kernel.after
    };
    let until_base_ns = at.wrapping_sub(kernel.after) as f64 * (anchor.rate.ns_per_cycle_q64() as f64 / ONE_Q64);
    ahead_of_ns(anchor, MONOTONIC, at, kernel.time_ns) - until_base_ns < -tolerance_ns
}

/// Returns how far an anchor shows `index` ahead of a time of the kernel, at the counter where that was read, in
/// nanoseconds.
pub(crate) fn ahead_of_ns(anchor: &Anchor, index: usize, cycles: u64, kernel_ns: u64) -> f64 {
    ahead_of_origin_ns(anchor.ns_shifted_at(index, cycles), anchor.rate.shift, kernel_ns) - ROUNDED_DOWN_NS
}

fn ahead_of_origin_ns(shown_ns_shifted: u128, shift: u32, origin_ns: u64) -> f64 {
    let whole_ns = (shown_ns_shifted >> shift) as u64;
    let fraction = (shown_ns_shifted & ((1 << shift) - 1)) as f64 / (1u64 << shift) as f64;
    ns_between(origin_ns, whole_ns) as f64 + fraction
}

/// Returns a rate as a page holds it.
pub(crate) fn rate_of(ns_per_cycle: f64) -> Option<Rate> {
    // A float that is negative, too large or not a number saturates here, and `Rate` refuses the result.
    Rate::from_ns_per_cycle_q64((ns_per_cycle * ONE_Q64) as u128)
}

fn shifted(origin_ns: u64, above_ns: f64, shift: u32) -> Option<u128> {
    let origin = i128::from(origin_ns) << shift;
    let above = (above_ns * (1u64 << shift) as f64) as i128;
    u128::try_from(origin.checked_add(above)?).ok()
}
