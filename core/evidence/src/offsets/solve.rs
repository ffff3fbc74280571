//! Finds offsets that explain a comparison: a system of difference constraints.

use std::collections::BTreeMap;

use fastpath_page::layout::{OFFSETS, OffsetsCell};

use super::table::{Offset, Offsets};
use crate::drift::Drift;
use crate::pair::Pair;

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
}

/// Returns the tightest bounds of each pair.
pub(super) fn narrowest(pairs: Vec<Pair>) -> Vec<Pair> {
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
