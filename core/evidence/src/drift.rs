//! How much faster one CPU's counter ticks than another's.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pair::Pair;
use crate::warp::{Timeouts, Warp};
use crate::{counter, cpus, pause, warp};

/// Rate of one CPU's counter, compared with that of another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Drift {
    /// The CPU.
    pub cpu: usize,
    /// The CPU that it is compared with.
    pub against: usize,
    /// By how much its counter is faster, in parts per million; negative if it is slower.
    pub ppm: f64,
    /// Largest error of `ppm`: by the widths of the two comparisons, and the time that these took.
    pub error_ppm: f64,
}

impl Drift {
    /// Measures the drift of each CPU that this process may use against the first, by two comparisons of every pair, which
    /// are `apart`. Starts threads. CPUs that could not be compared are left out.
    pub fn measure(timeouts: Timeouts, apart: Duration) -> Vec<Drift> {
        let Some(before) = Counted::compare(timeouts, warp::MOST_ROUNDS) else {
            return Vec::new();
        };
        pause(apart);
        let after = Counted::compare(timeouts, warp::MOST_ROUNDS);
        after.map_or(Vec::new(), |after| before.drifts_until(&after))
    }

    /// Returns the largest drift that is certain.
    pub fn largest(drifts: &[Drift]) -> Option<&Drift> {
        let certain = drifts.iter().filter(|drift| drift.is_certain());
        certain.max_by(|one, other| one.ppm.abs().total_cmp(&other.ppm.abs()))
    }

    /// Returns whether the counters of the two CPUs certainly tick at different rates.
    pub fn is_certain(&self) -> bool {
        self.ppm.abs() > self.error_ppm
    }

    /// Derives the drifts from two comparisons between which CPU `first` has counted so many `cycles`, at least and at most.
    fn between(first: usize, before: &Warp, after: &Warp, cycles: RangeInclusive<u64>) -> Vec<Drift> {
        let before: BTreeMap<usize, Pair> = with_first(first, before).collect();
        let (shortest, longest) = (*cycles.start() as f64, *cycles.end() as f64);
        let drift = |(cpu, after): (usize, Pair)| {
            let before = before.get(&cpu)?;
            let least = after.least_cycles.saturating_sub(before.most_cycles) as f64;
            let most = after.most_cycles.saturating_sub(before.least_cycles) as f64;
            let least_ppm = 1e6 * f64::min(least / shortest, least / longest);
            let most_ppm = 1e6 * f64::max(most / shortest, most / longest);
            Some(Drift {
                cpu,
                against: first,
                ppm: (least_ppm + most_ppm) / 2.0,
                error_ppm: (most_ppm - least_ppm) / 2.0,
            })
        };
        with_first(first, after).filter_map(drift).collect()
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Drift {
            cpu,
            against,
            ppm,
            error_ppm,
        } = self;
        let how = if *ppm > 0.0 { "faster" } else { "slower" };
        let ppm = ppm.abs();
        write!(
            f,
            "CPU {cpu}'s counter runs {ppm:.2} ppm {how} than CPU {against}'s (± {error_ppm:.2})"
        )
    }
}

/// A comparison of every pair, and the counts of one CPU before and after it.
pub(crate) struct Counted {
    first: usize,
    begun: u64,
    pub(crate) warp: Warp,
    ended: u64,
}

impl Counted {
    /// Compares every pair, in so many rounds at most. Starts threads; returns `None` if none can be started.
    pub(crate) fn compare(timeouts: Timeouts, most_rounds: usize) -> Option<Counted> {
        let first = *cpus::allowed().first()?;
        Some(Counted {
            first,
            begun: count_on(first)?,
            warp: warp::of_every_pair(timeouts, most_rounds),
            ended: count_on(first)?,
        })
    }

    /// Returns the drifts from this comparison to a later one.
    pub(crate) fn drifts_until(&self, later: &Counted) -> Vec<Drift> {
        let cycles = later.begun.wrapping_sub(self.ended)..=later.ended.wrapping_sub(self.begun);
        Drift::between(self.first, &self.warp, &later.warp, cycles)
    }
}

/// Returns the pairs of CPU `first` with others, each turned so that it is the one that the other is compared with.
fn with_first(first: usize, warp: &Warp) -> impl Iterator<Item = (usize, Pair)> {
    warp.pairs.iter().filter_map(move |pair| match first {
        _ if pair.cpu == first => Some((pair.other, *pair)),
        _ if pair.other == first => Some((pair.cpu, pair.turned())),
        _ => None,
    })
}

/// Reads the counter on a CPU, by a thread of its own.
fn count_on(cpu: usize) -> Option<u64> {
    let read = move || cpus::run_on(cpu).ok().map(|()| counter::read_raw());
    std::thread::Builder::new().spawn(read).ok()?.join().ok()?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warp(pairs: &[(usize, usize, i64, i64)]) -> Warp {
        let pair = |&(cpu, other, least_cycles, most_cycles): &(usize, usize, i64, i64)| Pair {
            cpu,
            other,
            least_cycles,
            most_cycles,
        };
        Warp {
            pairs: pairs.iter().map(pair).collect(),
            ..Warp::default()
        }
    }

    #[test]
    fn a_drift_has_the_errors_of_both_its_differences() {
        let before = warp(&[(0, 1, 900, 1_100), (2, 0, -50, 50), (1, 2, 0, 0)]);
        let after = warp(&[(0, 1, 3_900, 4_100), (0, 2, -50, 50), (0, 3, 0, 100)]);
        let drifts = Drift::between(0, &before, &after, 3_000_000_000..=3_000_000_000);
        assert_eq!(drifts.len(), 2, "CPU 3 was not compared before: {drifts:?}");
        assert_eq!((drifts[0].cpu, drifts[0].against), (1, 0));
        assert!((drifts[0].ppm - 1.0).abs() < 1e-9, "{drifts:?}");
        assert!((drifts[0].error_ppm - 200.0 / 3_000.0).abs() < 1e-9, "{drifts:?}");
        assert!(drifts[0].is_certain());
        // 2,800 to 3,200 counts, in as many cycles or a tenth more.
        let slow = Drift::between(0, &before, &after, 3_000_000_000..=3_300_000_000)[0];
        assert!((slow.ppm - slow.error_ppm - 2_800.0 / 3_300.0).abs() < 1e-9, "{slow:?}");
        assert!((slow.ppm + slow.error_ppm - 3_200.0 / 3_000.0).abs() < 1e-9, "{slow:?}");
        assert_eq!(drifts[1].cpu, 2);
        assert!(drifts[1].ppm == 0.0 && !drifts[1].is_certain(), "{drifts:?}");
        assert_eq!(Drift::largest(&drifts), Some(&drifts[0]));
        assert_eq!(
            drifts[0].to_string(),
            "CPU 1's counter runs 1.00 ppm faster than CPU 0's (± 0.07)"
        );
    }

    #[test]
    fn the_counters_of_this_host_tick_alike() {
        let timeouts = Timeouts {
            in_all: Duration::from_secs(1),
            for_a_pair: Duration::from_millis(500),
            for_an_answer: Duration::from_millis(100),
        };
        for drift in Drift::measure(timeouts, Duration::from_millis(200)) {
            assert!(!drift.is_certain(), "{drift:?}");
        }
    }
}
