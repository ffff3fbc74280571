//! Counters that tick at one rate from different values: how far each CPU's is ahead.
//!
//! An exchange between two CPUs bounds the difference of their offsets from both sides: a message cannot arrive before it
//! was sent. All bounds together are a system of difference constraints. It has a solution if no cycle of bounds adds up to
//! less than nothing, and shortest paths are one. Of all solutions, those are wanted that leave the greatest *margin* to
//! every bound: then a message that takes as long as the fastest one measured arrives that much later than it was sent, and
//! no faster one was ever seen. The margin is the least mean of a cycle's bounds.
//!
//! Offsets are measured where the CPU states that its counters have one rate, or the user vouches for them
//! (`--trust-counter`).

mod changes;
#[cfg(test)]
mod simulation;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

pub use changes::Changes;

use fastpath_isa::{CpuFeatures, cpu};
use fastpath_page::layout::{OFFSETS, OffsetsCell};
use serde::Serialize;

use crate::drift::Counted;
use crate::warp::{Pair, Timeouts, Warp};
use crate::{Drift, KernelsClock, counter, cpus, pause, warp};

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

/// How far the counter of one CPU is ahead of that of the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Offset {
    /// The CPU.
    pub cpu: usize,
    /// Its distance in counts; negative if it is behind.
    pub cycles: i64,
}

/// How far the counters of all CPUs are ahead of that of the first one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Offsets {
    /// One for each CPU that was compared, in the order of their numbers.
    pub of: Vec<Offset>,
    /// With these offsets, every message between two CPUs took so many counts or more.
    pub margin_cycles: u64,
    /// The bounds that were measured, less the offsets: how long the fastest messages of each pair took. Sorted by CPU.
    #[serde(skip)]
    fastest: Vec<Pair>,
    /// How long the fastest message of a pair takes, in one direction: the median.
    #[serde(skip)]
    typical_cycles: i64,
}

/// Reason why there are no offsets by which the CPUs' counters agree.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Unsolvable {
    /// A CPU was not compared with the others.
    #[error("CPU {0} could not be compared with the others")]
    NotCompared(usize),
    /// The bounds contradict each other: some counters tick at different rates, or jumped.
    #[error("no constant differences explain the measurements: some counters run at other rates, or jumped")]
    Inconsistent,
    /// The same, and the differences grew by this within a second.
    #[error("{0}, or has jumped; only constant differences can be subtracted")]
    Drifts(Drift),
    /// An offset, or a CPU's number, that a page cannot hold.
    #[error("CPU {0} has a number, or a counter, that is beyond what a page can hold")]
    OutOfRange(usize),
    /// The register that names the CPU, which is read together with the counter, does not.
    #[error("RDTSCP does not return the number of the CPU here (CPU {0})")]
    NotNumbered(usize),
}

/// A bound: the counter of `to` is ahead of that of `from` by `weight` counts at most.
#[derive(Debug, Clone, Copy)]
struct Bound {
    from: usize,
    to: usize,
    weight: i64,
}

