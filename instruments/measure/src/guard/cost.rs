//! Measures a call, the counter and a system call alternately.

use crate::clocks::Clock;
use crate::cost::{Effort, batch, calls_per_batch};
use crate::counter;
use crate::functions::{Call, Functions};
use crate::stats::median;
use crate::timer::Timer;

/// Costs in ticks or in nanoseconds, and their ratios.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// Cost of a call, scaled to the least cost of a counter read.
    pub call: f64,
    /// Cost of an ordered read of the counter.
    pub counter: f64,
    /// Cost of a call in counter reads.
    pub to_counter: f64,
    /// Cost of a call in system calls.
    pub to_syscall: Option<f64>,
    /// Cost of a call as it was measured.
    measured: f64,
}

impl Cost {
    /// Measures a call, in ticks. Leaves out the system call that it is compared with if a filter forbids it.
    pub(super) fn measure(timer: &Timer, clock: Clock, syscall_works: bool) -> Cost {
        const EFFORT: Effort = Effort::PROBE;
        let by_call = |n| Functions::libc().repeat(Call::ClockGettime(clock), n);
        let by_syscall = |n| Functions::syscalls().repeat(Call::ClockGettime(clock), n);
        let reads = calls_per_batch(timer, EFFORT.batch_time, counter::repeat);
        let calls = calls_per_batch(timer, EFFORT.batch_time, by_call);
        let system_calls = if syscall_works {
            calls_per_batch(timer, EFFORT.batch_time, by_syscall)
        } else {
            0
        };
        let group = || {
            // One batch of each, alternately, so that a disturbance affects all of them alike.
            let rounds: Vec<[f64; 3]> = (0..EFFORT.batches)
                .map(|_| {
                    let read = batch(timer, reads, counter::repeat);
                    let call = batch(timer, calls, by_call);
                    let system_call = match system_calls {
                        0 => f64::NAN,
                        n => batch(timer, n, by_syscall),
                    };
                    [read, call, system_call]
                })
                .collect();
            let middle = |of: &dyn Fn(&[f64; 3]) -> f64| {
                median(&mut rounds.iter().map(of).collect::<Vec<_>>()).unwrap_or(f64::INFINITY)
            };
            let cost = Cost {
                call: f64::INFINITY,
                counter: middle(&|round| round[0]),
                to_counter: middle(&|round| round[1] / round[0]),
                to_syscall: syscall_works.then(|| middle(&|round| round[1] / round[2])),
                measured: middle(&|round| round[1]),
            };
            cost.scaled()
        };
        (1..EFFORT.groups).fold(group(), |best, _| best.best(group()))
    }

    /// Returns the least of each value in two looks.
    pub(super) fn best(self, other: Cost) -> Cost {
        let least = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a.min(b)).or(a).or(b);
        Cost {
            call: self.call.min(other.call),
            counter: self.counter.min(other.counter),
            to_counter: self.to_counter.min(other.to_counter),
            to_syscall: least(self.to_syscall, other.to_syscall),
            measured: self.measured.min(other.measured),
        }
        .scaled()
    }

    /// Returns the cost of a call while a counter read costs the least that was measured. If this is below the measured
    /// cost, the machine was busy during the measurement, or its CPU slow.
    fn scaled(self) -> Cost {
        Cost {
            call: self.measured.min(self.to_counter * self.counter),
            ..self
        }
    }

    pub(super) fn in_ns(self, ns_per_tick: f64) -> Cost {
        Cost {
            call: self.call * ns_per_tick,
            counter: self.counter * ns_per_tick,
            measured: self.measured * ns_per_tick,
            ..self
        }
    }

    #[cfg(test)]
    pub(super) fn sample(call: f64, counter: f64, syscall: Option<f64>) -> Cost {
        Cost {
            call,
            counter,
            to_counter: call / counter,
            to_syscall: syscall.map(|syscall| call / syscall),
            measured: call,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_on_a_busy_machine_is_scaled_by_its_cost_of_the_counter() {
        let busy = Cost::sample(60.0, 45.0, Some(400.0));
        let quiet = Cost::sample(22.0, 15.0, Some(140.0));
        let best = busy.best(quiet);
        assert!((best.call - 20.0).abs() < 0.1, "{best:?}");
        assert_eq!(best.counter, 15.0);
        assert!((best.to_syscall.unwrap() - 0.15).abs() < 0.01, "{best:?}");
    }

    #[test]
    fn a_system_call_does_not_become_cheap_by_scaling() {
        let slow = Cost::sample(280.0, 15.0, Some(250.0));
        assert_eq!(slow.best(Cost::sample(290.0, 16.0, Some(260.0))).call.round(), 272.0);
    }
}
