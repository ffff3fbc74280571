//! Comparison of the CPUs' counters: every pair, at a start.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::exchange::{self, Effort, Pairing};
use crate::pair::Pair;
use crate::{counter, cpus};

/// Timeouts of a comparison. Idle CPUs take about 50 us a round, and there are as many rounds as CPUs; the rest is for
/// CPUs that are busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Timeout for all pairs.
    pub in_all: Duration,
    /// Timeout for a pair. Virtual CPUs that a busy host runs in turn do run at once now and then.
    pub for_a_pair: Duration,
    /// Timeout for one answer. A scheduler's slice is 3 ms, and there can be many in a queue.
    pub for_an_answer: Duration,
}

/// Number of exchanges of a pair: 20 us on idle CPUs.
const EXCHANGES: u64 = 128;
/// Most rounds of a start (2 MiB of memory for 128 CPUs). On hosts with more CPUs, each is compared with so many others.
pub(crate) const MOST_ROUNDS: usize = 128;

/// A CPU that could not be compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeftOut {
    /// Its number.
    pub cpu: usize,
    /// The reason.
    pub why: String,
}

/// A pair that was not compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Missed {
    /// One of the two CPUs.
    pub cpu: usize,
    /// The other CPU.
    pub other: usize,
    /// The reason.
    pub why: String,
}

/// Result of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Warp {
    /// CPUs that this process may use (sched_getaffinity(2)). Others are not compared.
    pub cpus: Vec<usize>,
    /// The pairs that were compared.
    pub pairs: Vec<Pair>,
    /// The pairs that should have been compared and were not.
    pub missed: Vec<Missed>,
    /// The CPU that all others were compared with, if there was one: two others can then be apart by the sum of their
    /// bounds.
    pub hub: Option<usize>,
    /// CPUs that could not be compared with any.
    pub left_out: Vec<LeftOut>,
    /// Duration, in microseconds.
    pub took_us: u64,
}

impl Warp {
    /// Returns the pair with the largest certain distance.
    pub fn furthest_apart(&self) -> Option<&Pair> {
        let apart = self.pairs.iter().filter(|pair| pair.apart_cycles() > 0);
        apart.max_by_key(|pair| pair.apart_cycles())
    }

    /// Returns the bound on the distance of any two CPUs that were compared, in counts: a smaller warp can have been
    /// missed. `None` if none were compared.
    pub fn within_cycles(&self) -> Option<u64> {
        let within = |pair: &Pair| pair.within_cycles();
        let widest = self.pairs.iter().map(within).max()?;
        if self.hub.is_none() {
            return Some(widest);
        }
        let mut all: Vec<_> = self.pairs.iter().map(within).collect();
        all.sort_unstable();
        Some(all.iter().rev().take(2).fold(0, |sum, each| sum.saturating_add(*each)))
    }

    /// Returns how many pairs there are to compare.
    pub fn pairs_in_all(&self) -> usize {
        self.cpus.len() * self.cpus.len().saturating_sub(1) / 2
    }

    /// Makes the result of the `planned` pairings.
    pub(crate) fn from_pairs(
        cpus: Vec<usize>,
        planned: &[(usize, usize)],
        pairs: Vec<Pair>,
        obstacles: &[LeftOut],
        begun: Instant,
    ) -> Warp {
        let known = |cpu: usize| obstacles.iter().find(|obstacle| obstacle.cpu == cpu);
        let why = |cpu: usize| known(cpu).map_or(TOO_BUSY, |obstacle| &obstacle.why).to_owned();
        let answered: BTreeSet<usize> = pairs.iter().flat_map(|pair| [pair.cpu, pair.other]).collect();
        let alone = cpus.iter().filter(|cpu| cpus.len() > 1 && !answered.contains(cpu));
        let left_out = alone
            .map(|cpu| LeftOut {
                cpu: *cpu,
                why: why(*cpu),
            })
            .collect();
        let compared: BTreeSet<_> = pairs.iter().map(|pair| (pair.cpu, pair.other)).collect();
        let missed = planned.iter().filter(|pair| !compared.contains(pair));
        let missed = missed
            .map(|&(cpu, other)| Missed {
                cpu,
                other,
                why: why(if known(cpu).is_some() { cpu } else { other }),
            })
            .collect();
        Warp {
            left_out,
            missed,
            cpus,
            pairs,
            hub: None,
            took_us: begun.elapsed().as_micros() as u64,
        }
    }
}

const TOO_BUSY: &str = "too busy to answer in time";

