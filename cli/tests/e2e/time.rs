//! The time is correct, and never goes back.

use std::process::Command;

use crate::common::{finish, program, served};

#[test]
fn threads_that_read_as_fast_as_they_can_see_no_contradiction() {
    let torture = needed!(program("torture"));
    let outcome = finish(served(&[&torture, "-s", "6", "-t", "2"])).expect_success();
    assert!(outcome.out.contains("\"violations\":0}"), "{outcome:#?}");
}

#[test]
fn processes_of_one_tree_agree_on_the_time() {
    let torture = needed!(program("torture"));
    let script = "for i in 1 2 3; do \"$0\" -s 1 -t 1 -m same,mixed & pids=\"$pids $!\"; done; for p in $pids; do wait $p || exit 1; done";
    finish(served(&["sh", "-c", script, &torture])).expect_success();
}

#[test]
fn nested_runs_serve_the_program_once_with_the_correct_time() {
    let torture = needed!(program("torture"));
    let inner = [
        env!("CARGO_BIN_EXE_fastpath"),
        "run",
        "--clocks",
        "all",
        "--require",
        "--",
    ];
    let nested = [&inner[..], &inner[..], &[&torture, "-s", "1"]].concat();
    finish(served(&nested)).expect_success();
    let leaf = [&inner[..], &["grep", "-c", "memfd:fastpath-page", "/proc/self/maps"]].concat();
    finish(served(&leaf)).expect_success().expect_output("1");
}

#[test]
fn functions_that_fastpath_does_not_answer_stay_the_kernels() {
    if crate::common::tool("python3").is_none() {
        return;
    }
    // CPU-time clocks, a clock of a process that does not exist, an invalid one, and resolutions.
    let script = "import time\n\
        assert time.process_time() > 0 and time.thread_time() > 0\n\
        for clock in 99, -2, 13:\n\
        \x20   try:\n        print(clock, time.clock_gettime(clock) >= 0)\n\
        \x20   except OSError as e:\n        print(clock, e.errno)\n\
        for clock in range(12):\n\
        \x20   try:\n        print(clock, time.clock_getres(clock), time.clock_gettime(clock) > 0)\n\
        \x20   except OSError as e:\n        print(clock, e.errno)\n";
    let mut bare = Command::new("python3");
    bare.args(["-c", script]);
    assert_eq!(
        finish(served(&["python3", "-c", script])).expect_success().out,
        finish(bare).expect_success().out
    );
}
