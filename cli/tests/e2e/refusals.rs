//! If a program cannot be served, `run` warns once, and the program runs untouched; with `--require` it does not run.

#[cfg(target_arch = "x86_64")]
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::common::{Outcome, fastpath, finish, helper_program, install, tool};

const WITHOUT_REQUIRE: &[&str] = &["run", "--without-vdso", "--clocks", "all", "--"];
const REQUIRE: &[&str] = &["run", "--without-vdso", "--clocks", "all", "--require", "--"];

/// `prefix fastpath run ... -- command`, without and with `--require`.
fn both(prefix: &[&str], command: &[&str]) -> (Outcome, Outcome) {
    let run = |options: &[&str]| {
        let whole = [prefix, &[env!("CARGO_BIN_EXE_fastpath")], options, command].concat();
        let mut run = Command::new(whole[0]);
        run.args(&whole[1..]);
        finish(run)
    };
    (run(WITHOUT_REQUIRE), run(REQUIRE))
}

#[track_caller]
fn warns_once_and_requires(prefix: &[&str], command: &[&str], code: i32, out: &str, reason: &str) {
    let (untouched, required) = both(prefix, command);
    let untouched = untouched.expect_code(code);
    assert_eq!(untouched.out, out);
    assert_eq!(untouched.err.lines().count(), 1, "{untouched:#?}");
    assert!(
        untouched.err.contains("warning: ") && untouched.err.contains("untouched"),
        "{untouched:#?}"
    );
    assert!(untouched.err.contains(reason), "{untouched:#?}");
    let required = required.expect_code(125);
    assert_eq!(required.out, "");
    assert_eq!(required.err.lines().count(), 1, "{required:#?}");
    assert!(required.err.contains(reason), "{required:#?}");
}

#[test]
fn a_program_under_a_debugger_runs_untouched() {
    let strace = needed!(tool("strace"));
    let prefix = [
        strace,
        "-qq",
        "-e",
        "trace=none",
        "-e",
        "signal=none",
        "-o",
        "/dev/null",
    ];
    if finish({
        let mut plain = Command::new(strace);
        plain.args(&prefix[1..]).arg("true");
        plain
    })
    .status
    .code()
        != Some(0)
    {
        return crate::common::skip("strace cannot trace here");
    }
    let script = "grep -q memfd:fastpath /proc/self/maps || echo untouched; exit 3";
    warns_once_and_requires(&prefix, &["sh", "-c", script], 3, "untouched\n", "tracing");
}

#[test]
fn a_program_under_a_filter_that_forbids_a_needed_call_runs_untouched() {
    let filter = needed!(helper_program("filter", "cc", &[]));
    let script = "grep -q memfd:fastpath /proc/self/maps || echo untouched; exit 3";
    for call in [
        libc::SYS_ptrace,
        libc::SYS_sendmsg,
        libc::SYS_memfd_create,
        libc::SYS_socketpair,
    ] {
        let prefix = [&filter, "forbid", &call.to_string()];
        warns_once_and_requires(&prefix, &["sh", "-c", script], 3, "untouched\n", "filter");
        // Nor does the refusal make a call that kills: it is not put on record then.
        let socket = libc::SYS_socket.to_string();
        let killing = [&[&*filter, "kill", &socket], &prefix[..]].concat();
        warns_once_and_requires(&killing, &["sh", "-c", script], 3, "untouched\n", "filter");
    }
}

#[test]
fn a_program_under_a_filter_that_forbids_nothing_needed_is_served() {
    let filter = needed!(helper_program("filter", "cc", &[]));
    let call = libc::SYS_acct.to_string();
    let leaf = ["grep", "-c", "memfd:fastpath-page", "/proc/self/maps"];
    let (untouched, required) = both(&[&filter, "forbid", &call], &leaf);
    untouched.expect_success().expect_output("1");
    required.expect_success().expect_output("1");
}

#[test]
fn a_program_that_forbids_itself_the_counter_survives() {
    // Static, and not on glibc: that reads the counter as it starts.
    let forbidden = needed!(helper_program("counter-forbidden", "musl-gcc", &["-static"]));
    finish(Command::new(&forbidden)).expect_signal(libc::SIGSEGV);
    finish(fastpath(&[REQUIRE, &[&forbidden]].concat()))
        .expect_success()
        .expect_output("alive");
}

/// Regression test: before the first anchor, the hook does not read the counter, so the program after an exec was served
/// though it inherits that it may not.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_that_inherits_a_forbidden_counter_is_left_alone() {
    let forbidden = needed!(helper_program("counter-forbidden", "musl-gcc", &["-static"]));
    const TRIES: u32 = 50;
    for _ in 0..TRIES {
        let run = finish(fastpath(&["run", "--clocks", "all", "--", &forbidden, "unseen"]));
        // The anchor was there already: the hook's read of the counter has killed the program, as any of its own would.
        if run.status.signal() == Some(libc::SIGSEGV) {
            continue;
        }
        run.expect_success().expect_output("untouched");
        return;
    }
    crate::common::skip("in no try was the program faster than the first anchor");
}

#[test]
fn a_warning_that_cannot_be_written_does_not_stop_the_program() {
    // Setuid to the same user changes only that fastpath leaves the program alone.
    let directory = tempfile::tempdir().expect("a directory");
    let program = install("/bin/sh", directory.path().join("setuid"), 0o4755);
    for redirection in ["2>&-", "2>/dev/full", "2>&1 | true", ">&- 2>&-"] {
        let mut shell = Command::new("sh");
        let script = format!("\"$0\" run --clocks all -- {program} -c 'exit 32' {redirection}");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_fastpath")]);
        let code = if redirection.contains('|') { 0 } else { 32 };
        finish(shell).expect_code(code);
    }
}
