//! Prices one by one, for who wants their distribution.

use crate::clocks::Clock;
use crate::functions::{Call, Functions};
use crate::price::batch;
use crate::timer::Timer;

/// Calls that are timed together: the two counter reads around them then weigh little, and an interruption is still seen.
pub const CALLS_PER_SAMPLE: u32 = 16;

/// What a read of each clock by these functions costs in nanoseconds, so many times, in turns: what disturbs one disturbs its
/// neighbours too. Only for clocks that can be read here.
pub fn price_samples(reads: &[(Functions, Clock)], times: u32) -> Vec<Vec<f64>> {
    let timer = Timer::start();
    let price = |(functions, clock): &(Functions, Clock)| {
        batch(&timer, CALLS_PER_SAMPLE, |calls| {
            functions.repeat(Call::ClockGettime(*clock), calls);
        })
    };
    reads.iter().for_each(|read| {
        price(read); // cold caches are no part of a price
    });
    let mut samples = vec![Vec::new(); reads.len()];
    for _ in 0..times {
        for (samples, read) in samples.iter_mut().zip(reads) {
            samples.push(price(read));
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
    fn every_read_has_so_many_prices() {
        let (libc, raw) = (Functions::libc(), Functions::syscalls());
        let samples = price_samples(&[(libc, Clock::MONOTONIC), (raw, Clock::REALTIME)], 10);
        assert_eq!(samples.iter().map(Vec::len).collect::<Vec<_>>(), [10, 10]);
        assert!(
            samples.iter().flatten().all(|ns| (1.0..1e8).contains(ns)),
            "{samples:?}"
        );
    }
}