impl Offsets {
    /// Returns the offsets of `cpus` that leave the greatest margin to the bounds of these pairs.
    pub(crate) fn solve(cpus: &[usize], pairs: &[Pair]) -> Result<Offsets, Unsolvable> {
        let index: BTreeMap<usize, usize> = cpus.iter().enumerate().map(|(index, cpu)| (*cpu, index)).collect();
        let of_pair = |pair: &Pair| {
            let (from, to) = (*index.get(&pair.cpu)?, *index.get(&pair.other)?);
            let (most, least) = (pair.most_cycles, pair.least_cycles.checked_neg()?);
            let back = Bound {
                from: to,
                to: from,
                weight: least,
            };
            Some([Bound { from, to, weight: most }, back])
        };
        let bounds: Vec<Bound> = pairs.iter().filter_map(of_pair).flatten().collect();
        if let Some(cpu) = first_unreachable(cpus.len(), &bounds) {
            return Err(Unsolvable::NotCompared(cpus[cpu]));
        }
        // A pair by itself is a cycle of two bounds; each longer cycle that contradicts a margin has a smaller mean.
        let widths = pairs
            .iter()
            .map(|pair| pair.most_cycles.saturating_sub(pair.least_cycles));
        let mut margin = widths.min().unwrap_or(0) / 2;
        let paths = loop {
            if margin <= 0 && cpus.len() > 1 {
                return Err(Unsolvable::Inconsistent);
            }
            match shortest_paths(cpus.len(), &bounds, margin) {
                Ok(paths) => break paths,
                Err(mean) => margin = mean.min(margin - 1),
            }
        };
        // The shortest paths from a CPU to all others and those back are the extreme solutions; the middle of two solutions
        // is one as well.
        let turned: Vec<Bound> = bounds
            .iter()
            .map(|bound| Bound {
                from: bound.to,
                to: bound.from,
                ..*bound
            })
            .collect();
        let back = shortest_paths(cpus.len(), &turned, margin)
            .unwrap_or_else(|_| paths.iter().map(|path| path.saturating_neg()).collect());
        let middle: Vec<i64> = paths
            .iter()
            .zip(&back)
            .map(|(to, from)| to.saturating_sub(*from).div_euclid(2))
            .collect();
        let first = middle.first().copied().unwrap_or(0);
        let of = cpus.iter().zip(&middle).map(|(cpu, middle)| Offset {
            cpu: *cpu,
            cycles: middle.saturating_sub(first),
        });
        let offsets = Offsets {
            of: of.collect(),
            // The middle was rounded.
            margin_cycles: (margin - 1).max(1).unsigned_abs(),
            fastest: Vec::new(),
            typical_cycles: 0,
        };
        let beyond = |offset: &&Offset| offset.cpu >= OFFSETS || !OffsetsCell::can_hold(offset.cycles);
        match offsets.of.iter().find(beyond) {
            Some(offset) => Err(Unsolvable::OutOfRange(offset.cpu)),
            None => Ok(offsets.with_bounds(pairs)),
        }
    }

    fn with_bounds(mut self, pairs: &[Pair]) -> Offsets {
        self.fastest = narrowest(pairs.iter().filter_map(|pair| self.subtracted_from(*pair)).collect());
        let either_way = |pair: &Pair| [pair.least_cycles.saturating_neg(), pair.most_cycles];
        let mut times: Vec<i64> = self.fastest.iter().flat_map(either_way).collect();
        times.sort_unstable();
        self.typical_cycles = times.get(times.len() / 2).copied().unwrap_or(0);
        self
    }

    /// Returns the bounds of a pair in counts of which the offsets are subtracted.
    fn subtracted_from(&self, pair: Pair) -> Option<Pair> {
        let ahead = self.ahead(pair)?;
        Some(pair.less(ahead, ahead))
    }

    /// Returns the bounds of a pair in the counters' own counts.
    pub(crate) fn added_to(&self, pair: Pair) -> Option<Pair> {
        let ahead = self.ahead(pair)?;
        Some(pair.less(-ahead, -ahead))
    }

    /// Returns how far the other CPU of a pair is ahead, in counts.
    fn ahead(&self, pair: Pair) -> Option<i64> {
        self.get(pair.other)?.checked_sub(self.get(pair.cpu)?)
    }

