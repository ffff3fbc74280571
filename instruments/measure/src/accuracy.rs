//! Measures how far fastpath's clocks are from the kernel's.
//!
//! Every read is taken between two reads of the kernel's clock. A read outside of the two is certainly wrong, by its
//! distance from them; the distance from their middle estimates the error, with the distance of the two as its
//! resolution.

use crate::functions::Functions;
use crate::histogram::{ErrorDistribution, Histogram};
use crate::stats::median;
use crate::vdso::Vdso;
use fastpath_evidence::cpus;
use fastpath_page::clocks::Clock;
use serde::Serialize;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// The source of the kernel's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Reference {
    /// The kernel's vDSO: brackets of some 40 ns on a healthy host.
    KernelVdso,
    /// The bare system call, on any host.
    Syscall,
}

/// The errors of several clocks.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Accuracy {
    /// The source of the kernel's time.
    pub reference: Reference,
    /// Number of threads that read at once, each on a CPU of its own.
    pub threads: usize,
    /// Duration of the comparison.
    pub seconds: f64,
    /// Each clock's errors.
    pub clocks: Vec<ClockAccuracy>,
}

/// One clock's errors.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClockAccuracy {
    /// The clock.
    pub clock: Clock,
    /// Reads that were not answered.
    pub unanswered: u64,
    /// Distance of the reads from the two reads of the kernel's clock around them; 0 for a read between the two.
    pub outside: ErrorDistribution,
    /// Distance of the reads from the middle of the two. Counted only if the two are close: between others the thread
    /// was interrupted.
    pub from_middle: ErrorDistribution,
    /// Largest distance ahead of the middle.
    pub ahead_max_ns: i64,
    /// Largest distance behind the middle.
    pub behind_max_ns: i64,
    /// Median distance of the two reads of the kernel's clock.
    pub bracket_ns: f64,
}

/// Compares `ours` with the kernel's clocks for `duration`, on every CPU at once, one clock after the other.
pub fn accuracy(ours: &Functions, reference: Reference, clocks: &[Clock], duration: Duration) -> Accuracy {
    let kernel_vdso = || Vdso::of_kernel().and_then(|vdso| vdso.functions());
    let (reference, kernel) = match reference {
        Reference::KernelVdso => match kernel_vdso() {
            Some(functions) => (Reference::KernelVdso, functions),
            None => (Reference::Syscall, Functions::syscalls()),
        },
        Reference::Syscall => (Reference::Syscall, Functions::syscalls()),
    };
    let cpus = cpus::allowed();
    let start = Instant::now();
    let begin = Barrier::new(cpus.len());
    let by_thread: Vec<Vec<Errors>> = thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .map(|cpu| scope.spawn(|| measure(*cpu, (ours, &kernel), clocks, &begin, duration)))
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let report = |(index, clock): (usize, &Clock)| {
        let mut all = Errors::new();
        by_thread.iter().for_each(|errors| all.merge(&errors[index]));
        all.report(*clock)
    };
    Accuracy {
        reference,
        threads: by_thread.len(),
        seconds: start.elapsed().as_secs_f64(),
        clocks: clocks.iter().enumerate().map(report).collect(),
    }
}

struct Errors {
    outside: Histogram,
    from_middle: Histogram,
    ahead_max_ns: i64,
    behind_max_ns: i64,
    unanswered: u64,
    bracket_ns: f64,
}

impl Errors {
    fn new() -> Errors {
        Errors {
            outside: Histogram::default(),
            from_middle: Histogram::default(),
            ahead_max_ns: 0,
            behind_max_ns: 0,
            unanswered: 0,
            bracket_ns: 0.0,
        }
    }

    #[inline(always)]
    fn add(&mut self, (before, here, after): (i64, i64, i64)) {
        self.outside
            .add(before.saturating_sub(here).max(here.saturating_sub(after)).max(0) as u64);
        // Above twice the usual distance the thread was interrupted, and the middle is meaningless.
        if (after - before) as f64 <= 2.0 * self.bracket_ns {
            let ahead = here - (before + (after - before) / 2);
            self.from_middle.add(ahead.unsigned_abs());
            self.ahead_max_ns = self.ahead_max_ns.max(ahead);
            self.behind_max_ns = self.behind_max_ns.max(-ahead);
        }
    }

    fn merge(&mut self, other: &Errors) {
        self.outside.merge(&other.outside);
        self.from_middle.merge(&other.from_middle);
        self.ahead_max_ns = self.ahead_max_ns.max(other.ahead_max_ns);
        self.behind_max_ns = self.behind_max_ns.max(other.behind_max_ns);
        self.unanswered += other.unanswered;
        self.bracket_ns = self.bracket_ns.max(other.bracket_ns);
    }

