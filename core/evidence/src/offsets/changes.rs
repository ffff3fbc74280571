//! When offsets are measured anew, and when they are given up.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::solve::Unsolvable;
use super::table::Offsets;

/// Most changes of offsets within [`DRIFTS_WITHIN`]: with more, the counters' rates differ, and no offsets hold.
const MOST_CHANGES: usize = 1;
const DRIFTS_WITHIN: Duration = Duration::from_secs(600);
/// Least and most time from one measurement of offsets to the next, which takes time on all CPUs. It doubles while none
/// succeeds.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
const MEASURE_RARELY: Duration = Duration::from_secs(64);

/// The changes of offsets so far.
#[derive(Debug, Default)]
pub struct Changes {
    at: VecDeque<Instant>,
    /// When to measure again at the earliest, and how long that is after the last time.
    next: Option<(Instant, Duration)>,
}

impl Changes {
    /// Measures the offsets anew with `measure`, unless the counters drift or the last time was a moment ago. Returns
    /// the offsets to put in force.
    pub fn measure(
        &mut self,
        now: impl Fn() -> Instant,
        measure: impl FnOnce() -> Result<(Offsets, bool), Unsolvable>,
    ) -> Option<Offsets> {
        let begun = now();
        if self.is_drift() || self.next.is_some_and(|(next, _)| begun < next) {
            return None;
        }
        let measured = measure();
        let rest = match (&measured, self.next) {
            (Err(_), Some((_, rest))) => (2 * rest).min(MEASURE_RARELY),
            _ => MEASURE_EVERY,
        };
        self.next = Some((now() + rest, rest));
        let (offsets, has_changed) = measured.ok()?;
        if has_changed {
            self.note(begun);
        }
        (!self.is_drift()).then_some(offsets)
    }

    /// Returns whether offsets are given up: there were too many changes.
    pub(crate) fn is_drift(&self) -> bool {
        self.at.len() > MOST_CHANGES
    }

    fn note(&mut self, now: Instant) {
        self.at.push_back(now);
        while self
            .at
            .front()
            .is_some_and(|first| now.duration_since(*first) > DRIFTS_WITHIN)
        {
            self.at.pop_front();
        }
    }
}
