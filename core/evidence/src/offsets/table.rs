//! The offsets in force: how far each CPU's counter is ahead.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use fastpath_isa::cpu;
use serde::Serialize;

use crate::cpus;
use crate::pair::Pair;

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
    pub(super) fastest: Vec<Pair>,
    /// How long the fastest message of a pair takes, in one direction: the median.
    #[serde(skip)]
    pub(super) typical_cycles: i64,
}

impl Offsets {
    /// Returns the bounds of a pair in counts of which the offsets are subtracted.
    pub(super) fn subtracted_from(&self, pair: Pair) -> Option<Pair> {
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

/// Reads the counter less the offset of its CPU; `None` if that has none.
pub(crate) fn read_less(offset_of: impl Fn(usize) -> Option<i64>) -> Option<u64> {
    let (counter, cpu) = cpu::read_counter_and_cpu()?;
    Some(counter.wrapping_sub(offset_of(cpu)? as u64))
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
        if let Some(count) = read_less(|cpu| offsets.get(cpu)) {
            return count;
        }
        // A CPU that has come since: this thread has nothing to do there.
        let known: Vec<usize> = offsets.of.iter().map(|offset| offset.cpu).collect();
        if cpus::run_on_any(&known).is_err() {
            std::thread::yield_now();
        }
    }
}