    /// Returns by how much a new comparison of two CPUs, in counts of which the offsets were subtracted, proves that their
    /// offsets have changed, as bounds that do not include 0. Otherwise returns the comparison itself.
    ///
    /// A message proves a change if it takes less than half of the fastest time known for its pair, and of that of most
    /// pairs: the offset has changed by the rest at least. Programs see time go back only after the whole margin is lost. (A
    /// pair whose threads were interrupted at each measurement seems slower than it is.)
    pub(crate) fn check(&self, pair: Pair) -> Pair {
        let (cpu, other) = (pair.cpu.min(pair.other), pair.cpu.max(pair.other));
        let known = self
            .fastest
            .binary_search_by_key(&(cpu, other), |pair| (pair.cpu, pair.other));
        let (back, there) = match known.map(|at| self.fastest[at]) {
            Ok(known) if known.cpu == pair.cpu => (-known.least_cycles, known.most_cycles),
            Ok(known) => (known.most_cycles, -known.least_cycles),
            // The two were not compared when the offsets were measured.
            Err(_) => (self.margin_cycles as i64, self.margin_cycles as i64),
        };
        let half = |cycles: i64| cycles.min(self.typical_cycles) / 2;
        let seen = pair.less(-half(back), half(there));
        match seen.apart_cycles() {
            0 => pair,
            _ => seen,
        }
    }

    /// Measures the offsets of the CPUs that this process may use, by two comparisons of every pair. Bounds of an earlier
    /// measurement are kept as long as they agree with the new ones, and with those that a patrol has `noticed`. Returns as
    /// well whether they did not: an offset has changed. Starts threads, and takes up to a second.
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

    /// Returns the offset of a CPU, in counts.
    pub fn get(&self, cpu: usize) -> Option<i64> {
        let at = self.of.binary_search_by_key(&cpu, |offset| offset.cpu).ok()?;
        Some(self.of[at].cycles)
    }

    /// Returns the offsets as a page stores them.
    pub fn table(&self) -> Vec<(usize, i64)> {
        self.of.iter().map(|offset| (offset.cpu, offset.cycles)).collect()
    }

