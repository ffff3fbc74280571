//! Programs with almost no stack, or without permission to write files.

use std::process::Command;

use crate::common::{
    Outcome, comes_to, fastpath, finish, has_seccomp_filter, install, needs_root, served, skip, start, tool,
    unprivileged, wait_until,
};

const LEAF: &str = "grep -c memfd:fastpath-page /proc/self/maps";

/// Runs a command under a limit, in ulimit's notation. Its output goes to a pipe: a file would be limited as well.
fn limited(limit: &str, run: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("(ulimit {limit}; exec \"$@\") 2>&1 | cat"), "sh"]);
    shell.arg(run.get_program()).args(run.get_args());
    shell
}

#[test]
fn a_program_with_a_stack_of_64_kb_is_served_and_keeps_its_limit() {
    let script = format!("ulimit -s; {LEAF}");
    comes_to(|| limited("-s 64", &served(&["sh", "-c", &script])), 0, "64\n1");
}

/// Calls of the helper's start of which one is let fail, and the distance between two of them; and its calls of ptrace(2),
/// which are let fail one by one.
const CALLS: std::ops::Range<u32> = 1..450;
const EACH: usize = 9;
const TRACING: std::ops::Range<u32> = 1..20;

#[test]
fn a_program_that_must_be_served_never_runs_unserved_whichever_call_of_its_helper_fails() {
    let failing = needed!(crate::common::helper_program("failing-call", "cc", &[]));
    if has_seccomp_filter() {
        return skip("a seccomp filter, as containers have, makes the helper try its calls in children first");
    }
    let failed = tempfile::NamedTempFile::new().expect("a file");
    let any = CALLS.step_by(EACH).map(|call| (-1, call));
    for (number, call) in any.chain(TRACING.map(|call| (libc::SYS_ptrace, call))) {
        let errno = [libc::ENOMEM, libc::EPERM][call as usize / EACH % 2];
        let mut run = Command::new(&failing);
        run.args([number.to_string(), call.to_string(), errno.to_string()])
            .arg(failed.path());
        run.args([
            env!("CARGO_BIN_EXE_fastpath"),
            "run",
            "--clocks",
            "all",
            "--require",
            "--",
        ]);
        run.args(LEAF.split(' '));
        let Outcome { out, .. } = finish(run);
        assert_ne!(out, "0\n", "call {call} of {number} fails with {errno}");
    }
    let failures = failed.as_file().metadata().expect("its size").len();
    assert!(failures > 30, "{failures}");
}

/// Requires that a program was served, or was not started for a reason that `run` gave; one that need not be served, that
/// it ran.
#[track_caller]
fn is_served_or_reported(limit: &str, is_required: bool, outcome: &Outcome) {
    let Outcome { status, out, err } = outcome;
    let is_served = status.code() == Some(0) && out == "1\n";
    let is_reported = match is_required {
        true => status.code() == Some(125) && out.is_empty() && err.starts_with("fastpath: grep: not started: "),
        false => status.code() == Some(1) && out == "0\n",
    };
    let is_vague = err.contains("memory allocation") || err.contains("the helper ended");
    assert!((is_served || is_reported) && !is_vague, "{limit}: {outcome:?}");
}

/// Memory beyond the size at which fastpath itself starts that its helper never takes, and the steps to it, in KiB.
const HELPERS_KIB: usize = 16 << 10;
const STEP_KIB: usize = 800;

/// Returns the least limit of memory in KiB, within 100, under which fastpath starts.
fn least_memory() -> usize {
    let starts = |kib: &usize| {
        let mut version = Command::new("sh");
        version.args(["-c", &format!("ulimit -v {kib}; exec \"$@\""), "sh"]);
        version.args([env!("CARGO_BIN_EXE_fastpath"), "--version"]);
        finish(version).status.success()
    };
    let coarse = (4_000..200_000).step_by(2_000).find(starts).expect("a limit");
    (coarse - 2_000..=coarse).step_by(100).find(starts).expect("a limit")
}

#[test]
fn a_program_is_served_near_a_limit_or_the_user_learns_why_not() {
    let least = least_memory();
    let memory = (least..least + HELPERS_KIB)
        .step_by(STEP_KIB)
        .map(|kib| format!("-v {kib}"));
    let others = ["-n 10", "-n 16", "-d 1024", "-d 2048"].map(str::to_owned);
    for limit in memory.chain(others) {
        for required in [&["--require"][..], &[]] {
            let mut run = Command::new("sh");
            run.args(["-c", &format!("ulimit {limit}; exec \"$@\""), "sh"]);
            run.args([env!("CARGO_BIN_EXE_fastpath"), "run", "--clocks", "all"]);
            run.args(required).arg("--").args(LEAF.split(' '));
            is_served_or_reported(&limit, !required.is_empty(), &finish(run));
        }
    }
}

/// A user who has no other processes: the limit counts them.
const NO_OTHERS: &str = "61234";

#[test]
fn a_program_whose_user_may_start_no_helper_is_not_started_if_it_must_be_served() {
    needed!(needs_root(), tool("setpriv"), tool("prlimit"));
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
    let copy = install(env!("CARGO_BIN_EXE_fastpath"), directory.path().join("fastpath"), 0o755);
    for most in 1..=4 {
        for required in [&["--require"][..], &[]] {
            let mut run = Command::new("prlimit");
            run.arg(format!("--nproc={most}"));
            run.args(["setpriv", "--reuid", NO_OTHERS, "--regid", NO_OTHERS, "--clear-groups"]);
            run.args(["--inh-caps=-all", &copy, "run", "--clocks", "all"]);
            run.args(required).arg("--").args(LEAF.split(' '));
            is_served_or_reported(&format!("{most} processes"), !required.is_empty(), &finish(run));
        }
    }
}

#[test]
fn a_program_that_may_write_no_file_is_served_and_keeps_its_limit() {
    let script = format!("ulimit -f; {LEAF}");
    comes_to(|| limited("-S -f 0", &served(&["sh", "-c", &script])), 0, "0\n1");
}

#[test]
fn a_program_whose_file_limit_cannot_be_raised_runs_untouched() {
    needed!(needs_root(), tool("setpriv"));
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
    let copy = install(env!("CARGO_BIN_EXE_fastpath"), directory.path().join("fastpath"), 0o755);
    let mut run = unprivileged();
    run.args([&copy, "run", "--clocks", "all", "--", "echo", "runs"]);
    let Outcome { out, .. } = finish(limited("-f 0", &run)).expect_success();
    assert!(out.contains("RLIMIT_FSIZE") && out.ends_with("\nruns\n"), "{out}");
}

#[test]
fn attach_works_under_such_a_limit_of_its_own() {
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let running = start(sleep);
    wait_until("its sleep", || running.pid().read("wchan").contains("nanosleep"));
    let pid = running.pid().0.to_string();
    for command in [&["attach", "-q", "--clocks", "all", &pid][..], &["detach", "-q", &pid]] {
        let outcome = finish(limited("-S -f 0", &fastpath(command)));
        outcome.expect_success().expect_output("");
        assert_eq!(running.pid().is_served(), command[0] == "attach");
    }
}
