//! How far REALTIME may be from UTC, by what the kernel says of it (adjtimex(2), `maxerror`).

use fastpath_page::Anchor;
use fastpath_page::anchor::{MAX_UTC_ERROR_NS, UtcError};

use crate::bracket::Bracket;
use crate::clocks::REALTIME;
use crate::line::{Line, cycles_between};
use crate::ntp::Ntp;
use crate::steer::ahead_of_ns;

/// Growth of the kernel's `maxerror`, relative: the most by which a clock is believed to drift, and by which `freq` can
/// change its rate (MAXFREQ in include/linux/timex.h). The kernel adds it at the end of each second.
const DRIFT: f64 = 500e-6;
/// Rounding of the clock, of its offset from MONOTONIC and of the reader's arithmetic.
const ROUNDED_NS: f64 = 4.0;

/// A bound on the kernel's own error, which grows all the time and not only at the end of a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaxError {
    stated_us: u64,
    ns: f64,
    at_ns: u64,
}

impl MaxError {
    /// Returns the bound at a time of MONOTONIC, from the kernel's state and the bound before; `None`: the kernel's clock is
    /// not synchronized.
    pub(crate) fn follow(before: Option<MaxError>, ntp: &Ntp, at_ns: u64) -> Option<MaxError> {
        let stated_ns = ntp.max_error_us.saturating_mul(1_000);
        if !ntp.is_synchronized {
            return None;
        }
        // It was stated after the last look, or else within the second, whose growth the kernel has not added yet.
        let since_ns = before.map_or(1_000_000_000, |before| at_ns.saturating_sub(before.at_ns));
        let grown_ns = since_ns as f64 * DRIFT;
        let ns = match before {
            Some(before) if before.stated_us <= ntp.max_error_us => (before.ns + grown_ns).max(stated_ns as f64),
            _ => stated_ns as f64 + grown_ns,
        };
        Some(MaxError {
            stated_us: ntp.max_error_us,
            ns,
            at_ns,
        })
    }

    /// Returns the bound for an anchor, made from a sample that contains `real`. `line` is the kernel's, and `slew` its
    /// relative distance from an unadjusted clock: it may end, and `freq` change to either end, without the page.
    pub(crate) fn of_anchor(self, anchor: &Anchor, real: &Bracket, line: &Line, slew: f64) -> UtcError {
        let since_ns = cycles_between(real.middle_cycles(), anchor.base_cycles) as f64 * line.ns_per_cycle;
        let kernel_ns = real.time_ns.wrapping_add_signed(since_ns as i64);
        let ahead_ns = ahead_of_ns(anchor, REALTIME, anchor.base_cycles, kernel_ns);
        let width_ns = (real.width_cycles() + 2) as f64 / 2.0 * line.ns_per_cycle;
        let growth = DRIFT + slew.abs();
        let ns = self.ns + ahead_ns.abs() + width_ns + since_ns.abs() * growth + ROUNDED_NS;
        let per_cycle = growth * line.ns_per_cycle * (1_u64 << anchor.rate.shift) as f64;
        if ns >= MAX_UTC_ERROR_NS as f64 || per_cycle >= f64::from(anchor.rate.mult) {
            return UtcError::default();
        }
        UtcError {
            ns: ns.ceil() as u64,
            mult: per_cycle.ceil() as u32,
        }
    }
}
