//! Programs that move or unmap their vDSO, as restarters of checkpoints, Valgrind and rr do, by system calls that no tool sees.

use std::process::Command;

use crate::common::{fastpath, finish, helper_program, program_32, start, tool, wait_until};

fn moved_vdso() -> Option<String> {
    helper_program("moved-vdso", "cc", &["-static"])
}

/// Runs `command` under fastpath, and asserts that its reads are right.
#[track_caller]
fn is_right(flags: &[&str], command: &[&str]) {
    let all = [&["run", "--clocks", "all", "--require"], flags, &["--"], command].concat();
    let outcome = finish(fastpath(&all)).expect_success();
    assert_eq!(outcome.out, "right\n", "{command:?}: {outcome:#?}");
}

#[test]
fn clocks_are_right_where_a_program_moved_its_vdso() {
    let program = needed!(moved_vdso());
    is_right(&[], &[&program, "moved"]);
    is_right(&["--rescue"], &[&program, "moved"]);
}

#[test]
fn clocks_are_right_where_a_program_moved_its_vdso_and_unmapped_the_region() {
    let program = needed!(moved_vdso());
    is_right(&[], &[&program, "restored"]);
    is_right(&["--rescue"], &[&program, "restored"]);
}

#[test]
fn clocks_are_right_where_a_32_bit_program_moved_its_vdso() {
    let program = needed!(program_32("moved-vdso-i386-glibc-static"));
    is_right(&[], &[&program, "moved"]);
    is_right(&[], &[&program, "restored"]);
}

#[test]
fn rescued_calls_of_a_program_that_unmapped_its_vdso_are_right() {
    let program = needed!(moved_vdso());
    is_right(&["--rescue"], &[&program, "removed"]);
}

#[test]
fn clocks_are_right_where_an_attached_program_moved_its_vdso() {
    let path = needed!(moved_vdso());
    for mode in ["moved", "restored"] {
        let mut command = Command::new(&path);
        command.args([mode, "wait"]);
        let running = start(command);
        wait_until("its wait", || running.out_so_far().contains("ready"));
        let pid = running.pid();
        finish(fastpath(&["attach", "-q", "--clocks", "all", &pid.0.to_string()])).expect_success();
        // SAFETY: kill takes integers.
        unsafe { libc::kill(pid.0, libc::SIGUSR1) };
        assert_eq!(running.finish().expect_success().out, "ready\nright\n", "{mode}");
    }
}

#[test]
fn valgrind_runs_a_program_whose_calls_are_rescued() {
    let valgrind = needed!(tool("valgrind"));
    let run = ["run", "--rescue", "--require", "--", valgrind, "-q", "date", "+right"];
    assert_eq!(finish(fastpath(&run)).expect_success().out, "right\n");
}
