//! When a counter that was withdrawn is served again.

use crate::line::ns_between;

/// Time for which a counter that was withdrawn must predict the kernel's clock before it is served again. It doubles
/// with each further strike.
const PROBATION_NS: u64 = 1_000_000_000;
/// Most strikes that are counted: the probation is at most 2^6 times [`PROBATION_NS`].
const MAX_STRIKES: u32 = 7;
/// Time without a fault after which the strikes are forgotten.
const FORGIVEN_AFTER_NS: u64 = 600_000_000_000;
/// Age up to which a fault may be explained afterwards.
const PARDONED_WITHIN_NS: u64 = 1_000_000_000;

/// The faults of a counter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probation {
    strikes: u32,
    /// Time of the last strike on the kernel's MONOTONIC; meaningful only while there are strikes.
    caught_at_ns: u64,
}

impl Probation {
    /// Records a fault.
    pub(crate) fn strike(&mut self, mono_ns: u64) {
        self.strikes = (self.strikes + 1).min(MAX_STRIKES);
        self.caught_at_ns = mono_ns;
    }

    /// Takes the last fault back, if it is at most a moment old.
    pub(crate) fn pardon(&mut self, mono_ns: u64) {
        if ns_between(self.caught_at_ns, mono_ns).unsigned_abs() < PARDONED_WITHIN_NS {
            self.strikes = self.strikes.saturating_sub(1);
        }
    }

    /// Returns whether the last fault was too short a time ago.
    pub(crate) fn is_on(&mut self, mono_ns: u64) -> bool {
        if self.strikes == 0 {
            return false;
        }
        let good_for_ns = u64::try_from(ns_between(self.caught_at_ns, mono_ns)).unwrap_or(0);
        if good_for_ns >= FORGIVEN_AFTER_NS {
            self.strikes = 0;
        }
        self.strikes > 0 && good_for_ns < PROBATION_NS << (self.strikes - 1)
    }
}