    fn report(self, clock: Clock) -> ClockAccuracy {
        ClockAccuracy {
            clock,
            unanswered: self.unanswered,
            outside: self.outside.distribution(),
            from_middle: self.from_middle.distribution(),
            ahead_max_ns: self.ahead_max_ns,
            behind_max_ns: self.behind_max_ns,
            bracket_ns: self.bracket_ns,
        }
    }
}

/// Number of reads of one clock before the thread turns to the next.
const TURN: u32 = 256;

fn measure(
    cpu: usize,
    (ours, kernel): (&Functions, &Functions),
    clocks: &[Clock],
    begin: &Barrier,
    duration: Duration,
) -> Vec<Errors> {
    // If pinning is forbidden, the thread runs on the CPUs that the kernel chooses.
    let _ = cpus::run_on(cpu);
    let bracket = |clock| Some((kernel.now_ns(clock)?, ours.now_ns(clock)?, kernel.now_ns(clock)?));
    let mut errors: Vec<Errors> = clocks.iter().map(|_| Errors::new()).collect();
    for (errors, clock) in errors.iter_mut().zip(clocks) {
        let width = |_| bracket(*clock).map(|(before, _, after)| (after - before) as f64);
        let mut widths: Vec<f64> = (0..1001).filter_map(width).collect();
        errors.bracket_ns = median(&mut widths).unwrap_or_default();
    }
    begin.wait();
    let start = Instant::now();
    loop {
        for (errors, clock) in errors.iter_mut().zip(clocks) {
            for _ in 0..TURN {
                match bracket(*clock) {
                    Some(times) => errors.add(times),
                    None => errors.unanswered += 1,
                }
            }
        }
        if start.elapsed() >= duration {
            return errors;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{c_int, clockid_t, timespec};

    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn the_kernels_clock_compared_with_itself_is_never_outside() {
        let clocks = [Clock::MONOTONIC, Clock::BOOTTIME];
        let accuracy = accuracy(&Functions::libc(), Reference::KernelVdso, &clocks, SHORT);
        assert_eq!(accuracy.clocks.len(), 2);
        assert_eq!(accuracy.threads, cpus::allowed().len());
        for clock in &accuracy.clocks {
            assert!(clock.outside.samples >= 256, "{clock:?}");
            assert_eq!((clock.outside.max_ns, clock.unanswered), (0, 0), "{clock:?}");
            assert!(clock.from_middle.samples > clock.outside.samples / 2, "{clock:?}");
        }
    }

    /// A clock that is ahead of the kernel's by 2 us, and does not answer TAI.
    unsafe extern "C" fn ahead(id: clockid_t, now: *mut timespec) -> c_int {
        if id == libc::CLOCK_TAI {
            return -1;
        }
        // SAFETY: the caller's pointer is passed on unchanged.
        unsafe {
            let answer = libc::clock_gettime(id, now);
            (*now).tv_nsec += 2000;
            answer
        }
    }

    #[test]
    fn a_clock_that_is_ahead_is_caught_with_the_size_of_its_error() {
        // SAFETY: `ahead` has clock_gettime's signature.
        let ahead = unsafe { Functions::at(|name| (name == "clock_gettime").then_some(ahead as *const () as usize)) };
        let accuracy = accuracy(
            &ahead.unwrap(),
            Reference::KernelVdso,
            &[Clock::MONOTONIC, Clock::TAI],
            SHORT,
        );
        let monotonic = &accuracy.clocks[0];
        assert!((1500..=2500).contains(&monotonic.from_middle.p50_ns), "{monotonic:?}");
        assert!(monotonic.outside.p50_ns > 500, "{monotonic:?}");
        assert!(
            monotonic.ahead_max_ns >= 1500 && monotonic.behind_max_ns == 0,
            "{monotonic:?}"
        );
        let tai = &accuracy.clocks[1];
        assert!(tai.unanswered > 0 && tai.outside.samples == 0, "{tai:?}");
    }

    #[test]
    fn an_error_is_the_distance_from_the_bracket_and_from_its_middle() {
        let mut errors = Errors {
            bracket_ns: 40.0,
            ..Errors::new()
        };
        errors.add((1000, 1020, 1040));
        errors.add((1000, 1049, 1040));
        errors.add((1000, 993, 1040));
        errors.add((1000, 5000, 9000)); // interrupted: inside, and the middle is meaningless
        let report = errors.report(Clock::TAI);
        assert_eq!((report.outside.samples, report.outside.max_ns), (4, 9));
        assert_eq!((report.from_middle.samples, report.from_middle.max_ns), (3, 29));
        assert_eq!((report.ahead_max_ns, report.behind_max_ns), (29, 27));
    }
}
