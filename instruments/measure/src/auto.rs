//! The quick measurement by which `run` decides which clocks to serve.

use crate::cost::{Cost, Effort, ticks_per_read, until_settled};
use crate::functions::{Functions, VdsoCall};
use crate::stats::tenths;
use crate::timer::Timer;
use crate::{host, path};
use fastpath_page::clocks::Clock;
use serde::Serialize;
use std::cell::LazyCell;
use std::time::Duration;

/// One clock's present path, as far as a quick measurement shows it.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PresentPath {
    /// The clock.
    pub clock: Clock,
    /// Cost of a call by libc; `None` if the kernel does not have the clock, or a seccomp filter does not allow its
    /// system call.
    pub ns: Option<f64>,
    /// Cost of the bare system call.
    pub syscall_ns: Option<f64>,
    /// Whether fastpath would be faster.
    pub is_slow: bool,
}

/// The path that a program about to be started will have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assume {
    /// The path of this process.
    SamePath,
    /// No vDSO: every clock that the kernel has is a system call (`--without-vdso`).
    NoVdso,
}

/// Further measurements of a clock that seems slow: a busy neighbour makes a fast path look slow, but never a slow one
/// fast.
const ATTEMPTS: [Duration; 4] = [Duration::ZERO; 4];

/// Part by which a path must be faster or slower than the limit to be judged at a glance. A slow path would look fast if
/// an interrupt tripled the cost of two batches of three.
const MARGIN: f64 = 1.5;
/// A path is slow after the second glance: one of 30,000 took a fast path for a slow one, beside 12 busy processes on 2
/// CPUs.
const SECOND_GLANCE: [Duration; 1] = [Duration::ZERO];

/// Measures the clocks that fastpath can serve. Takes 0.1 ms on a healthy host, and 0.9 ms where reads take a
/// microsecond; a path that is neither certainly fast nor certainly slow is measured for a quarter of a millisecond more.
pub fn measure_for_auto(assume: Assume) -> Vec<PresentPath> {
    let timer = Timer::start();
    let syscall_works = works_here();
    // Costs microseconds, and is needed only where a clock is not certainly fast.
    let counter = LazyCell::new(|| ticks_per_read(&timer, Effort::QUICK));
    // Costs stay in ticks, because only their ratios are judged.
    let look = |clock: Clock| -> Option<(Cost, bool)> {
        let call = VdsoCall::ClockGettime(clock);
        if !syscall_works(clock) {
            return None;
        }
        let mut cost = Cost::at_a_glance(&timer, call);
        if assume == Assume::NoVdso {
            return Some((cost, true));
        }
        let is_surely_fast = |cost: &Cost| !cost.times(MARGIN).is_too_much();
        until_settled(
            std::slice::from_mut(&mut cost),
            &SECOND_GLANCE,
            |cost, _| is_surely_fast(cost),
            |cost| *cost = cost.least(Cost::at_a_glance(&timer, call)),
        );
        if is_surely_fast(&cost) {
            return Some((cost, false));
        }
        let with_counter = Cost {
            counter: *counter,
            ..cost
        };
        if with_counter.times(1.0 / MARGIN).is_too_much() {
            return Some((cost, true));
        }
        until_settled(
            std::slice::from_mut(&mut cost),
            &ATTEMPTS,
            |cost, count| count > 0 && !cost.is_too_much(),
            |cost| *cost = cost.least(Cost::measure(&timer, Effort::QUICK, call, true)),
        );
        Some((cost, cost.is_too_much()))
    };
    let looks: Vec<_> = Clock::SERVED.iter().map(|clock| (*clock, look(*clock))).collect();
    let ns_per_tick = timer.ns_per_tick();
    let present = |(clock, seen): (Clock, Option<(Cost, bool)>)| PresentPath {
        clock,
        ns: seen.map(|(cost, _)| tenths(cost.in_ns(ns_per_tick).call)),
        syscall_ns: seen.and_then(|(cost, _)| cost.in_ns(ns_per_tick).syscall).map(tenths),
        is_slow: seen.is_some_and(|(_, is_slow)| is_slow),
    };
    looks.into_iter().map(present).collect()
}

/// Returns a function that tests whether the kernel answers a clock's system call.
fn works_here() -> impl Fn(Clock) -> bool {
    // Only under a filter can the call do worse than fail, so only then is it tried in a child. Otherwise the fork is
    // saved.
    let filtered = host::seccomp_mode_of_this_process() != Some(0);
    let calls: Vec<VdsoCall> = Clock::SERVED
        .iter()
        .map(|clock| VdsoCall::ClockGettime(*clock))
        .collect();
    let errnos = filtered.then(|| path::raw_errnos(&calls));
    move |clock| match &errnos {
        None => Functions::syscalls().now_ns(clock).is_some(),
        Some(errnos) => {
            let index = Clock::SERVED.iter().position(|served| *served == clock);
            index.is_some_and(|index| errnos[index] == Some(0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Probe;
    use crate::verdict::CallVerdict;
    use std::time::Instant;

    #[test]
    fn the_quick_look_agrees_with_the_probe() {
        let probe = Probe::run();
        let quick = measure_for_auto(Assume::SamePath);
        assert_eq!(quick.len(), Clock::SERVED.len());
        for path in quick {
            let verdict = probe
                .clocks
                .iter()
                .find(|report| report.clock == path.clock)
                .unwrap()
                .measured
                .verdict;
            assert_eq!(path.is_slow, verdict == CallVerdict::Slow, "{path:?}, {verdict:?}");
        }
    }

    #[test]
    fn without_a_vdso_every_clock_of_the_kernel_is_slow() {
        let paths = measure_for_auto(Assume::NoVdso);
        assert!(
            paths.iter().all(|path| path.is_slow == path.syscall_ns.is_some()),
            "{paths:?}"
        );
        assert!(paths.iter().any(|path| path.is_slow), "{paths:?}");
    }

    #[test]
    fn the_decision_is_made_in_a_few_milliseconds() {
        // Measured: 0.4 ms, and 1 ms in a build without optimisation; more if other processes take the CPU meanwhile.
        let is_quick = |_| {
            let start = Instant::now();
            measure_for_auto(Assume::NoVdso);
            start.elapsed() < Duration::from_millis(5)
        };
        assert!((0..1000).any(is_quick));
    }
}
