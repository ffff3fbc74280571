//! Measures the cost of a call, beside that of its system call and of a counter read.

use crate::counter;
use crate::functions::{Functions, VdsoCall};
use crate::stats::median;
use crate::timer::Timer;
use crate::verdict::costs_too_much;
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

/// Costs of a call by libc, of its system call and of an ordered read of the counter, in ticks or in nanoseconds. They
/// are measured alternately, so that a disturbance affects all of them alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub call: f64,
    /// `None` if a filter forbids it.
    pub syscall: Option<f64>,
    /// `None` if this process may not read the counter.
    pub counter: Option<f64>,
    /// Cost of a call in counter reads.
    pub to_counter: Option<f64>,
    /// Cost of a call in system calls.
    pub to_syscall: Option<f64>,
}

impl Cost {
    /// Measures a call, in ticks.
    pub(crate) fn measure(timer: &Timer, effort: Effort, call: VdsoCall, syscall_works: bool) -> Cost {
        let by_libc = |n| Functions::libc().repeat(call, n);
        let by_syscall = |n| Functions::syscalls().repeat(call, n);
        let calls = calls_per_batch(timer, effort.batch_time, by_libc);
        let system_calls = syscall_works.then(|| calls_per_batch(timer, effort.batch_time, by_syscall));
        let reads = timer
            .is_counter()
            .then(|| calls_per_batch(timer, effort.batch_time, counter::repeat));
        let round = |_| {
            let call = batch(timer, calls, by_libc);
            let syscall = system_calls.map(|n| batch(timer, n, by_syscall));
            let counter = reads.map(|n| batch(timer, n, counter::repeat));
            Cost {
                call,
                syscall,
                counter,
                to_counter: counter.map(|counter| call / counter),
                to_syscall: syscall.map(|syscall| call / syscall),
            }
        };
        let group = || {
            let rounds: Vec<Cost> = (0..effort.batches).map(round).collect();
            let middle = |of: fn(&Cost) -> Option<f64>| median(&mut rounds.iter().filter_map(of).collect::<Vec<_>>());
            Cost {
                call: middle(|round| Some(round.call)).unwrap_or(f64::INFINITY),
                syscall: middle(|round| round.syscall),
                counter: middle(|round| round.counter),
                to_counter: middle(|round| round.to_counter),
                to_syscall: middle(|round| round.to_syscall),
            }
        };
        (1..effort.groups).fold(group(), |best, _| best.least(group()))
    }

    /// Measures a call and its system call by three batches of a few calls, in ticks, for a decision with a wide margin:
    /// takes two microseconds where a call takes 30 ns, and 60 us where it takes one.
    pub(crate) fn at_a_glance(timer: &Timer, call: VdsoCall) -> Cost {
        const CALLS: u32 = 8;
        let glance = |functions: Functions| {
            functions.repeat(call, 2); // cold caches and lazy binding are not part of the cost
            let mut batches: [f64; 3] =
                std::array::from_fn(|_| batch(timer, CALLS, |calls| functions.repeat(call, calls)));
            median(&mut batches).unwrap_or(f64::INFINITY)
        };
        Cost {
            call: glance(Functions::libc()),
            syscall: Some(glance(Functions::syscalls())),
            counter: None,
            to_counter: None,
            to_syscall: None,
        }
    }

    /// Returns the least of each value of two measurements: noise makes a call look expensive, but never cheap.
    pub(crate) fn least(self, other: Cost) -> Cost {
        Cost {
            call: self.call.min(other.call),
            syscall: least(self.syscall, other.syscall),
            counter: least(self.counter, other.counter),
            to_counter: least(self.to_counter, other.to_counter),
            to_syscall: least(self.to_syscall, other.to_syscall),
        }
    }

    /// Returns the cost of a call while a counter read costs the least that was measured. If this is below the measured
    /// cost, the machine was busy during the measurement, or its CPU slow.
    pub(crate) fn scaled(self) -> Cost {
        let scaled = self
            .to_counter
            .zip(self.counter)
            .map(|(ratio, counter)| ratio * counter);
        Cost {
            call: scaled.map_or(self.call, |scaled| scaled.min(self.call)),
            ..self
        }
    }

    /// Returns whether the call costs more than a vDSO would.
    pub(crate) fn is_too_much(self) -> bool {
        costs_too_much(self.call, self.syscall, self.counter)
    }

    /// Returns the same with a call that costs as much more.
    pub(crate) fn times(self, factor: f64) -> Cost {
        Cost {
            call: self.call * factor,
            ..self
        }
    }

