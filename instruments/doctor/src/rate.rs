//! Measures the counter's rate against one of the kernel's clocks.

use super::facts::MeasuredRate;
use fastpath_evidence::cpus;
use fastpath_measure::clocks::Clock;
use fastpath_measure::counter;
use fastpath_measure::functions::Functions;

/// A change of the clock: the values of counter and clock at that time, and the width of the bracket around it.
pub(super) struct Start {
    ticks: u64,
    ns: i64,
    width: u64,
    /// The CPU whose counter was read: another one's may be seconds apart.
    cpu: usize,
}

/// Attempts to observe a change in a narrow bracket, that is, without an interrupt.
const TRIES: u32 = 32;
/// Reads after which a change is that of a coarse clock (jiffies: every 1 to 10 ms). A second change of such a clock is
/// not awaited.
const READS_OF_A_FINE_CLOCK: u32 = 1_000;
/// Most reads without a change: 10 ms at 50 ns each. A clock that has not changed by then has stopped.
const MOST_READS: u32 = 200_000;

impl Start {
    /// Observes a change now. Returns `None` if the clock does not answer or has stopped.
    pub(super) fn now() -> Option<Start> {
        Start::now_on(current_cpu())
    }

    /// Observes it on a CPU, or on another one where this thread cannot be bound.
    fn now_on(cpu: usize) -> Option<Start> {
        let libc = Functions::libc();
        let before = cpus::allowed();
        let is_bound = cpus::run_on(cpu).is_ok();
        let start = Start::tightest(counter::read, || libc.now_ns(Clock::MONOTONIC_RAW));
        let cpu = current_cpu();
        if is_bound {
            let _ = cpus::run_on_any(&before);
        }
        start.map(|start| Start { cpu, ..start })
    }

    fn tightest(counter: impl Fn() -> u64, clock: impl Fn() -> Option<i64>) -> Option<Start> {
        let mut tightest: Option<Start> = None;
        for _ in 0..TRIES {
            let (start, reads) = Start::at_change(&counter, &clock)?;
            if tightest.as_ref().is_none_or(|tightest| start.width < tightest.width) {
                tightest = Some(start);
            }
            if reads > READS_OF_A_FINE_CLOCK {
                break;
            }
        }
        tightest
    }

    /// Reads the clock until it changes, and returns the change and the number of reads. A coarse clock is late by up
    /// to its step between two changes, and no bracket shows that.
    fn at_change(counter: &impl Fn() -> u64, clock: &impl Fn() -> Option<i64>) -> Option<(Start, u32)> {
        let mut before = counter();
        let old = clock()?;
        for reads in 2..MOST_READS {
            let between = counter();
            let ns = clock()?;
            if ns != old {
                let width = counter().wrapping_sub(before);
                let ticks = before.wrapping_add(width / 2);
                let cpu = 0;
                return Some((Start { ticks, ns, width, cpu }, reads));
            }
            before = between;
        }
        None
    }

    /// Returns the rate between that change and one now, on the same CPU.
    pub(super) fn rate(&self) -> Option<MeasuredRate> {
        let end = Start::now_on(self.cpu)?;
        (end.cpu == self.cpu).then(|| rate_between(self, &end)).flatten()
    }
}

fn current_cpu() -> usize {
    // SAFETY: sched_getcpu accesses no memory of the caller.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or_default()
}

fn rate_between(start: &Start, end: &Start) -> Option<MeasuredRate> {
    let ns = (end.ns - start.ns) as f64;
    let ticks = end.ticks.wrapping_sub(start.ticks) as i64 as f64;
    if ns <= 0.0 {
        return None;
    }
    let hz = ticks / ns * 1e9;
    Some(MeasuredRate {
        hz: hz.round(),
        error_hz: ((start.width + end.width) as f64 / 2.0 / ns * 1e9).ceil(),
        against: "CLOCK_MONOTONIC_RAW".into(),
        over_ms: (ns / 1e6).round(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_error_is_half_of_both_brackets_over_the_time_between() {
        let at = |ticks, ns, width| Start {
            ticks,
            ns,
            width,
            cpu: 0,
        };
        let rate = rate_between(&at(1000, 0, 100), &at(300_001_000, 100_000_000, 300)).unwrap();
        assert_eq!((rate.hz, rate.error_hz, rate.over_ms), (3e9, 2000.0, 100.0));
        assert_eq!(rate_between(&at(0, 5, 1), &at(9, 5, 1)), None);
    }

    /// Measures a clock that changes every `step_ns`, by a counter of 1 GHz that takes `read_ns` per read.
    fn rate_of_clock(step_ns: u64, read_ns: u64) -> Option<MeasuredRate> {
        let now = Cell::new(12_345_678_u64);
        let counter = || now.replace(now.get() + read_ns);
        let clock = || Some((now.get() / step_ns * step_ns) as i64);
        let start = Start::tightest(counter, clock)?;
        now.set(now.get() + 150_000_000);
        rate_between(&start, &Start::tightest(counter, clock)?)
    }

    #[test]
    fn the_interval_holds_the_rate_of_a_coarse_clock_too() {
        for step_ns in [1, 100, 279, 1_000_000, 4_000_000, 10_000_000] {
            for read_ns in [60, 100, 1_500] {
                let rate = rate_of_clock(step_ns, read_ns).unwrap();
                let off_hz = (rate.hz - 1e9).abs();
                assert!(off_hz <= rate.error_hz, "{step_ns} {read_ns}: {rate:?}");
                assert!(rate.error_hz < 1e9 * 1e-4, "{step_ns} {read_ns}: {rate:?}");
            }
        }
    }

    #[test]
    fn a_clock_that_stands_still_has_no_rate() {
        assert_eq!(rate_of_clock(u64::MAX, 60), None);
    }

    #[test]
    fn a_counter_that_went_backwards_has_a_negative_rate_and_not_a_huge_one() {
        let at = |ticks, ns| Start {
            ticks,
            ns,
            width: 10,
            cpu: 0,
        };
        assert!(rate_between(&at(5000, 0), &at(1000, 1000)).unwrap().hz < 0.0);
    }
}
