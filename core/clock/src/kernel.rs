//! What the kernel says of its clocks (adjtimex(2)).

use crate::bracket::Sample;
use crate::ntp::{Ntp, SLEWS_ON_NS};
use crate::utc::MaxError;

/// The kernel's settings at the last sample.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kernel {
    /// The settings to which the line's rate belongs.
    pub ntp: Option<Ntp>,
    /// Time at which a slew that changes the rate each second was last seen pending.
    pub pending_at_ns: Option<u64>,
    /// Bound on the error of the kernel's REALTIME; `None`: unknown.
    pub max_error: Option<MaxError>,
    /// Time of the sample on the kernel's MONOTONIC.
    pub sampled_at_ns: u64,
    /// The kernel's REALTIME at the same sample.
    pub sampled_real_ns: u64,
}

impl Kernel {
    /// Forgets all but the times of the sample.
    pub(crate) fn restart(&mut self) {
        *self = Kernel {
            sampled_at_ns: self.sampled_at_ns,
            sampled_real_ns: self.sampled_real_ns,
            ..Kernel::default()
        };
    }

    /// Returns whether `ntp` makes a sample due at once: the kernel's clocks were adjusted by adjtimex(2) since the
    /// last sample.
    pub(crate) fn is_news(&self, ntp: &Ntp) -> bool {
        let same = |known: Ntp| {
            (known.freq, known.tick_us, known.tai_s, known.leap) == (ntp.freq, ntp.tick_us, ntp.tai_s, ntp.leap)
                && known.is_synchronized == ntp.is_synchronized
                && (known.is_slewing() || !ntp.is_slewing())
        };
        !self.ntp.is_some_and(same)
    }

    /// Returns the kernel's rate by adjtimex(2), relative to that at the last sample.
    pub(crate) fn turned_by(&self, sample: &Sample) -> Option<f64> {
        Some(sample.ntp?.rate() / self.ntp?.rate())
    }

    /// Returns whether the kernel may still apply a slew that was pending and is not any more.
    pub(crate) fn slews_on(&self) -> bool {
        let since_ns = self.pending_at_ns.map(|at_ns| self.sampled_at_ns.saturating_sub(at_ns));
        since_ns.is_some_and(|since_ns| since_ns < SLEWS_ON_NS)
    }

    pub(crate) fn follow_max_error(&mut self, sample: &Sample) {
        let follow = |ntp: Ntp| MaxError::follow(self.max_error, &ntp, sample.mono.time_ns);
        self.max_error = sample.ntp.and_then(follow);
    }
}
