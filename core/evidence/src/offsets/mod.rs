//! Counters that tick at one rate from different values: how far each CPU's is ahead.
//!
//! An exchange between two CPUs bounds the difference of their offsets from both sides: a message cannot arrive before it
//! was sent. All bounds together are a system of difference constraints. It has a solution if no cycle of bounds adds up to
//! less than nothing, and shortest paths are one. Of all solutions, those are wanted that leave the greatest *margin* to
//! every bound: the fastest message that was measured then arrives later than it was sent by at least that. The margin is
//! the least mean of a cycle's bounds.
//!
//! Offsets are measured where the CPU states that its counters have one rate, or the user vouches for them
//! (`--trust-counter`).

mod changes;
#[cfg(test)]
mod simulation;
mod solve;
pub(crate) mod table;

use std::sync::Mutex;
use std::time::Duration;

pub use changes::Changes;
pub use solve::Unsolvable;
use solve::narrowest;
pub use table::{Offset, Offsets, generation, in_force, put_in_force};

use fastpath_isa::{CpuFeatures, cpu};
use fastpath_page::layout::OFFSETS;

use crate::drift::{Counted, Drift};
use crate::kernels_clock::KernelsClock;
use crate::pair::Pair;
use crate::warp::{Timeouts, Warp};
use crate::{cpus, pause, warp};

/// Time between the two comparisons of a measurement: a drift of 10 ppm makes 100 ns of it, about a margin.
const APART: Duration = Duration::from_millis(10);
/// Time for which counters are observed before anything is served: a drift of 0.25 ppm makes 250 ns of it, more than two
/// margins.
const STEADY_FOR: Duration = Duration::from_secs(1);
/// Most CPUs of a host that is served without `--trust-counter`: a comparison of all comes often enough to notice a CPU that is
/// taken off for 0.3 s (`offsets/simulation.rs`).
pub(crate) const MOST_CPUS_BY_DEFAULT: usize = 32;
/// Timeouts of a measurement, for which the readers use the kernel.
const TIMEOUTS: Timeouts = Timeouts {
    in_all: Duration::from_millis(500),
    for_a_pair: Duration::from_millis(250),
    for_an_answer: Duration::from_millis(50),
};

impl Offsets {
    /// Measures the offsets of the CPUs that this process may use, by two comparisons of every pair. Bounds of an earlier
    /// measurement are kept as long as they agree with the new ones, and with those that a patrol has `noticed`. Also returns
    /// whether they disagreed, because an offset has changed. Starts threads, and takes up to a second.
    pub fn measure(noticed: &[Pair]) -> Result<(Offsets, bool), Unsolvable> {
        if let Some(cpu) = last_possible_cpu().filter(|cpu| *cpu >= OFFSETS) {
            return Err(Unsolvable::OutOfRange(cpu));
        }
        if let Some(cpu) = first_misnumbered(cpus::allowed()) {
            return Err(Unsolvable::NotNumbered(cpu));
        }
        let first = warp::of_every_pair(TIMEOUTS, usize::MAX);
        pause(APART);
        let second = warp::of_every_pair(TIMEOUTS, usize::MAX);
        let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.learn(&second.cpus, noticed, [first.pairs, second.pairs].concat())
    }

    /// Measures the offsets for a start, and checks that they were the same a second before. Takes up to three seconds. The
    /// error names the drift, if there is one.
    pub fn measure_steady() -> Result<Offsets, Unsolvable> {
        let compare = || Counted::compare(TIMEOUTS, usize::MAX).ok_or(Unsolvable::NotCompared(0));
        let before = compare()?;
        pause(STEADY_FOR);
        let measured = Offsets::measure(&[]).and_then(|(offsets, _)| {
            let known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            offsets.check_steady(&before.warp.pairs, &known.0)?;
            Ok(offsets)
        });
        match measured {
            Err(Unsolvable::Inconsistent) => {
                let drifts = before.drifts_until(&compare()?);
                Err(Drift::largest(&drifts).map_or(Unsolvable::Inconsistent, |drift| Unsolvable::Drifts(*drift)))
            }
            measured => measured,
        }
    }

    /// Checks that the offsets of these CPUs can have been the same at two times.
    fn check_steady(&self, before: &[Pair], now: &[Pair]) -> Result<(), Unsolvable> {
        let cpus: Vec<usize> = self.of.iter().map(|offset| offset.cpu).collect();
        Offsets::solve(&cpus, &narrowest([before, now].concat())).map(drop)
    }

    /// Forgets the bounds of earlier measurements: firmware may have changed the counters, as it does at a suspend.
    pub fn forget() {
        KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).0.clear();
    }
}

/// Returns whether offsets can be measured here, and checked by the kernel's clock: the CPU has RDTSCP, and the kernel does
/// not read its own clock from the counter.
pub fn would_help() -> bool {
    CpuFeatures::of_this_cpu().rdtscp && KernelsClock::of_this_host() != KernelsClock::Counter
}

/// The bounds of the offsets in force, in the counters' own counts.
#[derive(Debug, Default)]
struct Known(Vec<Pair>);

