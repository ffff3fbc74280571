//! Attaching does not disturb threads that wait in the kernel: no EINTR, no wait that ends early, no changed signal
//! mask.

use std::process::Command;
use std::time::Duration;

use super::{Memory, attach, detach, hazard};
use crate::common::{fastpath, finish, helper_program, needs_root, start, wait_until};

#[test]
fn waits_that_begin_anew_at_a_stop_end_however_often_it_is_attached() {
    let running = needed!(hazard("bounded-waits", &[], "ready"));
    // A stop in less than a timeout made each of them wait on, without end.
    wait_until("the end of its waits", || {
        let is_over = running.out_so_far().lines().count() > 1;
        if !is_over {
            // It may end meanwhile.
            let _ = (attach(running.pid()), detach(running.pid()));
        }
        is_over
    });
    running.finish().expect_success().expect_output("ready\ndone");
}

#[test]
fn a_sleep_of_the_only_thread_is_not_cut_short_nor_failed() {
    /// What attach says of a process that has ended, and of a number that no process has.
    const ENDED: [Option<i32>; 2] = [Some(5), Some(3)];
    let mut seen = 0;
    wait_until("two sleeps that are attached before their end", || {
        let mut sleep = Command::new("sleep");
        sleep.arg("5");
        let begun = std::time::Instant::now();
        let running = start(sleep);
        wait_until("its sleep", || running.pid().read("wchan").contains("nanosleep"));
        for command in [attach, detach] {
            let done = command(running.pid());
            if ENDED.contains(&done.status.code()) {
                return false;
            }
            done.expect_success();
        }
        running.finish().expect_success();
        assert!(begun.elapsed() >= Duration::from_secs(5));
        seen += 1;
        seen == 2
    });
}

#[test]
fn a_process_that_job_control_stopped_stays_stopped() {
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let running = start(sleep);
    let pid = running.pid();
    wait_until("its sleep", || pid.program() == "sleep" && pid.state() == 'S');
    pid.signal(libc::SIGSTOP);
    wait_until("its stop", || pid.state() == 'T');
    let before = Memory::open(pid);
    attach(pid).expect_success();
    wait_until("its stop again", || pid.state() == 'T');
    assert!(pid.is_served());
    detach(pid).expect_success();
    wait_until("its stop again", || pid.state() == 'T');
    assert_eq!(Memory::open(pid), before);
    pid.signal(libc::SIGCONT);
    wait_until("its sleep again", || pid.state() == 'S');
}

#[test]
fn two_concurrent_attaches_attach_a_process_once() {
    for _ in 0..10 {
        let mut sleep = Command::new("sleep");
        sleep.arg("1000");
        let running = start(sleep);
        wait_until("its sleep", || running.pid().read("wchan").contains("nanosleep"));
        let pid = running.pid().0.to_string();
        let one = || start(fastpath(&["attach", "--clocks", "all", &pid]));
        let outcomes = [one(), one(), one()].map(|running| running.finish().status.code());
        let attached = outcomes.iter().filter(|code| **code == Some(0)).count();
        // Traced by the other, or attached by it already.
        let refused = outcomes.iter().filter(|code| matches!(code, Some(6 | 8))).count();
        assert_eq!((attached, refused), (1, 2), "{outcomes:?}");
        finish(fastpath(&["detach", &pid])).expect_success();
        assert!(!running.pid().read("maps").contains("memfd:fastpath"));
    }
}

#[test]
fn a_sleeper_whose_filter_kills_for_restart_syscall_lives() {
    let ((), program) = needed!(needs_root(), helper_program("filter", "cc", &[]));
    // Longer than all that follows takes on a busy machine.
    let sleepers = [&["sleep", "12"][..], &[&program, "kill", "39", "sleep", "12"]].map(|rest| {
        let mut command = Command::new(&program);
        command
            .args(["kill", &libc::SYS_restart_syscall.to_string()])
            .args(rest);
        start(command)
    });
    for running in &sleepers {
        wait_until("its sleep", || running.pid().read("wchan").contains("nanosleep"));
        attach(running.pid()).expect_success();
        assert!(running.pid().is_served());
        detach(running.pid()).expect_success();
    }
    for running in sleepers {
        running.finish().expect_success();
    }
}
