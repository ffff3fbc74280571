//! tests/programs/torture.c, which reads clocks as fast as it can while a test disturbs the publisher.

use std::process::Command;

use super::{Running, program, start, wait_until};

/// Returns the command that reads the clocks until [`end`], round after round, or `None`, and skips the test, if it
/// could not be built here.
pub fn endless(threads: &str) -> Option<Vec<String>> {
    let words = ["-u", "-s", "1", "-t", threads, "-m", "same,causal,mixed"];
    let path = program("torture")?;
    Some([path].into_iter().chain(words.map(str::to_owned)).collect())
}

/// Starts that command without fastpath.
#[track_caller]
pub fn start_endless(words: &[String]) -> Running {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    start(command)
}

/// Waits until it has begun and ended a round of a second, which is longer than an anchor is valid.
#[track_caller]
pub fn go_on(running: &Running) {
    let rounds = || running.out_so_far().lines().count();
    let so_far = rounds();
    wait_until("a round", || rounds() >= so_far + 2);
}

/// Ends it, and fails the test if one read contradicted another.
#[track_caller]
pub fn end(running: Running) {
    // Before that it may not have installed its handler, and the signal would kill it.
    wait_until("a round", || !running.out_so_far().is_empty());
    // Also ends the process that started it for us: unshare waits for it.
    running.pid().signal_group(libc::SIGTERM);
    let outcome = running.finish().expect_success();
    assert!(outcome.out.contains("\"violations\":0}"), "{outcome:#?}");
}
