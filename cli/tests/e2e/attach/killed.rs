//! fastpath is killed at any moment of an attach or a detach: the process goes on, right, and can be detached later.

use std::process::Command;
use std::time::Duration;

use super::{Memory, attach, detach, vdso};
use crate::common::{Pid, Running, fastpath, finish, helper_program, start, tool, wait_until};

const TIMES: u64 = 200;

#[test]
fn a_process_survives_the_death_of_fastpath_at_any_moment() {
    let Some(path) = helper_program("sleepers", "cc", &[]) else {
        return;
    };
    let running = start(Command::new(path));
    wait_until("its threads", || running.out_so_far().contains("ready"));
    std::thread::sleep(Duration::from_millis(300));
    let (_, before) = vdso(running.pid());
    let pid = running.pid().0.to_string();
    // How long one takes here, from its start to its end.
    let begun = std::time::Instant::now();
    finish(fastpath(&["attach", "--clocks", "all", &pid])).expect_success();
    let attach_time = begun.elapsed();
    let begun = std::time::Instant::now();
    finish(fastpath(&["detach", &pid])).expect_success();
    let detach_time = begun.elapsed();

    let mut attached = 0;
    for time in 0..TIMES {
        let (arguments, length) = if running.pid().is_served() {
            (vec!["detach", &pid], detach_time)
        } else {
            (vec!["attach", "--clocks", "all", &pid], attach_time)
        };
        let killed = start(fastpath(&arguments));
        // All parts of it in turn, in an order that has nothing to do with them: 0.618 is the golden ratio's.
        let part = (time as f64 * 0.618).fract();
        std::thread::sleep(length.mul_f64(part));
        killed.pid().signal(libc::SIGKILL);
        killed.finish();
        assert!(running.pid().exists(), "after {arguments:?}, {part} of {length:?}");
        attached += u32::from(running.pid().is_served());
    }
    assert!(attached > 0, "none was attached, ever");
    // Whatever stands: one that is let finish puts it right.
    let outcome = detach(running.pid());
    assert!(matches!(outcome.status.code(), Some(0 | 15)), "{outcome:#?}");
    finish(fastpath(&["attach", "--clocks", "all", &pid])).expect_success();
    detach(running.pid()).expect_success();
    let (_, after) = vdso(running.pid());
    assert!(code(&after) == code(&before), "the vDSO's code is another");
    assert!(!running.pid().read("maps").contains("fastpath-region"));
    running.pid().signal(libc::SIGTERM);
    let outcome = running.finish();
    // A call that answers EINTR after a stop is made again by whoever stopped it; dead, he cannot.
    let others = outcome
        .out
        .lines()
        .filter(|line| !line.contains("Interrupted system call"));
    assert_eq!(others.collect::<Vec<_>>(), ["ready", "done"], "{outcome:#?}");
}

/// The code of a vDSO: what is behind it is zeros, or what a fastpath that died left there.
fn code(vdso: &[u8]) -> &[u8] {
    &vdso[..vdso.len() - 192]
}

/// Attaches, by a fastpath that is killed as it makes its `call`th ptrace(2) call. Whether it came to that.
fn attach_and_be_killed(strace: &str, pid: Pid, call: u32) -> bool {
    let mut command = Command::new(strace);
    command
        .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=ptrace", "-e"])
        .arg(format!("inject=ptrace:signal=KILL:when={call}"))
        .arg(env!("CARGO_BIN_EXE_fastpath"))
        .args(["attach", "--clocks", "all", &pid.0.to_string()]);
    let running = start(command);
    // strace stays for as long as the publisher does, which is nobody's child. Before, it has children of its own.
    let tracer = running.pid();
    let has_ended = || tracer.state() == 'Z';
    let is_at_it = || {
        let children = tracer.read(&format!("task/{}/children", tracer.0));
        let mut children = children.split_whitespace().filter_map(|pid| pid.parse().ok().map(Pid));
        children.any(|child| child.read("comm").trim() == "fastpath")
    };
    wait_until("its start", || is_at_it() || has_ended());
    wait_until("its end", || !is_at_it() || has_ended());
    let outcome = detach(pid);
    assert!(matches!(outcome.status.code(), Some(0 | 15)), "{outcome:#?}");
    running.finish().status.code() != Some(0)
}

fn sleeper() -> Running {
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let running = start(sleep);
    wait_until("its sleep", || running.pid().read("wchan").contains("nanosleep"));
    running
}

/// Of the calls of an attach, so many are tried.
const EACH: usize = 3;
const MOST_CALLS: u32 = 1000;

#[test]
fn what_a_killed_fastpath_leaves_behind_the_next_one_removes() {
    let Some(strace) = tool("strace") else { return };
    let running = sleeper();
    let before = Memory::of(running.pid());
    let mut sockets = 0;
    for call in (1..MOST_CALLS).step_by(EACH) {
        if !attach_and_be_killed(strace, running.pid(), call) {
            break;
        }
        let after = Memory::of(running.pid());
        assert_eq!(
            (&after.mappings, after.vdso),
            (&before.mappings, before.vdso),
            "call {call}"
        );
        // A pair that had been made a moment before.
        assert!(
            after.descriptors <= before.descriptors + sockets + 2,
            "call {call}: {after:?}"
        );
        sockets = after.descriptors - before.descriptors;
    }
    // Of hundreds of moments, few are that one; on a busy machine an attach tries again, and there are more.
    assert!(sockets <= 8, "{sockets}");
    attach(running.pid()).expect_success();
    detach(running.pid()).expect_success();
}

#[test]
fn a_killed_fastpath_shows_an_eintr_to_one_thread_at_most() {
    let (Some(strace), Some(path)) = (tool("strace"), helper_program("sleepers", "cc", &[])) else {
        return;
    };
    let running = start(Command::new(path));
    wait_until("its threads", || running.out_so_far().contains("ready"));
    std::thread::sleep(Duration::from_millis(300));
    let told = || running.out_so_far().matches("Interrupted system call").count();
    let mut before = 0;
    for call in (1..MOST_CALLS).step_by(EACH) {
        if !attach_and_be_killed(strace, running.pid(), call) {
            break;
        }
        // Longer than any of its waits.
        std::thread::sleep(Duration::from_millis(250));
        let after = told();
        assert!(after <= before + 1, "call {call}: {}", running.out_so_far());
        before = after;
    }
    running.pid().signal(libc::SIGTERM);
    let outcome = running.finish();
    let others = outcome
        .out
        .lines()
        .filter(|line| !line.contains("Interrupted system call"));
    assert_eq!(others.collect::<Vec<_>>(), ["ready", "done"], "{outcome:#?}");
}
