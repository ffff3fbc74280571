//! Readings of a host's clocks, each between two reads of the counter.

use fastpath_clock::{Bracket, Sample};
use fastpath_evidence::counter;

/// Number of attempts per clock and sample. A good one is 85 cycles wide through a healthy vDSO, 370 through the system
/// call; of five, one is neither interrupted nor meets a cold cache.
const ATTEMPTS: usize = 5;
/// Number of attempts after a step, when the difference of two clocks must be measured in one sample.
const CAREFUL_ATTEMPTS: usize = 25;

/// A source of time.
pub trait Source {
    /// Reads the counter: after all that precedes it in the program, before all that follows it.
    fn counter(&self) -> u64;
    /// Returns the time of a clock, in nanoseconds since its epoch; `None` if there is no such clock.
    fn clock(&self, id: libc::clockid_t) -> Option<u64>;
}

/// The CPU's counter and this process's clock_gettime(2).
#[derive(Clone, Copy, Debug, Default)]
pub struct ThisHost;

impl Source for ThisHost {
    fn counter(&self) -> u64 {
        counter::read()
    }

    fn clock(&self, id: libc::clockid_t) -> Option<u64> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for the write.
        let answer = unsafe { libc::clock_gettime(id, &mut time) };
        (answer == 0).then_some(
            (time.tv_sec as u64)
                .wrapping_mul(1_000_000_000)
                .wrapping_add(time.tv_nsec as u64),
        )
    }
}

/// Reads a clock once.
pub fn bracket(source: &impl Source, clock: libc::clockid_t) -> Option<Bracket> {
    let before = source.counter();
    let time_ns = source.clock(clock)?;
    let after = source.counter();
    Some(Bracket { before, time_ns, after })
}

/// Returns the narrowest bracket of some attempts, which says most precisely when its clock was read. The wide ones
/// were interrupted.
fn best(source: &impl Source, clock: libc::clockid_t, attempts: usize) -> Option<Bracket> {
    let mut best = bracket(source, clock)?;
    for _ in 1..attempts {
        let next = bracket(source, clock)?;
        if next.width_cycles() < best.width_cycles() {
            best = next;
        }
    }
    Some(best)
}

fn take(source: &impl Source, attempts: usize) -> Option<Sample> {
    Some(Sample {
        mono: best(source, libc::CLOCK_MONOTONIC, attempts)?,
        real: best(source, libc::CLOCK_REALTIME, attempts)?,
        raw: best(source, libc::CLOCK_MONOTONIC_RAW, attempts),
        boot: best(source, libc::CLOCK_BOOTTIME, attempts),
        tai: best(source, libc::CLOCK_TAI, attempts),
        ntp: None,
    })
}

/// Takes one sample of all clocks; `None` if MONOTONIC or REALTIME cannot be read.
pub fn sample(source: &impl Source) -> Option<Sample> {
    take(source, ATTEMPTS)
}

/// Takes a sample with more attempts, for the moment after a step.
pub fn careful_sample(source: &impl Source) -> Option<Sample> {
    take(source, CAREFUL_ATTEMPTS)
}