/// Compares every pair, within the time limits, by a round-robin tournament. In each round all CPUs work, two by two,
/// and after the last each has been compared with every other, unless there are more than `most_rounds`.
pub(crate) fn of_every_pair(timeouts: Timeouts, most_rounds: usize) -> Warp {
    let begun = Instant::now();
    let cpus = cpus::allowed();
    if cpus.len() < 2 {
        return Warp::from_pairs(cpus, &[], Vec::new(), &[], begun);
    }
    let slots = cpus.len().next_multiple_of(2);
    let rounds = (slots - 1).min(most_rounds);
    let pairings: Vec<Pairing> = (0..rounds * slots).map(|_| Pairing::default()).collect();
    let gone: Vec<AtomicBool> = (0..slots).map(|_| AtomicBool::new(false)).collect();
    let obstacles = Mutex::new(Vec::new());
    let is_out_of_play = |slot: usize, why: String| {
        if let Ok(mut obstacles) = obstacles.lock() {
            obstacles.push(LeftOut { cpu: cpus[slot], why });
        }
    };
    let effort = || {
        let left = timeouts.in_all.saturating_sub(begun.elapsed());
        (!left.is_zero()).then_some(Effort {
            exchanges: EXCHANGES,
            timeout: timeouts.for_an_answer.min(left),
            limit: timeouts.for_a_pair.min(left),
        })
    };
    let play = |slot: usize| {
        let mut pairs = Vec::new();
        let bound = cpus::run_on(cpus[slot]);
        for round in 0..rounds {
            let partner = partner(slot, round, slots);
            if partner >= cpus.len() {
                continue;
            }
            let pairing = &pairings[round * slots + slot.min(partner)];
            let effort = effort().filter(|_| bound.is_ok() && !gone[partner].load(Ordering::Acquire));
            let Some(effort) = effort else {
                // The partner must not wait.
                exchange::leave(pairing);
                continue;
            };
            if slot < partner {
                let bounds = exchange::ask(pairing, &effort, counter::read_raw);
                pairs.extend(bounds.map(|(least_cycles, most_cycles)| Pair {
                    cpu: cpus[slot],
                    other: cpus[partner],
                    least_cycles,
                    most_cycles,
                }));
            } else {
                exchange::answer(pairing, &effort, counter::read_raw);
            }
        }
        if let Err(error) = bound {
            is_out_of_play(slot, format!("sched_setaffinity: {error}"));
        }
        pairs
    };
    let pairs = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (slot, gone) in gone.iter().enumerate().take(cpus.len()) {
            let play = &play;
            match small_thread().spawn_scoped(scope, move || play(slot)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    gone.store(true, Ordering::Release);
                    is_out_of_play(slot, format!("no thread could be started: {error}"));
                }
            }
        }
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap_or_default())
            .collect()
    });
    let (planned, obstacles) = (pairs_of(&cpus, rounds), obstacles.into_inner().unwrap_or_default());
    let mut warp = Warp::from_pairs(cpus, &planned, pairs, &obstacles, begun);
    if planned.len() < warp.pairs_in_all() {
        warp.missed.extend(beyond_memory(&warp.cpus, &planned));
    }
    warp
}

/// Returns the pairs of so many rounds.
pub(crate) fn pairs_of(cpus: &[usize], rounds: usize) -> Vec<(usize, usize)> {
    let slots = cpus.len().next_multiple_of(2);
    let in_round = |round| {
        let pairs = (0..cpus.len()).map(move |slot| (slot, partner(slot, round, slots)));
        pairs.filter(|(slot, partner)| slot < partner && *partner < cpus.len())
    };
    let all = (0..rounds).flat_map(in_round);
    all.map(|(slot, partner)| (cpus[slot], cpus[partner])).collect()
}

/// Returns the pairs for which there are no rounds.
fn beyond_memory(cpus: &[usize], planned: &[(usize, usize)]) -> Vec<Missed> {
    let planned: BTreeSet<_> = planned.iter().collect();
    let every = pairs_of(cpus, cpus.len().next_multiple_of(2) - 1);
    let beyond = every.into_iter().filter(|pair| !planned.contains(pair));
    let why = format!(
        "with {} CPUs, each is compared with {MOST_ROUNDS} others only",
        cpus.len()
    );
    beyond
        .map(|(cpu, other)| Missed {
            cpu,
            other,
            why: why.clone(),
        })
        .collect()
}

