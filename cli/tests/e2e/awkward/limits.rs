//! Programs with almost no stack, or without permission to write files.

use std::process::Command;

use crate::common::{
    Outcome, comes_to, fastpath, finish, install, needs_root, served, start, tool, unprivileged, wait_until,
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

/// Calls of the helper's start of which one is let fail, and the distance between two of them.
#[cfg(target_arch = "x86_64")]
const CALLS: std::ops::Range<u32> = 1..450;
#[cfg(target_arch = "x86_64")]
const EACH: usize = 9;

#[test]
#[cfg(target_arch = "x86_64")]
fn a_program_that_must_be_served_never_runs_unserved_whichever_call_of_its_helper_fails() {
    let Some(failing) = crate::common::helper_program("failing-call", "cc", &[]) else {
        return;
    };
    let failed = tempfile::NamedTempFile::new().expect("a file");
    for call in CALLS.step_by(EACH) {
        let errno = [libc::ENOMEM, libc::EPERM][call as usize / EACH % 2];
        let mut run = Command::new(&failing);
        run.args([&call.to_string(), &errno.to_string()]).arg(failed.path());
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
        assert_ne!(out, "0\n", "call {call} fails with {errno}");
    }
    let failures = failed.as_file().metadata().expect("its size").len();
    assert!(failures > 20, "{failures}");
}

#[test]
fn a_program_that_may_write_no_file_is_served_and_keeps_its_limit() {
    let script = format!("ulimit -f; {LEAF}");
    comes_to(|| limited("-S -f 0", &served(&["sh", "-c", &script])), 0, "0\n1");
}

#[test]
fn a_program_whose_file_limit_cannot_be_raised_runs_untouched() {
    let (Some(()), Some(_)) = (needs_root(), tool("setpriv")) else {
        return;
    };
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