    /// Returns by how many counts the two CPUs that are furthest apart differ.
    pub fn spread_cycles(&self) -> u64 {
        let cycles = || self.of.iter().map(|offset| offset.cycles);
        cycles().max().unwrap_or(0).abs_diff(cycles().min().unwrap_or(0))
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
    /// Returns the offsets of `cpus` by new bounds and, if they agree, those known; and whether they did not.
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

/// Returns the tightest bounds of each pair.
fn narrowest(pairs: Vec<Pair>) -> Vec<Pair> {
    let mut narrowest: BTreeMap<(usize, usize), Pair> = BTreeMap::new();
    for pair in pairs {
        let pair = match pair.cpu < pair.other {
            true => pair,
            false => pair.turned(),
        };
        let known = narrowest.entry((pair.cpu, pair.other)).or_insert(pair);
        known.least_cycles = known.least_cycles.max(pair.least_cycles);
        known.most_cycles = known.most_cycles.min(pair.most_cycles);
    }
    narrowest.into_values().collect()
}

/// Returns a CPU that no chain of bounds connects with the first.
fn first_unreachable(count: usize, bounds: &[Bound]) -> Option<usize> {
    let mut near = vec![Vec::new(); count];
    for bound in bounds {
        near[bound.from].push(bound.to);
    }
    let mut is_reached = vec![false; count];
    let mut open: Vec<usize> = (0..count.min(1)).collect();
    while let Some(at) = open.pop() {
        if !std::mem::replace(&mut is_reached[at], true) {
            open.extend(&near[at]);
        }
    }
    is_reached.iter().position(|is_reached| !is_reached)
}

/// Returns the length of the shortest path from the first CPU to each, where each bound is shorter by the margin (Bellman and
/// Ford). The error is the mean of a cycle that is shorter than nothing, without the margin, rounded down.
fn shortest_paths(count: usize, bounds: &[Bound], margin: i64) -> Result<Vec<i64>, i64> {
    const UNREACHED: i64 = i64::MAX;
    let mut paths = vec![UNREACHED; count];
    paths[..count.min(1)].fill(0);
    let mut last: Vec<Option<usize>> = vec![None; count];
    loop {
        let mut has_changed = false;
        for (index, bound) in bounds.iter().enumerate() {
            if paths[bound.from] == UNREACHED {
                continue;
            }
            let path = paths[bound.from].saturating_add(bound.weight).saturating_sub(margin);
            if path < paths[bound.to] {
                paths[bound.to] = path;
                last[bound.to] = Some(index);
                has_changed = true;
            }
        }
        if !has_changed {
            return Ok(paths);
        }
        // The last bounds of the paths are on a cycle only if that is shorter than nothing, and are after so many rounds as
        // there are CPUs; mostly much sooner.
        if let Some(mean) = mean_of_cycle(&last, bounds) {
            return Err(mean);
        }
    }
}

/// Returns the mean of the bounds of a cycle among the last bounds of each path, if there is one.
fn mean_of_cycle(last: &[Option<usize>], bounds: &[Bound]) -> Option<i64> {
    let mut seen_from = vec![None; last.len()];
    for start in 0..last.len() {
        let mut at = start;
        while seen_from[at].is_none() {
            seen_from[at] = Some(start);
            match last[at] {
                Some(index) => at = bounds[index].from,
                None => break,
            }
        }
        if seen_from[at] != Some(start) || last[at].is_none() {
            continue;
        }
        let (end, mut sum, mut length) = (at, 0_i64, 0_i64);
        while let Some(index) = last[at] {
            sum = sum.saturating_add(bounds[index].weight);
            length += 1;
            at = bounds[index].from;
            if at == end {
                return Some(sum.div_euclid(length));
            }
        }
    }
    None
}

/// Returns the last CPU that this kernel could ever have (Documentation/admin-guide/cputopology.rst).
fn last_possible_cpu() -> Option<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?;
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

/// Returns a CPU on which RDTSCP returns another number than the kernel.
fn first_misnumbered(cpus: Vec<usize>) -> Option<usize> {
    let visit = move || {
        let is_wrong = |cpu: &usize| cpus::run_on(*cpu).is_ok() && !is_numbered(*cpu);
        cpus.iter().find(|cpu| is_wrong(cpu)).copied()
    };
    // In a thread of its own, which this binds to one CPU after the other.
    std::thread::spawn(visit).join().unwrap_or(Some(0))
}

fn is_numbered(cpu: usize) -> bool {
    cpu::read_counter_and_cpu().is_some_and(|(_, number)| number == cpu)
}

/// The offsets that [`crate::counter::read`] subtracts. They are never freed: a thread may be using them.
static IN_FORCE: AtomicPtr<Offsets> = AtomicPtr::new(std::ptr::null_mut());
/// How often they have changed.
static GENERATION: AtomicUsize = AtomicUsize::new(0);

/// Returns the offsets in force in this process; `None`: counters are read as they are.
#[inline]
pub fn in_force() -> Option<&'static Offsets> {
    // SAFETY: null, or leaked by `put_in_force` and never changed.
    unsafe { IN_FORCE.load(Ordering::Acquire).as_ref() }
}

/// Returns a number that changes with the offsets in force.
pub fn generation() -> usize {
    GENERATION.load(Ordering::Acquire)
}

/// From now on, this process's reads of the counter are in the counts of the first CPU of `offsets`.
pub fn put_in_force(offsets: Offsets) {
    IN_FORCE.store(Box::leak(Box::new(offsets)), Ordering::Release);
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// Reads the counter in the counts of the first CPU.
#[cold]
pub(crate) fn read(offsets: &Offsets) -> u64 {
    loop {
        if let Some(count) = counter::read_less(|cpu| offsets.get(cpu)) {
            return count;
        }
        // A CPU that has come since: this thread has nothing to do there.
        let known: Vec<usize> = offsets.of.iter().map(|offset| offset.cpu).collect();
        if cpus::run_on_any(&known).is_err() {
            std::thread::yield_now();
        }
    }
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
        // As a tournament with few rounds leaves them: each CPU met some others.
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
