//! Counting the system calls that a running process makes to read clocks.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::processes::{Pid, TIMEOUT, holds_within};
use super::skip::{skip, tool};

/// Time for which a process is watched. A loop of clock reads makes some thousand system calls in it under strace.
const WATCH: Duration = Duration::from_millis(300);

/// Attaches strace to a busy process and all its threads and counts for a while. Returns `None`, and skips the test, if
/// strace cannot do that here.
#[track_caller]
pub fn clock_calls(pid: Pid) -> Option<u64> {
    let strace = tool("strace")?;
    let log = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut child = Command::new(strace)
        .args([
            "-f",
            "-c",
            "-U",
            "calls,name",
            "-e",
            "trace=clock_gettime,?clock_gettime64,gettimeofday,?time",
        ])
        .args(["-p", &pid.0.to_string(), "-o"])
        .arg(log.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("strace");
    let tracer = Pid(child.id() as i32);
    let is_attached = || pid.status("TracerPid") == tracer.0.to_string();
    let attached = holds_within(TIMEOUT, || {
        is_attached() || child.try_wait().is_ok_and(|status| status.is_some())
    });
    if !attached || !is_attached() {
        let _ = child.kill();
        let _ = child.wait();
        skip(format_args!("strace cannot attach to {}", pid.program()));
        return None;
    }
    let before = pid.cpu_time();
    std::thread::sleep(WATCH);
    let was_busy = holds_within(TIMEOUT, || pid.cpu_time() > before);
    let stayed = is_attached();
    tracer.signal(libc::SIGINT);
    let _ = child.wait();
    assert!(was_busy && stayed, "{} was not there to be watched", pid.describe());
    Some(total(&std::fs::read_to_string(log.path()).expect("strace's summary")))
}

/// Returns the lowest count of repeated [`clock_calls`]: 0 as soon as a process makes none for a while. If the
/// publisher gets no CPU for longer than an anchor lasts, reads correctly go to the kernel; at last the publisher gets
/// one.
#[track_caller]
pub fn fewest_clock_calls(pid: Pid) -> Option<u64> {
    let (begun, mut fewest) = (Instant::now(), u64::MAX);
    while fewest > 0 && begun.elapsed() < TIMEOUT {
        fewest = fewest.min(clock_calls(pid)?);
    }
    Some(fewest)
}

/// Returns whether repeated counts find a call: on a slow machine strace may not have begun to count when its time is
/// over.
#[track_caller]
pub fn makes_clock_calls(pid: Pid) -> Option<bool> {
    let begun = Instant::now();
    while begun.elapsed() < TIMEOUT {
        if clock_calls(pid)? > 0 {
            return Some(true);
        }
    }
    Some(false)
}

/// Returns the sum of a summary whose first column counts calls, which ends with a line `N total`. The summary is empty
/// if there were none.
fn total(summary: &str) -> u64 {
    let of = |line: &str| line.trim().strip_suffix("total")?.trim().parse().ok();
    summary.lines().find_map(of).unwrap_or(0)
}
