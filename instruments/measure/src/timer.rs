//! The timer with which costs are measured.

use crate::counter;
use std::time::{Duration, Instant};

/// Counts ticks of the CPU's counter, or nanoseconds of the kernel's clock if the counter may not be read.
///
/// Ticks are converted to nanoseconds only at the end: the longer the timer has run by then, the better it knows its
/// own rate, and no time is spent on calibration. A counter that is unreliable over seconds is still good enough for a
/// batch.
pub struct Timer {
    counter: bool,
    start: Moment,
}

/// Ticks and time at one moment.
#[derive(Clone, Copy)]
struct Moment {
    ticks: u64,
    now: Instant,
    /// The CPU whose counter was read.
    cpu: i32,
}

/// Least time over which the rate is measured. In a shorter one it would consist of one moment's jitter.
const LEAST: Duration = Duration::from_micros(100);
/// The same after the thread was moved to another CPU. Brackets of 2 us, as through hpet, then cause an error of 0.2 %.
const LEAST_ANEW: Duration = Duration::from_millis(1);
/// Most times that the thread is moved while its rate is measured.
const MOST_MOVES: u32 = 10;

impl Timer {
    pub fn start() -> Timer {
        counter::choose_read();
        let counter = counter::usable();
        Timer {
            counter,
            start: moment(counter),
        }
    }

    /// Returns whether ticks are the counter's.
    pub fn is_counter(&self) -> bool {
        self.counter
    }

    #[inline(always)]
    pub fn ticks(&self) -> u64 {
        if self.counter {
            counter::read()
        } else {
            self.start.now.elapsed().as_nanos() as u64
        }
    }

    pub fn ns_per_tick(&self) -> f64 {
        if !self.counter {
            return 1.0;
        }
        ns_per_tick(self.start, |after| {
            loop {
                let moment = moment(true);
                if moment.now >= after {
                    return moment;
                }
            }
        })
    }
}

/// Returns the nanoseconds of a tick between two moments on one CPU: the counters of two CPUs can be seconds apart.
/// `later` returns a moment that is not before a time.
fn ns_per_tick(mut start: Moment, mut later: impl FnMut(Instant) -> Moment) -> f64 {
    let mut end = later(start.now + LEAST);
    for _ in 0..MOST_MOVES {
        if end.cpu == start.cpu {
            break;
        }
        start = end;
        end = later(start.now + LEAST_ANEW);
    }
    end.now.duration_since(start.now).as_nanos() as f64 / end.ticks.wrapping_sub(start.ticks) as f64
}

/// Returns this moment: the tightest of a few tries, so that a preemption between the reads does not count.
fn moment(counter: bool) -> Moment {
    let read = || if counter { counter::read() } else { 0 };
    // SAFETY: sched_getcpu accesses no memory of the caller.
    let cpu = || unsafe { libc::sched_getcpu() };
    let try_once = || {
        let here = cpu();
        let before = read();
        let now = Instant::now();
        let width = read().wrapping_sub(before);
        let ticks = before.wrapping_add(width / 2);
        let width = if cpu() == here { width } else { u64::MAX };
        (width, Moment { ticks, now, cpu: here })
    };
    let mut best = try_once();
    for _ in 0..4 {
        let next = try_once();
        if next.0 < best.0 {
            best = next;
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: on a machine whose CPUs' counters were ten seconds apart, a read of 940 ns was reported as one of 125 ns.
    #[test]
    fn a_thread_that_is_moved_between_cpus_whose_counters_differ_measures_on_one() {
        const AHEAD: u64 = 26_000_000_000;
        let begin = Instant::now();
        let at = |us: u64, cpu| Moment {
            ticks: 1_000 + 2_000 * us + if cpu == 1 { AHEAD } else { 0 },
            now: begin + Duration::from_micros(us),
            cpu,
        };
        for cpus in [vec![0], vec![1, 1], vec![1, 0, 1, 1]] {
            let mut cpus = cpus.into_iter();
            let later = |after: Instant| at(after.duration_since(begin).as_micros() as u64 + 5, cpus.next().unwrap());
            let ns = ns_per_tick(at(0, 0), later);
            assert!((ns - 0.5).abs() < 1e-9, "{ns} ns");
        }
    }

    #[test]
    fn ticks_become_the_kernels_nanoseconds() {
        let timer = Timer::start();
        let start = moment(timer.counter);
        std::thread::sleep(Duration::from_millis(20));
        let end = moment(timer.counter);
        let kernel_ns = end.now.duration_since(start.now).as_nanos() as f64;
        // Between CPUs whose counters differ, ticks are no time.
        let ns = if start.cpu == end.cpu {
            (end.ticks - start.ticks) as f64 * timer.ns_per_tick()
        } else {
            kernel_ns
        };
        assert!(
            (ns / kernel_ns - 1.0).abs() < 0.001,
            "{ns} ns here, {kernel_ns} ns by the kernel"
        );
    }
}
