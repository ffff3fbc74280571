//! Tests whether time goes backwards: on one thread, between threads, and between a function and the system call.

use crate::functions::Functions;
use fastpath_evidence::cpus;
use fastpath_page::clocks::Clock;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The limits of a measurement. It stops at the first that is reached.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Duration.
    pub duration: Duration,
    /// Number of reads of the clocks, by all threads together.
    pub reads: u64,
}

/// The backward steps of several clocks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Monotonicity {
    /// Number of threads that read at once, each on a CPU of its own.
    pub threads: usize,
    /// Duration of the measurement.
    pub seconds: f64,
    /// Number of reads of the clocks, by all threads together.
    pub reads: u64,
    /// Each clock's backward steps.
    pub clocks: Vec<ClockMonotonicity>,
}

/// One clock's backward steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Steps {
    /// Number of pairs of reads that were compared.
    pub compared: u64,
    /// Number of pairs in which the later read returned an earlier time.
    pub backward: u64,
    /// Largest backward step.
    pub worst_ns: i64,
}

/// One clock's backward steps, by the way in which they are observed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClockMonotonicity {
    /// The clock.
    pub clock: Clock,
    /// Each read compared with the one before it on the same thread.
    pub same_thread: Steps,
    /// Each read compared with the latest time that any thread had read before it began.
    pub across_threads: Steps,
    /// Reads alternating with system calls.
    pub with_syscalls: Steps,
    /// Number of reads that were not answered.
    pub unanswered: u64,
}

impl Monotonicity {
    /// Returns the number of all backward steps; fastpath promises 0.
    pub fn backward(&self) -> u64 {
        let steps = |clock: &ClockMonotonicity| {
            clock.same_thread.backward + clock.across_threads.backward + clock.with_syscalls.backward
        };
        self.clocks.iter().map(steps).sum()
    }
}

impl ClockMonotonicity {
    /// Returns the ways in which time goes backwards, in words, with their steps. A step of a nanosecond is not counted:
    /// two paths may round differently.
    pub fn faults(&self) -> impl Iterator<Item = (&'static str, Steps)> {
        let ways = [
            ("on one thread", self.same_thread),
            ("between threads", self.across_threads),
            ("beside system calls", self.with_syscalls),
        ];
        ways.into_iter().filter(|(_, steps)| steps.worst_ns > ROUNDING_NS)
    }
}

const ROUNDING_NS: i64 = 1;

impl Steps {
    #[inline(always)]
    fn compare(&mut self, earlier_ns: i64, later_ns: i64) {
        self.compared += 1;
        if later_ns < earlier_ns {
            self.backward += 1;
            self.worst_ns = self.worst_ns.max(earlier_ns - later_ns);
        }
    }

    fn merge(&mut self, other: &Steps) {
        self.compared += other.compared;
        self.backward += other.backward;
        self.worst_ns = self.worst_ns.max(other.worst_ns);
    }
}

/// Number of reads of each kind before a thread turns to the next clock. Most reads are on one thread, because those
/// across threads contend for a cache line, and system calls are expensive.
const SAME_THREAD: u64 = 2048;
const ACROSS_THREADS: u64 = 256;
const WITH_SYSCALLS: u64 = 16;

