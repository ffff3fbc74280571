//! The counter's rate against a clock of the kernel's.

use super::facts::Rate;
use crate::clocks::Clock;
use crate::counter;
use crate::functions::Functions;

/// The two at one moment, and how long that moment was.
pub(super) struct Start {
    ticks: u64,
    ns: i64,
    width: u64,
}

/// Tries for a tight bracket: one that no interrupt falls into.
const TRIES: u32 = 32;

impl Start {
    /// Now. `None` where this clock does not answer.
    pub(super) fn now() -> Option<Start> {
        let libc = Functions::libc();
        let look = || {
            let before = counter::read();
            let ns = libc.now_ns(Clock::MONOTONIC_RAW)?;
            let width = counter::read().wrapping_sub(before);
            Some(Start {
                ticks: before.wrapping_add(width / 2),
                ns,
                width,
            })
        };
        (0..TRIES).filter_map(|_| look()).min_by_key(|start| start.width)
    }

    /// The rate from then till now.
    pub(super) fn rate(&self) -> Option<Rate> {
        rate_between(self, &Start::now()?)
    }
}

fn rate_between(start: &Start, end: &Start) -> Option<Rate> {
    let ns = (end.ns - start.ns) as f64;
    let ticks = end.ticks.wrapping_sub(start.ticks) as i64 as f64;
    if ns <= 0.0 {
        return None;
    }
    let hz = ticks / ns * 1e9;
    Some(Rate {
        hz: hz.round(),
        error_hz: ((start.width + end.width) as f64 / 2.0 / ns * 1e9).ceil(),
        against: "CLOCK_MONOTONIC_RAW",
        over_ms: (ns / 1e6).round(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_half_of_both_brackets_over_the_time_between() {
        let at = |ticks, ns, width| Start { ticks, ns, width };
        let rate = rate_between(&at(1000, 0, 100), &at(300_001_000, 100_000_000, 300)).unwrap();
        assert_eq!((rate.hz, rate.error_hz, rate.over_ms), (3e9, 2000.0, 100.0));
        assert_eq!(rate_between(&at(0, 5, 1), &at(9, 5, 1)), None);
    }

    #[test]
    fn a_counter_that_went_backwards_has_a_negative_rate_and_not_a_huge_one() {
        let at = |ticks, ns| Start { ticks, ns, width: 10 };
        assert!(rate_between(&at(5000, 0), &at(1000, 1000)).unwrap().hz < 0.0);
    }
}