    pub(crate) fn in_ns(self, ns_per_tick: f64) -> Cost {
        let ns = |ticks: f64| ticks * ns_per_tick;
        Cost {
            call: ns(self.call),
            syscall: self.syscall.map(ns),
            counter: self.counter.map(ns),
            ..self
        }
    }

    #[cfg(test)]
    pub(crate) fn sample(call: f64, counter: f64, syscall: Option<f64>) -> Cost {
        Cost {
            call,
            syscall,
            counter: Some(counter),
            to_counter: Some(call / counter),
            to_syscall: syscall.map(|syscall| call / syscall),
        }
    }
}

/// Returns the lesser of two values, where there are both.
pub(crate) fn least(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.zip(b).map(|(a, b)| a.min(b)).or(a).or(b)
}

/// Measures again, after each pause, each item that is not settled: other programs on a busy machine evict a call from
/// the caches, so one measurement does not decide. Returns the number of pauses. `is_settled` gets the number of pauses
/// before it.
pub(crate) fn until_settled<T>(
    items: &mut [T],
    pauses: &[Duration],
    is_settled: impl Fn(&T, usize) -> bool,
    mut again: impl FnMut(&mut T),
) -> usize {
    for (count, pause) in pauses.iter().enumerate() {
        let open: Vec<&mut T> = items.iter_mut().filter(|item| !is_settled(item, count)).collect();
        if open.is_empty() {
            return count;
        }
        // A filter may kill for the call.
        if !pause.is_zero() {
            fastpath_evidence::pause(*pause);
        }
        open.into_iter().for_each(&mut again);
    }
    pauses.len()
}

/// Returns the ticks that one bare ordered read of the counter takes; `None` where it may not be read.
pub(crate) fn ticks_per_read(timer: &Timer, effort: Effort) -> Option<f64> {
    timer
        .is_counter()
        .then(|| ticks_per_call(timer, effort, counter::repeat))
}

/// Returns the ticks per call: the least of the groups' medians. The median drops what interrupts add to a batch, the
/// minimum drops a group that ran beside a busy neighbour.
pub(crate) fn ticks_per_call(timer: &Timer, effort: Effort, repeat: impl Fn(u32)) -> f64 {
    let calls = calls_per_batch(timer, effort.batch_time, &repeat);
    let group = || {
        let mut batches: Vec<f64> = (0..effort.batches).map(|_| batch(timer, calls, &repeat)).collect();
        median(&mut batches).unwrap_or(f64::INFINITY)
    };
    (0..effort.groups).map(|_| group()).fold(f64::INFINITY, f64::min)
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
    use crate::Clock;
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

    #[test]
    fn a_counter_read_costs_less_than_a_system_call() {
        let timer = Timer::start();
        let Some(counter) = ticks_per_read(&timer, Effort::PROBE) else {
            crate::skip::skip("this process may not read the counter");
            return;
        };
        let raw = Functions::syscalls();
        let syscall = ticks_per_call(&timer, Effort::PROBE, |n| {
            raw.repeat(VdsoCall::ClockGettime(Clock::MONOTONIC), n)
        });
        assert!(
            counter < syscall,
            "{counter} ticks for the counter, {syscall} for the system call"
        );
    }

    #[test]
    fn a_call_on_a_busy_machine_is_scaled_by_its_cost_of_the_counter() {
        let busy = Cost::sample(60.0, 45.0, Some(400.0));
        let quiet = Cost::sample(22.0, 15.0, Some(140.0));
        let best = busy.least(quiet).scaled();
        assert!((best.call - 20.0).abs() < 0.1, "{best:?}");
        assert_eq!(best.counter, Some(15.0));
        assert!((best.to_syscall.unwrap() - 0.15).abs() < 0.01, "{best:?}");
    }

    #[test]
    fn a_system_call_does_not_become_cheap_by_scaling() {
        let slow = Cost::sample(280.0, 15.0, Some(250.0));
        let least = slow.least(Cost::sample(290.0, 16.0, Some(260.0)));
        assert_eq!(least.scaled().call.round(), 272.0);
    }

    #[test]
    fn what_is_doubtful_is_measured_again_and_nothing_else() {
        let mut costs = [90.0, 20.0, 140.0];
        let pauses = [Duration::ZERO; 4];
        let again = |cost: &mut f64| *cost -= 40.0;
        assert_eq!(until_settled(&mut costs, &pauses, |cost, _| *cost < 70.0, again), 2);
        assert_eq!(costs, [50.0, 20.0, 60.0]);
        assert_eq!(until_settled(&mut costs, &pauses, |_, count| count > 2, again), 3);
        assert_eq!(until_settled(&mut costs, &pauses, |_, _| false, again), 4);
    }
}
