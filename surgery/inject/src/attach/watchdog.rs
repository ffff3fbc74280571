//! The watchdog: lets no thread of a target be stopped for long, whatever the thread that stopped it waits for.
//!
//! The tracing thread checks [`StopTime`] by itself, and lets the stopped threads go at the deadline. That does not
//! help while it waits in the kernel, so another thread of this process watches it:
//!
//! - A program that replaces itself (execve(2)) waits for its other threads to end. A traced thread has ended only when
//!   its tracer has waited for it, and PTRACE_SEIZE waits for the same execve (`cred_guard_mutex` in kernel/ptrace.c).
//!   Any thread of this process may wait for it: the watchdog does.
//! - In any other wait, for example for memory that a file system does not provide, this process is ended. The kernel
//!   then detaches all its tracees, and every step of an attach leaves a working process.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{WaitId, WaitIdOptions};

/// Longest time for which threads may be stopped.
pub const DEADLINE: Duration = Duration::from_millis(100);
/// Additional time for the tracing thread to let them go by itself: it may have to wait for a CPU.
const GRACE: Duration = Duration::from_millis(100);
/// Time between two checks.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Length of a stop from which on the watchdog waits for threads that end. Before that, it would take from the stopped
/// threads the CPU that they need to stop: the wait is one system call for each thread.
const LONG_STOP: Duration = Duration::from_millis(20);

/// Called when threads are stopped and the thread that stopped them waits for something else: it must end this process.
pub type LastResort = fn(&StoppedTooLong) -> !;

/// A process whose threads could only be let go by ending this one.
#[derive(Debug, thiserror::Error)]
#[error(
    "its threads were stopped for more than {} ms, while fastpath waited in the kernel ({place}); they were released, and the process is unchanged; \
     try again later", DEADLINE.as_millis()
)]
pub struct StoppedTooLong {
    /// Process id of the target.
    pub pid: i32,
    /// Kernel function in which the tracing thread waits.
    pub place: String,
}

impl StoppedTooLong {
    /// The stable word for it in records.
    pub const WORD: &str = "stopped-too-long";
}

/// The traced threads, and the time since which any of them is stopped.
#[derive(Debug, Default)]
pub struct StopTime(Mutex<Stops>);

#[derive(Debug, Default)]
struct Stops {
    traced: HashSet<i32>,
    since: Option<Instant>,
    /// Id of the tracing thread, in this process.
    tid: i32,
}

impl StopTime {
    fn state(&self) -> MutexGuard<'_, Stops> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the calling thread traces `tid` from now on.
    pub fn traces(&self, tid: i32) {
        let mut state = self.state();
        state.tid = nix::unistd::gettid().as_raw();
        state.traced.insert(tid);
    }

    /// Returns the thread of this process that traces them; 0 if it has traced none yet.
    pub fn tracer(&self) -> i32 {
        self.state().tid
    }

    /// Records that a thread is stopped from now on, if none was yet.
    pub fn begin(&self) {
        self.state().since.get_or_insert_with(Instant::now);
    }

    /// Records that all threads run.
    pub fn end(&self) {
        self.state().since = None;
    }

    /// Returns how long a thread has been stopped.
    pub fn elapsed(&self) -> Duration {
        self.state().since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns whether all threads must be let go now.
    pub fn is_over(&self) -> bool {
        self.elapsed() >= DEADLINE
    }
}

/// Watches until the sender of `over` is dropped.
pub fn watch(pid: i32, stop_time: &StopTime, over: &Receiver<()>, last_resort: LastResort) {
    let mut waits = Waits::default();
    let mut before = 0;
    while over.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
        let (traced, since, tid) = {
            let state = stop_time.state();
            (state.traced.clone(), state.since, state.tid)
        };
        // A tracing thread that waits in PTRACE_SEIZE traces no further thread.
        let is_tracing = std::mem::replace(&mut before, traced.len()) != traced.len();
        if !is_tracing && since.is_none_or(|since| since.elapsed() >= LONG_STOP) {
            traced.into_iter().for_each(reap);
        }
        if since.is_none_or(|since| since.elapsed() < DEADLINE) {
            waits = Waits::default();
        } else if waits.have_lasted(tid) {
            let place = fastpath_os::wchan(format!("self/task/{tid}"));
            last_resort(&StoppedTooLong { pid, place });
        }
    }
}

/// Waits for a traced thread's end, and for nothing else: its stops are for its tracer, and waitid(2) reports those as
/// well, though WSTOPPED is not set.
fn reap(tid: i32) {
    let wait = |more: WaitIdOptions| {
        let any_kind = WaitIdOptions::from_bits_retain(libc::__WALL as u32);
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | any_kind | more;
        let tid = rustix::process::Pid::from_raw(tid)?;
        rustix::process::waitid(WaitId::Pid(tid), options).ok().flatten()
    };
    if wait(WaitIdOptions::NOWAIT).is_some_and(|end| end.exited() || end.killed() || end.dumped()) {
        wait(WaitIdOptions::empty());
    }
}

/// Whether a thread waits in the kernel without having left it since the first look. A thread that only lacks a CPU
/// does not.
#[derive(Default)]
struct Waits(Option<(String, Instant)>);

impl Waits {
    fn have_lasted(&mut self, tid: i32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap_or_default();
        let is_telling = |line: &&str| line.starts_with("State:") || line.contains("ctxt_switches:");
        let telling: String = status.lines().filter(is_telling).collect();
        match &self.0 {
            _ if telling.is_empty() || telling.contains("R (running)") => self.0 = None,
            Some((before, since)) if *before == telling => return since.elapsed() >= GRACE,
            _ => self.0 = Some((telling, Instant::now())),
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never(stopped: &StoppedTooLong) -> ! {
        panic!("{stopped}")
    }

    #[test]
    fn a_thread_that_only_lacks_a_cpu_or_naps_does_not_count_as_waiting() {
        let (done, over) = std::sync::mpsc::channel();
        let stop_time = &StopTime::default();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _done = done;
                stop_time.traces(0);
                stop_time.begin();
                let begun = Instant::now();
                while begun.elapsed() < 4 * (DEADLINE + GRACE) {
                    std::thread::sleep(Duration::from_micros(100));
                }
                assert!(stop_time.is_over());
                stop_time.end();
                assert!(!stop_time.is_over());
            });
            watch(0, stop_time, &over, never);
        });
    }

    #[test]
    #[should_panic(expected = "were stopped for more than 100 ms, while fastpath waited in the kernel")]
    fn a_process_that_waits_while_threads_are_stopped_is_ended() {
        let (done, over) = std::sync::mpsc::channel();
        let stop_time = std::sync::Arc::new(StopTime::default());
        let theirs = stop_time.clone();
        std::thread::spawn(move || {
            theirs.traces(0);
            theirs.begin();
            std::thread::sleep(Duration::from_secs(60));
            drop(done);
        });
        watch(0, &stop_time, &over, never);
    }
}
