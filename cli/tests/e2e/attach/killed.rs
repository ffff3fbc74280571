//! fastpath is killed at any moment of an attach or a detach: the process goes on, right, and can be detached later.

use std::process::Command;
use std::time::Duration;

use super::{detach, vdso};
use crate::common::{fastpath, finish, helper_program, start, wait_until};

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