/// Reads the clocks on every CPU at once and compares. Starts threads.
pub fn monotonicity(ours: &Functions, clocks: &[Clock], limit: Limit) -> Monotonicity {
    let cpus = cpus::allowed();
    let latest: Vec<Latest> = clocks.iter().map(|_| Latest(AtomicI64::new(i64::MIN))).collect();
    let reads = AtomicU64::new(0);
    let may_begin = AtomicBool::new(false);
    let start = Instant::now();
    let watch = |cpu: usize| {
        // If pinning is forbidden, the thread runs on the CPUs that the kernel chooses.
        let _ = cpus::run_on(cpu);
        // The threads begin together, otherwise the first could finish before the last has begun.
        while !may_begin.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let start = Instant::now();
        let mut watchers: Vec<Watcher> = clocks.iter().map(|clock| Watcher::new(ours, *clock)).collect();
        let done = || start.elapsed() >= limit.duration || reads.load(Ordering::Relaxed) >= limit.reads;
        loop {
            for (watcher, latest) in watchers.iter_mut().zip(&latest) {
                watcher.same_thread();
                watcher.across_threads(&latest.0);
                watcher.with_syscalls();
                reads.fetch_add(SAME_THREAD + ACROSS_THREADS + WITH_SYSCALLS, Ordering::Relaxed);
            }
            if done() {
                break;
            }
        }
        watchers.into_iter().map(|watcher| watcher.seen).collect::<Vec<_>>()
    };
    let by_thread: Vec<Vec<ClockMonotonicity>> = thread::scope(|scope| {
        // Where no more threads are allowed, those that there are suffice.
        let watch = &watch;
        let thread = |cpu: &usize| {
            let cpu = *cpu;
            thread::Builder::new().spawn_scoped(scope, move || watch(cpu)).ok()
        };
        let threads: Vec<_> = cpus.iter().filter_map(thread).collect();
        may_begin.store(true, Ordering::Release);
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let sum = |(index, clock): (usize, &Clock)| {
        let mut all = ClockMonotonicity::nothing(*clock);
        by_thread.iter().for_each(|seen| all.merge(&seen[index]));
        all
    };
    Monotonicity {
        threads: by_thread.len(),
        seconds: start.elapsed().as_secs_f64(),
        reads: reads.into_inner(),
        clocks: clocks.iter().enumerate().map(sum).collect(),
    }
}

impl ClockMonotonicity {
    fn nothing(clock: Clock) -> ClockMonotonicity {
        let none = Steps::default();
        ClockMonotonicity {
            clock,
            same_thread: none,
            across_threads: none,
            with_syscalls: none,
            unanswered: 0,
        }
    }

    fn merge(&mut self, other: &ClockMonotonicity) {
        self.same_thread.merge(&other.same_thread);
        self.across_threads.merge(&other.across_threads);
        self.with_syscalls.merge(&other.with_syscalls);
        self.unanswered += other.unanswered;
    }
}

/// The latest time of a clock that any thread has read, alone in its cache lines.
#[repr(align(128))]
struct Latest(AtomicI64);

/// One thread's view of one clock.
struct Watcher<'f> {
    ours: &'f Functions,
    raw: Functions,
    /// The last read of the turn before, so that a step at a refresh of the page between two turns is seen too.
    last_ns: i64,
    seen: ClockMonotonicity,
}

impl Watcher<'_> {
    fn new(ours: &Functions, clock: Clock) -> Watcher<'_> {
        Watcher {
            ours,
            raw: Functions::syscalls(),
            last_ns: i64::MIN,
            seen: ClockMonotonicity::nothing(clock),
        }
    }

    /// Reads fastpath's clock. A read that is not answered is counted and returns `None`.
    #[inline(always)]
    fn read(&mut self) -> Option<i64> {
        let now = self.ours.now_ns(self.seen.clock);
        if now.is_none() {
            self.seen.unanswered += 1;
        }
        now
    }

    fn same_thread(&mut self) {
        for _ in 0..SAME_THREAD {
            let Some(now) = self.read() else { continue };
            self.seen.same_thread.compare(self.last_ns, now);
            self.last_ns = now;
        }
    }

    fn across_threads(&mut self, latest: &AtomicI64) {
        for _ in 0..ACROSS_THREADS {
            // This order is causal: a time that another thread stored before this load was read before this read
            // begins.
            let shown = latest.load(Ordering::Acquire);
            let Some(now) = self.read() else { continue };
            self.seen.across_threads.compare(shown, now);
            latest.fetch_max(now, Ordering::AcqRel);
            self.last_ns = now;
        }
    }

    fn with_syscalls(&mut self) {
        for _ in 0..WITH_SYSCALLS {
            let clock = self.seen.clock;
            let (Some(before), Some(now), Some(after)) = (self.raw.now_ns(clock), self.read(), self.raw.now_ns(clock))
            else {
                continue;
            };
            self.seen.with_syscalls.compare(before, now);
            self.seen.with_syscalls.compare(now, after);
            self.last_ns = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{c_int, clockid_t, timespec};
    use std::sync::atomic::AtomicU32;

    /// A limit that is reached in milliseconds, if this process gets a CPU.
    const SHORT: Limit = Limit {
        duration: Duration::from_secs(60),
        reads: 200_000,
    };

    /// The system's clock plus `add_ns`: a clock with an error.
    unsafe fn spoilt(id: clockid_t, now: *mut timespec, add_ns: i64) -> c_int {
        // SAFETY: the caller's pointer is passed on unchanged.
        unsafe {
            let answer = libc::clock_gettime(id, now);
            let ns = (*now).tv_sec * 1_000_000_000 + (*now).tv_nsec + add_ns;
            *now = timespec {
                tv_sec: ns / 1_000_000_000,
                tv_nsec: ns % 1_000_000_000,
            };
            answer
        }
    }

    fn functions(clock_gettime: crate::ClockFn) -> Functions {
        // SAFETY: the address is of a function of this signature.
        unsafe { Functions::at(|name| (name == "clock_gettime").then_some(clock_gettime as usize)) }.unwrap()
    }

    #[test]
    fn the_systems_clock_never_goes_backwards() {
        let seen = monotonicity(&Functions::libc(), &[Clock::MONOTONIC, Clock::MONOTONIC_RAW], SHORT);
        assert_eq!(seen.backward(), 0, "{seen:?}");
        assert_eq!(seen.clocks.iter().flat_map(ClockMonotonicity::faults).count(), 0);
        assert_eq!(seen.threads, cpus::allowed().len());
        assert!(seen.reads >= 2048);
        for clock in &seen.clocks {
            assert!(clock.same_thread.compared >= SAME_THREAD && clock.across_threads.compared >= ACROSS_THREADS);
            assert!(clock.with_syscalls.compared >= 2 * WITH_SYSCALLS && clock.unanswered == 0);
        }
    }

    #[test]
    fn one_read_of_ten_thousand_that_is_behind_is_caught() {
        static READS: AtomicU32 = AtomicU32::new(0);
        unsafe extern "C" fn stumbles(id: clockid_t, now: *mut timespec) -> c_int {
            let behind = READS.fetch_add(1, Ordering::Relaxed) % 10_000 == 9_999;
            // SAFETY: the measurement passes a timespec that is valid for the write.
            unsafe { spoilt(id, now, if behind { -1_000_000 } else { 0 }) }
        }
        let seen = monotonicity(&functions(stumbles), &[Clock::MONOTONIC], SHORT);
        let steps = seen.clocks[0].same_thread;
        assert!(steps.backward > 0, "{seen:?}");
        assert!(steps.backward <= steps.compared / 1000, "{seen:?}");
        assert!(steps.worst_ns > 500_000, "{seen:?}");
        let faults: Vec<_> = seen.clocks[0].faults().map(|(way, _)| way).collect();
        assert!(faults.contains(&"on one thread"), "{faults:?}");
    }

    #[test]
    fn a_thread_that_is_behind_the_others_is_caught_though_each_is_monotonic() {
        if cpus::allowed().len() < 2 {
            crate::skip::skip("one CPU only");
            return;
        }
        unsafe extern "C" fn by_cpu(id: clockid_t, now: *mut timespec) -> c_int {
            // SAFETY: sched_getcpu accesses no memory of the caller; the measurement passes a valid timespec.
            unsafe {
                let cpu = i64::from(libc::sched_getcpu());
                spoilt(id, now, -1_000_000_000 * cpu)
            }
        }
        // Long compared with a scheduler's slice, so that the threads alternate even on a busy machine.
        let limit = Limit {
            duration: Duration::from_millis(200),
            reads: u64::MAX,
        };
        let is_caught = |_| {
            let seen = monotonicity(&functions(by_cpu), &[Clock::MONOTONIC], limit);
            assert_eq!(seen.clocks[0].same_thread.backward, 0, "{seen:?}");
            seen.clocks[0].across_threads.backward > 0
        };
        assert!((0..100).any(is_caught));
    }

    #[test]
    fn a_clock_that_is_ahead_of_the_system_call_is_caught_though_it_is_monotonic() {
        unsafe extern "C" fn ahead(id: clockid_t, now: *mut timespec) -> c_int {
            // SAFETY: the measurement passes a timespec that is valid for the write.
            unsafe { spoilt(id, now, 1_000_000_000) }
        }
        let seen = monotonicity(&functions(ahead), &[Clock::BOOTTIME], SHORT);
        let clock = &seen.clocks[0];
        assert_eq!(
            (clock.same_thread.backward, clock.across_threads.backward),
            (0, 0),
            "{seen:?}"
        );
        assert_eq!(
            clock.with_syscalls.backward,
            clock.with_syscalls.compared / 2,
            "{seen:?}"
        );
    }
}
