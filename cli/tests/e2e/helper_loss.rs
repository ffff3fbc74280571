//! The helper killed or stopped: the time stays right, nobody waits for it, and what can be fast again becomes so.

use std::time::{Duration, Instant};

use crate::common::clock_calls::{fewest_clock_calls, makes_clock_calls};
use crate::common::processes::holds_within;
use crate::common::{Pid, Running, fastpath, program, served, start, wait_until};

/// Longer than an anchor is believed.
const ANCHOR_IS_OLD: Duration = Duration::from_millis(700);

fn busy(command: &[&str]) -> (Running, Pid) {
    let running = start(served(command));
    // fastpath itself is the same process before it becomes the program, and on a slow machine computes for long: a helper
    // that is stopped then is waited for.
    wait_until("the program", || {
        running.pid().is_served() && running.pid().program() != "fastpath"
    });
    let begun = running.pid().cpu_time();
    wait_until("the loop", || (running.pid().cpu_time() - begun).as_millis() > 100);
    let helper = Pid::helper(running.mark());
    (running, helper)
}

#[test]
fn a_killed_helper_makes_no_read_wrong() {
    let Some(torture) = program("torture") else { return };
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let (running, helper) = busy(&[
            &torture,
            "-s",
            "3",
            "-t",
            "2",
            "-m",
            "causal,mixed",
            "-c",
            "MONOTONIC,REALTIME",
        ]);
        std::thread::sleep(Duration::from_millis(300));
        helper.signal(signal);
        let outcome = running.finish().expect_success();
        assert!(outcome.out.contains("\"violations\":0}"), "{outcome:#?}");
    }
}

#[test]
fn a_helper_that_is_stopped_now_and_then_makes_no_read_wrong() {
    let Some(torture) = program("torture") else { return };
    let (running, helper) = busy(&[
        &torture,
        "-s",
        "5",
        "-t",
        "2",
        "-m",
        "same,causal,mixed",
        "-c",
        "MONOTONIC,REALTIME",
    ]);
    for stop_ms in [1, 20, 90, 150, 250, 400, 700, 5, 300, 120] {
        helper.signal(libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(stop_ms));
        helper.signal(libc::SIGCONT);
        std::thread::sleep(Duration::from_millis(150));
    }
    let outcome = running.finish().expect_success();
    assert!(outcome.out.contains("\"violations\":0}"), "{outcome:#?}");
}

#[test]
fn reads_go_to_the_kernel_while_the_helper_stands_and_are_fast_again_when_it_goes_on() {
    let Some(clock) = program("clock-glibc") else { return };
    let (running, helper) = busy(&[&clock, "2000000000", "MONOTONIC"]);
    helper.signal(libc::SIGSTOP);
    std::thread::sleep(ANCHOR_IS_OLD);
    let asks_kernel = makes_clock_calls(running.pid());
    // Before anything may fail: a stopped helper that is left behind holds whoever waits for the end of its output.
    helper.signal(libc::SIGCONT);
    let Some(asks_kernel) = asks_kernel else { return };
    assert!(asks_kernel, "a page that nobody keeps is still believed");
    std::thread::sleep(ANCHOR_IS_OLD);
    assert_eq!(fewest_clock_calls(running.pid()), Some(0));
    helper.signal(libc::SIGKILL);
    std::thread::sleep(ANCHOR_IS_OLD);
    assert_ne!(makes_clock_calls(running.pid()), Some(false));
}

#[test]
fn programs_start_without_delay_while_the_helper_is_stopped_or_gone() {
    for signal in [libc::SIGSTOP, libc::SIGKILL] {
        let directory = tempfile::tempdir().expect("a directory");
        let go = directory.path().join("go");
        let script = "while [ ! -e \"$0\" ]; do :; done; \
            for i in 1 2 3 4 5 6 7 8 9 10; do sh -c 'exit 3' || /bin/true; done; echo $?";
        let (running, helper) = busy(&["sh", "-c", script, go.to_str().expect("UTF-8")]);
        helper.signal(signal);
        std::thread::sleep(ANCHOR_IS_OLD);
        let begun = Instant::now();
        std::fs::write(&go, "").expect("write");
        let outcome = running.finish_within(Duration::from_secs(20)).expect_success();
        let took = begun.elapsed();
        helper.signal(libc::SIGCONT);
        assert_eq!(outcome.out, "0\n");
        assert!(took < Duration::from_secs(2), "20 programs took {took:?}");
        assert!(
            holds_within(Duration::from_secs(2), || !helper.exists()),
            "{}",
            helper.describe()
        );
    }
}

#[test]
fn a_helper_that_stops_while_programs_start_holds_each_up_for_no_more_than_a_moment() {
    let script =
        "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sh -c 'exit 3' || /bin/true; done; echo $?";
    for delay_ms in [1, 3, 5, 8, 13, 21] {
        let running = start(served(&["sh", "-c", script]));
        wait_until("the shell", || running.pid().program() != "fastpath");
        let helper = Pid::helper(running.mark());
        std::thread::sleep(Duration::from_millis(delay_ms));
        helper.signal(libc::SIGSTOP);
        // A program that is being looked at stands until its tracer goes on, and only that one.
        std::thread::sleep(Duration::from_millis(300));
        helper.signal(libc::SIGCONT);
        assert_eq!(
            running.finish_within(Duration::from_secs(20)).expect_success().out,
            "0\n"
        );
    }
}

/// How often the helper is killed as a program starts; FASTPATH_TEST_KILLS may say otherwise.
const KILLS: u32 = 200;

#[test]
fn a_helper_that_is_killed_at_any_moment_of_the_start_leaves_a_program_that_runs() {
    let Some(clock) = program("clock-glibc") else { return };
    let script = format!("{clock} 10 MONOTONIC | wc -l; sh -c 'exit 3'; echo $?; exit 4");
    kill_at_any_moment(&script, "1\n3\n", 4);
}

/// Runs a shell's script many times, kills the helper at another moment each time, and expects output and exit status.
pub fn kill_at_any_moment(script: &str, out: &str, code: i32) {
    let kills = std::env::var("FASTPATH_TEST_KILLS").ok().and_then(|n| n.parse().ok());
    let kills = kills.unwrap_or(KILLS);
    let (mut seed, mut hit) = (0x9e37_79b9u32, 0);
    for round in 0..kills {
        // xorshift: the moments differ, and a failure's number says which it was.
        seed ^= seed << 13;
        seed ^= seed >> 17;
        seed ^= seed << 5;
        let delay = Duration::from_micros(u64::from(seed % 6000));
        let running = start(fastpath(&[
            "run",
            "--without-vdso",
            "--clocks",
            "all",
            "--",
            "sh",
            "-c",
            script,
        ]));
        if let Some(helper) = young_helper(&running) {
            std::thread::sleep(delay);
            helper.signal(libc::SIGKILL);
            hit += 1;
        }
        let outcome = running.finish_within(Duration::from_secs(20));
        assert!(
            outcome.status.code() == Some(code) && outcome.out == out,
            "round {round}, killed after {delay:?}: {outcome:#?}"
        );
    }
    assert!(hit > kills / 2, "the helper was found only {hit} times of {kills}");
}

/// The helper, as soon as it is there: its PID follows the program's.
fn young_helper(running: &Running) -> Option<Pid> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        let near = (1..40).map(|i| Pid(running.pid().0 + i));
        if let Some(helper) = Pid::helpers_among(near, running.mark()).first() {
            return Some(*helper);
        }
    }
    None
}