static KNOWN: Mutex<Known> = Mutex::new(Known(Vec::new()));

impl Known {
    /// Returns the offsets of `cpus`, by the new bounds and the known ones, or by the new ones alone if the two disagree; and
    /// whether they disagree.
    fn learn(&mut self, cpus: &[usize], noticed: &[Pair], fresh: Vec<Pair>) -> Result<(Offsets, bool), Unsolvable> {
        let fresh = narrowest(fresh);
        let merged = narrowest([self.0.as_slice(), noticed, &fresh].concat());
        if let Ok(offsets) = Offsets::solve(cpus, &merged) {
            self.0 = merged;
            return Ok((offsets, false));
        }
        let offsets = Offsets::solve(cpus, &fresh)?;
        let has_changed = !self.0.is_empty();
        self.0 = fresh;
        Ok((offsets, has_changed))
    }
}

/// Returns the last CPU that this kernel could ever have (Documentation/admin-guide/cputopology.rst).
fn last_possible_cpu() -> Option<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?;
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

/// Returns a CPU on which RDTSCP returns another number than the kernel.
fn first_misnumbered(cpus: Vec<usize>) -> Option<usize> {
    let search = move || {
        let is_wrong = |cpu: &usize| cpus::run_on(*cpu).is_ok() && !is_numbered(*cpu);
        cpus.iter().find(|cpu| is_wrong(cpu)).copied()
    };
    // In a thread of its own, which this binds to one CPU after the other.
    std::thread::spawn(search).join().unwrap_or(Some(0))
}

fn is_numbered(cpu: usize) -> bool {
    cpu::read_counter_and_cpu().is_some_and(|(_, number)| number == cpu)
}

impl Warp {
    /// Returns offsets that explain this comparison.
    pub fn offsets(&self) -> Result<Offsets, Unsolvable> {
        Offsets::solve(&self.cpus, &self.pairs)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::solve::*;
    use super::*;

    fn pair(cpu: usize, other: usize, least_cycles: i64, most_cycles: i64) -> Pair {
        Pair {
            cpu,
            other,
            least_cycles,
            most_cycles,
        }
    }

    /// Returns the bounds that exchanges give, which take at least as many counts in either direction.
    fn measured(true_offsets: &[i64], there: impl Fn(usize, usize) -> i64) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for cpu in 0..true_offsets.len() {
            for other in cpu + 1..true_offsets.len() {
                let ahead = true_offsets[other] - true_offsets[cpu];
                pairs.push(pair(cpu, other, ahead - there(other, cpu), ahead + there(cpu, other)));
            }
        }
        pairs
    }

    /// Returns the least time that one of the measured messages seems to take.
    fn least_margin(offsets: &Offsets, pairs: &[Pair]) -> i64 {
        let of = |cpu| offsets.get(cpu).expect("an offset");
        let margins = pairs.iter().flat_map(|pair| {
            let ahead = of(pair.other) - of(pair.cpu);
            [ahead - pair.least_cycles, pair.most_cycles - ahead]
        });
        margins.min().expect("a pair")
    }

    #[test]
    fn a_cycle_that_adds_up_to_less_than_nothing_has_no_solution() {
        // 1 is ahead of 0 by 100, 2 of 1 by 100, and 0 of 2 as well.
        let pairs = [pair(0, 1, 90, 110), pair(1, 2, 90, 110), pair(2, 0, 90, 110)];
        assert_eq!(Offsets::solve(&[0, 1, 2], &pairs), Err(Unsolvable::Inconsistent));
        let touching = [pair(0, 1, 5, 5)];
        assert_eq!(Offsets::solve(&[0, 1], &touching), Err(Unsolvable::Inconsistent));
    }

    #[test]
    fn a_cpu_that_was_compared_with_none_is_named() {
        let pairs = [pair(3, 5, -9, 9)];
        assert_eq!(Offsets::solve(&[3, 5, 6], &pairs), Err(Unsolvable::NotCompared(6)));
    }

    #[test]
    fn what_a_page_cannot_hold_is_refused() {
        let far = 200 << 32;
        assert_eq!(
            Offsets::solve(&[0, 1], &[pair(0, 1, far, far + 100)]),
            Err(Unsolvable::OutOfRange(1))
        );
        assert_eq!(
            Offsets::solve(&[0, 512], &[pair(0, 512, -9, 9)]),
            Err(Unsolvable::OutOfRange(512))
        );
    }

    #[test]
    fn the_tightest_bounds_of_a_pair_count_whichever_cpu_asked() {
        let pairs = narrowest(vec![pair(0, 1, -100, 300), pair(1, 0, -200, 150)]);
        assert_eq!(pairs, [pair(0, 1, -100, 200)]);
    }

