//! Signals reach a served program as usual, and job control works.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::common::command::start_in_group;
use crate::common::terminal::give_terminal;
use crate::common::{Pid, finish, program, served, start, tool, wait_until};

#[test]
fn a_program_can_be_stopped_and_continued() {
    let clock = needed!(program("clock-glibc"));
    let running = start(served(&[&clock, "2000000000", "MONOTONIC"]));
    wait_until("the program", || running.pid().program() == "clock-glibc");
    let begun = running.pid().cpu_time();
    wait_until("the loop", || {
        running.pid().cpu_time() > begun + Duration::from_millis(50)
    });
    for signal in [libc::SIGSTOP, libc::SIGTSTP] {
        running.pid().signal(signal);
        wait_until("the stop", || running.pid().state() == 'T');
        let stopped_at = running.pid().cpu_time();
        // Longer than an anchor lasts.
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(running.pid().cpu_time(), stopped_at);
        running.pid().signal(libc::SIGCONT);
        wait_until("the program to continue", || {
            running.pid().cpu_time() > stopped_at + Duration::from_millis(50)
        });
    }
    running.pid().signal(libc::SIGTERM);
    running.finish().expect_signal(libc::SIGTERM);
}

#[test]
fn a_program_that_is_stopped_as_it_starts_stays_stopped_until_it_is_continued() {
    for delay_us in (0..40).map(|i| i * 700) {
        let running = start(served(&["sh", "-c", "sh -c 'exit 3'; exit 4"]));
        std::thread::sleep(Duration::from_micros(delay_us));
        running.pid().signal(libc::SIGSTOP);
        wait_until("the stop or the end", || running.pid().has_stopped_or_ended());
        running.pid().signal(libc::SIGCONT);
        running.finish().expect_code(4);
    }
}

#[test]
fn a_program_that_is_killed_as_it_starts_dies() {
    for delay_us in (0..40).map(|i| i * 700) {
        let running = start(served(&["sleep", "1000"]));
        std::thread::sleep(Duration::from_micros(delay_us));
        running.pid().signal(libc::SIGKILL);
        running.finish().expect_signal(libc::SIGKILL);
    }
}

#[test]
fn ctrl_c_ends_the_program_and_not_the_helper_of_others() {
    let mut command = served(&[
        "sh",
        "-c",
        "trap 'echo interrupted; exit 42' INT; echo ready; while :; do sleep 0.02; done",
    ]);
    let mut terminal = give_terminal(&mut command);
    let running = start_in_group(command);
    wait_until("the trap", || running.out_so_far().contains("ready"));
    let helper = Pid::helper(running.mark());
    terminal.type_in(b"\x03");
    let outcome = running.finish().expect_code(42);
    assert_eq!(outcome.out, "ready\ninterrupted\n");
    wait_until("the helper's end", || !helper.exists());
}

#[test]
fn the_helper_is_in_no_group_and_no_session_of_the_programs() {
    let mut command = served(&["sleep", "1000"]);
    command.process_group(0);
    let running = start(command);
    let helper = Pid::helper(running.mark());
    // The helper sets its name first.
    wait_until("a session of its own", || {
        // SAFETY: both take integers.
        let (group, session) = unsafe { (libc::getpgid(helper.0), libc::getsid(helper.0)) };
        (group, session) == (helper.0, helper.0)
    });
    running.pid().signal_group(libc::SIGTERM);
    running.finish().expect_signal(libc::SIGTERM);
}

#[test]
fn a_shell_sees_its_jobs_stop_and_continue() {
    // Bash itself may report the stop's status if it is asked before it was notified that the job continued.
    let script = "set -m; \"$@\" sh -c 'while [ -e \"$0\" ]; do sleep 0.05; done' \"$0\" & job=$!
        becomes() { until jobs | grep -i \"$1\"; do sleep 0.05; done; }
        becomes running; kill -STOP $job; becomes stopped; kill -CONT $job; becomes running; rm \"$0\"; wait $job; echo $?";
    let bash = needed!(tool("bash"));
    let file = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
    let mut bash = Command::new(bash);
    bash.args([
        "-c",
        script,
        file.to_str().expect("UTF-8"),
        env!("CARGO_BIN_EXE_fastpath"),
    ])
    .args(crate::common::SERVED);
    let outcome = finish(bash).expect_success();
    assert!(outcome.out.ends_with("\n0\n"), "{outcome:#?}");
}