/// Returns the partner of a slot in a round, by the circle method: the last slot stays and the others move on by one.
fn partner(slot: usize, round: usize, slots: usize) -> usize {
    let circle = slots - 1;
    if slot == circle {
        // This slot would be paired with itself: 2 s = round (mod circle), and circle is odd.
        return (round * (circle + 1) / 2) % circle;
    }
    let other = (round + circle - slot) % circle;
    if other == slot { circle } else { other }
}

pub(crate) fn small_thread() -> thread::Builder {
    thread::Builder::new().name("fastpath-warp".into()).stack_size(64 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn pair(other: usize, least_cycles: i64, most_cycles: i64) -> Pair {
        Pair {
            cpu: 0,
            other,
            least_cycles,
            most_cycles,
        }
    }

    #[test]
    fn counters_are_apart_only_where_the_bounds_leave_no_doubt() {
        assert_eq!(pair(1, -80, 90).apart_cycles(), 0);
        assert_eq!(pair(1, 0, 90).apart_cycles(), 0);
        assert_eq!(pair(1, 500, 700).apart_cycles(), 500);
        assert_eq!(pair(1, -700, -500).apart_cycles(), 500);
        let warp = Warp {
            pairs: vec![pair(1, -1, 1), pair(2, 5, 9), pair(3, -900, -800)],
            ..Warp::default()
        };
        assert_eq!(warp.furthest_apart(), Some(&pair(3, -900, -800)));
    }

    #[test]
    fn bounds_add_up_if_two_met_a_third_only() {
        let mut warp = Warp {
            pairs: vec![pair(1, -80, 90), pair(2, -120, 70), pair(3, -30, 30)],
            ..Warp::default()
        };
        assert_eq!(warp.within_cycles(), Some(120));
        warp.hub = Some(0);
        assert_eq!(warp.within_cycles(), Some(210));
        assert_eq!(Warp::default().within_cycles(), None);
    }

    #[test]
    fn every_cpu_is_compared_with_every_other_exactly_once() {
        for slots in [2, 4, 6, 8, 64, 130] {
            let mut compared = BTreeSet::new();
            for round in 0..slots - 1 {
                for slot in 0..slots {
                    let other = partner(slot, round, slots);
                    assert!(other != slot && other < slots, "{slot} in round {round} of {slots}");
                    assert_eq!(partner(other, round, slots), slot, "round {round} of {slots}");
                    if slot < other {
                        assert!(compared.insert((slot, other)), "{slot} and {other} twice");
                    }
                }
            }
            assert_eq!(compared.len(), slots * (slots - 1) / 2);
        }
    }

    #[test]
    fn no_time_leaves_every_cpu_out_and_says_so() {
        let none = Timeouts {
            in_all: Duration::ZERO,
            for_a_pair: Duration::from_millis(500),
            for_an_answer: Duration::from_millis(100),
        };
        let warp = of_every_pair(none, MOST_ROUNDS);
        if warp.cpus.len() > 1 {
            assert_eq!(warp.left_out.len(), warp.cpus.len());
            assert_eq!(warp.missed.len(), warp.pairs_in_all());
            assert_eq!(warp.missed[0].why, TOO_BUSY);
            assert_eq!(warp.within_cycles(), None);
        }
    }

    #[test]
    fn a_pair_that_was_not_compared_is_named_with_its_reason() {
        let obstacles = [LeftOut {
            cpu: 2,
            why: "sched_setaffinity: EPERM".to_owned(),
        }];
        let planned = [(0, 1), (0, 2), (1, 2)];
        let warp = Warp::from_pairs(
            vec![0, 1, 2],
            &planned,
            vec![pair(1, -9, 9)],
            &obstacles,
            Instant::now(),
        );
        assert_eq!(warp.left_out, obstacles);
        let missed: Vec<_> = warp
            .missed
            .iter()
            .map(|pair| (pair.cpu, pair.other, pair.why.as_str()))
            .collect();
        assert_eq!(
            missed,
            [(0, 2, "sched_setaffinity: EPERM"), (1, 2, "sched_setaffinity: EPERM")]
        );
    }

    #[test]
    fn with_more_cpus_than_there_are_rounds_for_the_rest_is_named() {
        let cpus: Vec<usize> = (0..200).collect();
        let planned = pairs_of(&cpus, MOST_ROUNDS);
        let beyond = beyond_memory(&cpus, &planned);
        assert_eq!(planned.len() + beyond.len(), 200 * 199 / 2);
        assert!(beyond[0].why.contains("200 CPUs"), "{:?}", beyond[0]);
        assert_eq!(pairs_of(&cpus[..5], 5).len(), 10);
    }
}
