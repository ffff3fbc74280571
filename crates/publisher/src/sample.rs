//! Readings of this host's clocks, each between two reads of the counter.

use fastpath_clock::{Bracket, Sample, tightest};

use crate::counter;

/// Attempts per clock and sample. A good one is 85 cycles wide through a healthy vDSO, 370 through the system call; of five,
/// one has neither been interrupted nor met a cold cache.
const ATTEMPTS: usize = 5;
/// Attempts where a step has just happened and the difference of two clocks must be learnt from one sample.
const CAREFUL_ATTEMPTS: usize = 25;

fn bracket(clock: libc::clockid_t) -> Option<Bracket> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let before = counter::read();
    // SAFETY: `time` is a valid timespec.
    let answer = unsafe { libc::clock_gettime(clock, &mut time) };
    let after = counter::read();
    let time_ns = (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64);
    (answer == 0).then_some(Bracket { before, time_ns, after })
}

fn best(clock: libc::clockid_t, attempts: usize) -> Option<Bracket> {
    let mut brackets = Vec::with_capacity(attempts);
    for _ in 0..attempts {
        brackets.push(bracket(clock)?);
    }
    tightest(&brackets)
}

fn take(attempts: usize) -> Option<Sample> {
    Some(Sample {
        mono: best(libc::CLOCK_MONOTONIC, attempts)?,
        real: best(libc::CLOCK_REALTIME, attempts)?,
        raw: best(libc::CLOCK_MONOTONIC_RAW, attempts),
        boot: best(libc::CLOCK_BOOTTIME, attempts),
        tai: best(libc::CLOCK_TAI, attempts),
    })
}

/// One sample of all clocks.
pub fn sample() -> Option<Sample> {
    take(ATTEMPTS)
}

/// A sample with more attempts.
pub fn careful_sample() -> Option<Sample> {
    take(CAREFUL_ATTEMPTS)
}
