//! Measures whether two threads read twice as much as one: readers share the page's cache lines, and write to none.

use crate::clocks::Clock;
use crate::functions::{Call, Functions};
use crate::stats::{Spread, tenths, thousandths};
use fastpath_evidence::cpus;
use serde::Serialize;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// One thread's reads compared with those of several, in rounds.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Throughput {
    /// The call.
    pub call: Call,
    /// Number of threads that are compared with one, each on a CPU of its own.
    pub threads: usize,
    /// Calls per microsecond of one thread.
    pub one: Spread,
    /// Calls per microsecond of all of them.
    pub all: Spread,
    /// Throughput of all threads by that of one.
    pub scaling: Spread,
    /// The same per CPU time, so that CPU time taken by other programs does not count.
    pub scaling_per_cpu_time: Spread,
}

const ROUNDS: usize = 11;
const CALL: Call = Call::ClockGettime(Clock::MONOTONIC);

pub(super) fn measure(functions: Functions, window: Duration) -> Option<Throughput> {
    let cpus: Vec<usize> = cpus::allowed().into_iter().take(2).collect();
    if cpus.len() < 2 {
        return None;
    }
    let rounds: Vec<(Rate, Rate)> = (0..ROUNDS)
        .map(|round| {
            (
                read(functions, &cpus[round % 2..][..1], window),
                read(functions, &cpus, window),
            )
        })
        .collect();
    let spread = |of: fn(&(Rate, Rate)) -> f64| Spread::from_samples(rounds.iter().map(of).collect());
    Some(Throughput {
        call: CALL,
        threads: cpus.len(),
        one: spread(|(one, _)| one.per_us)?.map(tenths),
        all: spread(|(_, all)| all.per_us)?.map(tenths),
        scaling: spread(|(one, all)| all.per_us / one.per_us)?.map(thousandths),
        scaling_per_cpu_time: spread(|(one, all)| all.per_cpu_us / one.per_cpu_us)?.map(thousandths),
    })
}

/// The sum of several threads' speeds.
#[derive(Clone, Copy, Default)]
struct Rate {
    per_us: f64,
    per_cpu_us: f64,
}

fn read(functions: Functions, cpus: &[usize], window: Duration) -> Rate {
    let barrier = Barrier::new(cpus.len());
    let reader = |cpu: usize| {
        // If pinning is forbidden, the thread runs on the CPUs that the kernel chooses.
        let _ = cpus::run_on(cpu);
        functions.repeat(CALL, 1000);
        barrier.wait();
        let (start, cpu_start) = (Instant::now(), cpu_time_ns());
        let mut calls = 0u64;
        while start.elapsed() < window {
            functions.repeat(CALL, 1000);
            calls += 1000;
        }
        let per = |ns: f64| calls as f64 * 1000.0 / ns;
        Rate {
            per_us: per(start.elapsed().as_nanos() as f64),
            per_cpu_us: per((cpu_time_ns() - cpu_start).max(1) as f64),
        }
    };
    let rates = thread::scope(|scope| {
        let threads: Vec<_> = cpus.iter().map(|cpu| scope.spawn(|| reader(*cpu))).collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect::<Vec<Rate>>()
    });
    rates.iter().fold(Rate::default(), |sum, rate| Rate {
        per_us: sum.per_us + rate.per_us,
        per_cpu_us: sum.per_cpu_us + rate.per_cpu_us,
    })
}

fn cpu_time_ns() -> i64 {
    Functions::syscalls()
        .now_ns(Clock::THREAD_CPUTIME_ID)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_of_readers_that_share_nothing_scale() {
        if cpus::allowed().len() < 2 {
            return eprintln!("SKIPPED: one CPU only");
        }
        // Per CPU time, so that others' work does not count; a lock between the readers would always halve it.
        let scales = |_| {
            let throughput = measure(Functions::libc(), Duration::from_millis(2)).unwrap();
            assert_eq!(throughput.threads, 2);
            assert!(throughput.one.median > 0.1, "{throughput:?}");
            (1.4..2.8).contains(&throughput.scaling_per_cpu_time.median)
        };
        assert!((0..20).any(scales));
    }
}
