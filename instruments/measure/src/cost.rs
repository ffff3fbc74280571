//! Measures the cost of one call.

use crate::stats;
use crate::timer::Timer;
use std::time::Duration;

/// The effort spent on the measurement of one call.
#[derive(Clone, Copy)]
pub struct Effort {
    pub groups: u32,
    pub batches: u32,
    /// Target duration of a batch, which determines the number of calls in it.
    pub batch_time: Duration,
}

impl Effort {
    /// 35 batches of 15 us: half a millisecond a call, while a batch is long compared with the two counter reads around
    /// it and short compared with a scheduler's slice.
    pub const PROBE: Effort = Effort {
        groups: 5,
        batches: 7,
        batch_time: Duration::from_micros(15),
    };
    /// 6 batches of 4 us, so that all decisions of `run` fit in a millisecond.
    pub(crate) const QUICK: Effort = Effort {
        groups: 2,
        batches: 3,
        batch_time: Duration::from_micros(4),
    };
}

/// Returns the ticks per call: the least of the groups' medians. The median drops what interrupts add to a batch, the
/// minimum drops a group that ran beside a busy neighbour.
pub(crate) fn ticks_per_call(timer: &Timer, effort: Effort, repeat: impl Fn(u32)) -> f64 {
    let calls = calls_per_batch(timer, effort.batch_time, &repeat);
    let group = || {
        let mut batches: Vec<f64> = (0..effort.batches).map(|_| batch(timer, calls, &repeat)).collect();
        stats::median(&mut batches).unwrap_or(f64::INFINITY)
    };
    (0..effort.groups).map(|_| group()).fold(f64::INFINITY, f64::min)
}

/// Returns the ticks per call by three batches of a few calls, for a decision with a wide margin: takes a microsecond
/// where a call takes 30 ns, and 30 us where it takes one.
pub(crate) fn ticks_per_call_at_a_glance(timer: &Timer, repeat: impl Fn(u32)) -> f64 {
    const CALLS: u32 = 8;
    repeat(2); // cold caches and lazy binding are not part of the cost
    let mut batches: [f64; 3] = std::array::from_fn(|_| batch(timer, CALLS, &repeat));
    stats::median(&mut batches).unwrap_or(f64::INFINITY)
}

/// Returns the ticks per call in one batch.
#[inline(always)]
pub fn batch(timer: &Timer, calls: u32, repeat: impl Fn(u32)) -> f64 {
    let start = timer.ticks();
    repeat(calls);
    timer.ticks().wrapping_sub(start) as f64 / f64::from(calls)
}

/// Returns the number of calls that take `batch_time`. The timer measures them, because the kernel's clock may stand still
/// meanwhile (clocksource jiffies).
pub fn calls_per_batch(timer: &Timer, batch_time: Duration, repeat: impl Fn(u32)) -> u32 {
    const TRIAL: u32 = 8;
    repeat(TRIAL); // cold caches and lazy binding are not part of the cost
    let trial = |_| {
        let start = timer.ticks();
        repeat(TRIAL);
        timer.ticks().wrapping_sub(start)
    };
    let shortest_ns = (0..2).map(trial).min().unwrap_or_default().max(1) as f64 * timer.ns_per_tick();
    let calls = batch_time.as_nanos() as f64 * f64::from(TRIAL) / shortest_ns;
    calls.clamp(4.0, 4096.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_call_that_takes_a_microsecond_is_measured_at_one() {
        let timer = Timer::start();
        let spin = |calls| {
            for _ in 0..calls {
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(1) {}
            }
        };
        let ns = ticks_per_call(&timer, Effort::PROBE, spin) * timer.ns_per_tick();
        assert!((1000.0..3000.0).contains(&ns), "{ns} ns");
    }

    #[test]
    fn a_cheap_call_is_repeated_more_often_than_an_expensive_one() {
        let expensive = |calls| std::thread::sleep(Duration::from_micros(10) * calls);
        let timer = Timer::start();
        assert_eq!(calls_per_batch(&timer, Duration::from_micros(15), expensive), 4);
        assert!(calls_per_batch(&timer, Duration::from_micros(15), |_| ()) > 50);
    }
}
