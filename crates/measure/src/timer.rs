//! The timer with which costs are measured.

use crate::counter;
use std::time::Instant;

/// Counts ticks of the CPU's counter, or nanoseconds of the kernel's clock if the counter may not be read.
///
/// Ticks are converted to nanoseconds only at the end: the longer the timer has run by then, the better it knows its
/// own rate, and no time is spent on calibration. A counter that is unreliable over seconds is still good enough for a
/// batch.
pub struct Timer {
    counter: bool,
    start: Instant,
    start_ticks: u64,
}

impl Timer {
    pub fn start() -> Timer {
        let mut timer = Timer {
            counter: counter::usable(),
            start: Instant::now(),
            start_ticks: 0,
        };
        (timer.start_ticks, timer.start) = timer.pair();
        timer
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
            self.start.elapsed().as_nanos() as u64
        }
    }

    pub fn ns_per_tick(&self) -> f64 {
        if !self.counter {
            return 1.0;
        }
        let (mut ticks, mut now) = self.pair();
        // Right after the start the rate would consist of one pair's jitter.
        while now.duration_since(self.start).as_micros() < 100 {
            (ticks, now) = self.pair();
        }
        now.duration_since(self.start).as_nanos() as f64 / ticks.wrapping_sub(self.start_ticks) as f64
    }

    /// Returns ticks and time at one moment: the tightest of a few tries, so that a preemption between the two reads
    /// does not count.
    fn pair(&self) -> (u64, Instant) {
        let try_once = || {
            let before = self.ticks();
            let now = Instant::now();
            let width = self.ticks().wrapping_sub(before);
            (width, (before.wrapping_add(width / 2), now))
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ticks_become_the_kernels_nanoseconds() {
        let timer = Timer::start();
        let (ticks, start) = timer.pair();
        std::thread::sleep(Duration::from_millis(20));
        let (end_ticks, end) = timer.pair();
        let ns = (end_ticks - ticks) as f64 * timer.ns_per_tick();
        let kernel_ns = end.duration_since(start).as_nanos() as f64;
        assert!(
            (ns / kernel_ns - 1.0).abs() < 0.001,
            "{ns} ns here, {kernel_ns} ns by the kernel"
        );
    }
}
