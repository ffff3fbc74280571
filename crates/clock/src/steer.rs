//! From the anchor in force to the next: continuous, towards the kernel's clock, and never back.

use fastpath_page::anchor::reshift_up;
use fastpath_page::{Anchor, Rate};

use crate::line::{Line, ns_between};

/// The clocks run at most this much slower or faster than the kernel's while an error is worked off.
const STEEPEST: f64 = 0.005;
/// An error beyond half a system call's cost (and noise) shows to a program that mixes both, as time that goes backwards. Behind by
/// more, readers step forward, which shows to nobody.
const VISIBLE_NS: f64 = 50.0;
/// Ahead by more than this, slowing down would take over a second: the clocks are left to the kernel instead.
const AHEAD_LIMIT_NS: f64 = 5e6;
/// The kernel shows whole nanoseconds, rounded down: on average it is half of one later.
const ROUNDED_DOWN_NS: f64 = 0.5;

/// Where the next anchor starts and how fast it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Course {
    pub rate: Rate,
    /// What the clock shows at the new base, in units of 2^-rate.shift ns since its epoch.
    pub start_ns_shifted: u128,
}

/// The times of an anchor, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Until the next is wanted.
    pub window_ns: u64,
    /// It may be read for so long at most.
    pub cap_ns: u64,
}

/// Why there is no next anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoCourse {
    /// The anchor in force is too far ahead of the kernel's clock.
    Ahead,
    /// No page can hold this rate or time.
    OutOfRange,
}

/// The course from `in_force` (if there is one) at `effective_at` to the kernel's clock, as `line` predicts it, until the new anchor ends.
pub(crate) fn steer(
    in_force: Option<&Anchor>,
    index: usize,
    line: &Line,
    effective_at: u64,
    times: Times,
    noise_ns: f64,
) -> Result<Course, NoCourse> {
    let kernel_above_ns = line.above_origin_ns(effective_at) + ROUNDED_DOWN_NS;
    let natural = rate_of(line.ns_per_cycle).ok_or(NoCourse::OutOfRange)?;
    let kernel = shifted(line.origin_ns, kernel_above_ns, natural.shift).ok_or(NoCourse::OutOfRange)?;
    let Some(in_force) = in_force else {
        return Ok(Course {
            rate: natural,
            start_ns_shifted: kernel,
        });
    };

    // Past its cap nobody reads the anchor in force: what it showed last is what must not be undercut.
    let last_read = in_force.base_cycles.wrapping_add(u64::from(in_force.cap_cycles));
    let expired = (effective_at.wrapping_sub(last_read) as i64) > 0;
    let shown = in_force.ns_shifted_at(index, if expired { last_read } else { effective_at });
    let ahead_ns = ahead_of_origin_ns(shown, in_force.rate.shift, line.origin_ns) - kernel_above_ns;
    if ahead_ns > AHEAD_LIMIT_NS {
        return Err(NoCourse::Ahead);
    }
    let visible_ns = VISIBLE_NS + 4.0 * noise_ns;
    let steps_forward = ahead_ns < -visible_ns || (expired && ahead_ns < 0.0);
    if steps_forward {
        // Rounding alone could undercut what was shown, so compare in the new units.
        let start_ns_shifted = kernel.max(reshift_up(shown, in_force.rate.shift, natural.shift));
        return Ok(Course {
            rate: natural,
            start_ns_shifted,
        });
    }
    // The correction goes on for as long as the anchor is read. Spread over all of that, an error never grows, however late or often
    // missed the next anchor is; spread over half of it, one that shows is gone sooner, and may at worst change its sign.
    let spread_ns = if ahead_ns > visible_ns {
        times.window_ns.max(times.cap_ns / 2)
    } else {
        times.cap_ns
    };
    let correction = (ahead_ns / spread_ns.max(1) as f64).clamp(-STEEPEST, STEEPEST);
    let rate = rate_of(line.ns_per_cycle * (1.0 - correction)).ok_or(NoCourse::OutOfRange)?;
    Ok(Course {
        rate,
        start_ns_shifted: reshift_up(shown, in_force.rate.shift, rate.shift),
    })
}

/// How far an anchor shows `index` ahead of a time of the kernel's at the counter where that was read, in nanoseconds.
pub(crate) fn ahead_of_ns(anchor: &Anchor, index: usize, cycles: u64, kernel_ns: u64) -> f64 {
    ahead_of_origin_ns(anchor.ns_shifted_at(index, cycles), anchor.rate.shift, kernel_ns) - ROUNDED_DOWN_NS
}

fn ahead_of_origin_ns(shown_ns_shifted: u128, shift: u32, origin_ns: u64) -> f64 {
    let whole_ns = (shown_ns_shifted >> shift) as u64;
    let fraction = (shown_ns_shifted & ((1 << shift) - 1)) as f64 / (1u64 << shift) as f64;
    ns_between(origin_ns, whole_ns) as f64 + fraction
}

fn rate_of(ns_per_cycle: f64) -> Option<Rate> {
    const ONE_Q64: f64 = 18_446_744_073_709_551_616.0;
    // A float that is negative, too large or not a number saturates here and is refused there.
    Rate::from_ns_per_cycle_q64((ns_per_cycle * ONE_Q64) as u128)
}

fn shifted(origin_ns: u64, above_ns: f64, shift: u32) -> Option<u128> {
    let origin = i128::from(origin_ns) << shift;
    let above = (above_ns * (1u64 << shift) as f64) as i128;
    u128::try_from(origin.checked_add(above)?).ok()
}