    #[test]
    fn a_message_twice_as_fast_as_its_pairs_fastest_proves_a_change() {
        // 60 counts there and back, but 400 and 500 to the third CPU, which is ahead by 1,000, and 90,000 once interrupted.
        let known = [
            pair(0, 1, -60, 60),
            pair(0, 2, 600, 1_500),
            pair(1, 2, -89_000, 1_500),
            pair(0, 3, -70, 60),
        ];
        let offsets = Offsets::solve(&[0, 1, 2, 3], &known).expect("a solution");
        let ahead = |cpu| offsets.get(cpu).expect("an offset");
        assert!((1_000..=1_060).contains(&ahead(2)), "{offsets:?}");
        let proof = |pair: Pair| offsets.check(pair).apart_cycles();
        let at = |cpu, other, less: i64| {
            let raw = known
                .iter()
                .find(|pair| (pair.cpu, pair.other) == (cpu, other))
                .expect("known");
            let pair = offsets.subtracted_from(*raw).expect("offsets");
            Pair {
                most_cycles: pair.most_cycles - less,
                least_cycles: pair.least_cycles - less,
                ..pair
            }
        };
        assert_eq!((proof(at(0, 1, 0)), proof(at(0, 1, 25))), (0, 0));
        assert!(proof(at(0, 1, 35)) > 0);
        assert!(proof(at(0, 1, -35).turned()) > 0, "whichever of the two asks");
        // Between nodes half of the time of a typical message is left.
        assert_eq!(proof(at(0, 2, 100)), 0);
        assert!(proof(at(0, 2, 480)) > 0);
        // What was interrupted at the measurement may well be faster now.
        assert_eq!(
            proof(Pair {
                least_cycles: -500,
                ..at(1, 2, 0)
            }),
            0
        );
        // A pair that was not compared has the margin.
        assert_eq!((proof(pair(2, 3, -50, 31)), proof(pair(2, 3, -50, 20))), (0, 9));
    }

    #[test]
    fn bounds_of_a_patrol_are_kept_if_they_agree() {
        let mut known = Known::default();
        let first = known
            .learn(&[0, 1], &[], vec![pair(0, 1, -90, 110)])
            .expect("a solution");
        assert_eq!((first.0.get(1), first.1), (Some(10), false));
        let noticed = [pair(0, 1, -100, 50)];
        let again = known
            .learn(&[0, 1], &noticed, vec![pair(0, 1, -95, 105)])
            .expect("a solution");
        assert_eq!((again.0.get(1), again.1), (Some(-20), false));
        let jumped = known
            .learn(&[0, 1], &noticed, vec![pair(0, 1, 905, 1_105)])
            .expect("a solution");
        assert_eq!((jumped.0.get(1), jumped.1), (Some(1_005), true));
        assert_eq!(known.0, [pair(0, 1, 905, 1_105)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        /// Simulated exchanges: of each direction, the fastest of some messages with noise, which may be far slower in one
        /// direction than in the other.
        #[test]
        fn no_measured_message_arrives_before_it_was_sent(
            truth in prop::collection::vec(-30_000_000_000_i64..30_000_000_000, 2..24),
            noise in prop::collection::vec(0_i64..2_000, 24 * 24),
            nodes in 1_usize..4,
        ) {
            let there = |from: usize, to: usize| {
                let across = if from % nodes == to % nodes { 60 } else { 400 };
                across + noise[from * 24 + to]
            };
            let pairs = measured(&truth, there);
            let cpus: Vec<usize> = (0..truth.len()).collect();
            let offsets = Offsets::solve(&cpus, &pairs).expect("the truth is a solution");
            prop_assert!(least_margin(&offsets, &pairs) >= offsets.margin_cycles as i64);
            // The truth's own margin is the fastest message; none is greater than the greatest.
            prop_assert!(offsets.margin_cycles as i64 + 2 >= 60);
        }
    }

    #[test]
    fn as_many_cpus_as_a_page_holds_are_solved_soon() {
        let truth: Vec<i64> = (0..OFFSETS as i64).map(|cpu| cpu * 7_919 % 1_000_003).collect();
        // As a tournament with few rounds leaves them: each CPU was compared with some others.
        let pairs: Vec<Pair> = measured(&truth, |from, to| 80 + ((from * 31 + to * 17) % 300) as i64)
            .into_iter()
            .filter(|pair| (pair.other - pair.cpu) % 8 == 1)
            .collect();
        let cpus: Vec<usize> = (0..OFFSETS).collect();
        let offsets = Offsets::solve(&cpus, &pairs).expect("a solution");
        assert!(least_margin(&offsets, &pairs) >= offsets.margin_cycles as i64);
    }

    #[test]
    fn the_cpus_of_this_host_have_their_numbers_and_no_offsets_to_speak_of() {
        let cpus = cpus::allowed();
        if cpu::read_counter_and_cpu().is_some() {
            assert_eq!(first_misnumbered(cpus.clone()), None);
        }
        let measured = (0..20).find_map(|_| Offsets::measure(&[]).ok());
        let Some((offsets, _)) = measured else {
            return crate::skip::skip("this CPU has no RDTSCP, or the CPUs are too busy to compare");
        };
        assert_eq!(offsets.of.len(), cpus.len());
        assert!(offsets.spread_cycles() < 2_000, "{offsets:?}");
        assert!(in_force().is_none());
    }
}
