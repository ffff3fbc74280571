//! Single samples of a read's cost, for callers that need their distribution.

use crate::cost::batch;
use crate::functions::{Functions, VdsoCall};
use crate::timer::Timer;
use fastpath_page::clocks::Clock;

/// Number of calls that are timed together: enough that the two counter reads around them weigh little, and few enough
/// that an interruption is still seen.
pub const CALLS_PER_SAMPLE: u32 = 16;

/// Returns `times` samples of the cost of each read, in nanoseconds. The reads alternate, so that a disturbance affects
/// all of them alike. Only for clocks that can be read here.
pub fn cost_samples(reads: &[(Functions, Clock)], times: u32) -> Vec<Vec<f64>> {
    let timer = Timer::start();
    let cost = |(functions, clock): &(Functions, Clock)| {
        batch(&timer, CALLS_PER_SAMPLE, |calls| {
            functions.repeat(VdsoCall::ClockGettime(*clock), calls);
        })
    };
    reads.iter().for_each(|read| {
        cost(read); // cold caches are not part of the cost
    });
    let mut samples = vec![Vec::new(); reads.len()];
    for _ in 0..times {
        for (samples, read) in samples.iter_mut().zip(reads) {
            samples.push(cost(read));
        }
    }
    let ns_per_tick = timer.ns_per_tick();
    samples.iter_mut().flatten().for_each(|ticks| *ticks *= ns_per_tick);
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_read_has_so_many_costs() {
        let (libc, raw) = (Functions::libc(), Functions::syscalls());
        let samples = cost_samples(&[(libc, Clock::MONOTONIC), (raw, Clock::REALTIME)], 10);
        assert_eq!(samples.iter().map(Vec::len).collect::<Vec<_>>(), [10, 10]);
        assert!(
            samples.iter().flatten().all(|ns| (1.0..1e8).contains(ns)),
            "{samples:?}"
        );
    }
}
