//! Samples the CPU time of a process, in a thread: how much of it is spent in clock reads.

use super::counter_reads;
use super::facts::{Process, Reads};
use super::root::{Root, permission};
use std::io;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A running measurement, or the reason why there is none.
pub(super) type Sampling = io::Result<JoinHandle<io::Result<Reads>>>;

pub(super) fn begin(pid: u32, duration: Duration) -> Option<Sampling> {
    let sampled = !duration.is_zero();
    sampled.then(|| thread::Builder::new().spawn(move || sample(pid, duration)))
}

/// Waits for the samples, and adds them to the process, or the reason why there are none to what could not be seen.
pub(super) fn end(sampling: Sampling, root: &Root, process: &mut Process) {
    let failed = |_| Err(io::Error::other("the thread that samples has failed"));
    match sampling.and_then(|thread| thread.join().unwrap_or_else(failed)) {
        Ok(reads) => {
            counter_reads::count(&mut process.counter_reads, &reads.addresses);
            process.reads = Some(reads);
        }
        Err(error) => root.miss(
            "how much of its CPU time the process spends in clock reads",
            "perf_event_open",
            &error,
            &permission(
                "CAP_PERFMON",
                "run doctor as root, or set kernel.perf_event_paranoid to 2 and run it as the process's user",
            ),
        ),
    }
}

fn sample(pid: u32, duration: Duration) -> io::Result<Reads> {
    let mode = fastpath_os::Status::read("self")
        .ok()
        .and_then(|status| status.number("Seccomp"));
    match mode {
        Some(0) => fastpath_tools::trace::reads(pid, duration),
        // A filter might kill this process for that.
        _ => Err(io::Error::other(
            "not tried: this process may be under a seccomp filter",
        )),
    }
}
