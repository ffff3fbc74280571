//! Programs of every libc and runtime are attached while they run: the functions that they have looked up are
//! redirected to the page, and restored.

use super::stepping::{entries, step};
use super::{Memory, attach, detach};
use crate::common::processes::{TIMEOUT, holds_within};
use crate::common::{Pid, Running, program, start, tests, tool, wait_until};

/// More reads than any program makes while it is watched.
const ENDLESS: &str = "2000000000";

/// Starts a program that reads the clock, and waits until it has done so for a while; `runs` is the program that it
/// executes.
fn reading(name: &str, runs: &str) -> Option<Running> {
    let mut command = std::process::Command::new(program(name)?);
    command.args([ENDLESS, "MONOTONIC"]);
    let running = start(command);
    let pid = running.pid();
    wait_until("its loop", || {
        pid.program().starts_with(runs) && pid.cpu_time().as_millis() > 300
    });
    Some(running)
}

fn is_answered_by_the_page_while_attached(name: &str, runs: &str) {
    let running = needed!(reading(name, runs));
    let pid = running.pid();

    let before = (step(pid), super::vdso(pid));
    assert!(
        before.0.in_kernels_vdso > 0 && before.0.in_region == 0,
        "{:?}",
        before.0
    );

    attach(pid).expect_success().expect_output("");
    assert!(!entries(pid).is_empty());
    assert_eq!(pid.status("TracerPid"), "0");
    // The publisher gets a CPU during at least one of some attempts.
    let mut seen = Vec::new();
    let by_page = holds_within(TIMEOUT, || {
        let steps = step(pid);
        let good = steps.are_of_reads_by_the_page();
        seen.push(steps);
        good
    });
    assert!(by_page, "{seen:?}");

    detach(pid).expect_success().expect_output("");
    let after = step(pid);
    assert!(after.in_kernels_vdso > 0 && after.in_region == 0, "{after:?}");
    assert!(super::vdso(pid) == before.1, "the vDSO differs");
    assert!(pid.exists());
}

tests! { is_answered_by_the_page_while_attached:
    a_program_on_glibc_is_answered_by_the_page_while_it_is_attached("clock-glibc", "clock-glibc");
    a_static_program_on_glibc_is_answered_by_the_page_while_it_is_attached("clock-glibc-static", "clock-glibc-static");
    a_static_pie_on_glibc_is_answered_by_the_page_while_it_is_attached("clock-glibc-static-pie", "clock-glibc-static-pie");
    a_program_on_musl_is_answered_by_the_page_while_it_is_attached("clock-musl", "clock-musl");
    a_static_program_on_musl_is_answered_by_the_page_while_it_is_attached("clock-musl-static", "clock-musl-static");
    a_rust_program_is_answered_by_the_page_while_it_is_attached("clock-rust", "clock-rust");
    python_is_answered_by_the_page_while_it_is_attached("clock-python", "python");
}

/// For runtimes whose clocks are not read by the first thread.
fn survives_attach_and_detach(name: &str, runs: &str) {
    let running = needed!(reading(name, runs));
    let pid = running.pid();
    let vdso = super::vdso(pid);
    for _ in 0..5 {
        attach(pid).expect_success().expect_output("");
        goes_on(pid);
        detach(pid).expect_success().expect_output("");
        goes_on(pid);
    }
    assert!(super::vdso(pid) == vdso, "the vDSO differs");
    assert!(!pid.read("maps").contains("memfd:fastpath"), "{}", pid.read("maps"));
}

fn goes_on(pid: Pid) {
    let before = pid.cpu_time();
    wait_until("some more of its work", || pid.cpu_time() > before);
}

tests! { survives_attach_and_detach:
    a_go_program_survives_attach_and_detach("clock-go", "clock-go");
    node_survives_attach_and_detach("clock-node", "node");
    the_jvm_survives_attach_and_detach("clock-java", "java");
}

#[test]
fn a_shell_that_waits_is_attached_and_detached_with_nothing_left_behind() {
    let sh = needed!(tool("sh"));
    let mut command = std::process::Command::new(sh);
    command.args(["-c", "sleep 1000; :"]);
    let running = start(command);
    let pid = running.pid();
    wait_until("its child", || {
        pid.children().iter().any(|child| child.program() == "sleep")
    });
    let before = Memory::open(pid);
    attach(pid).expect_success();
    assert_ne!(Memory::open(pid), before);
    detach(pid).expect_success();
    assert_eq!(Memory::open(pid), before);
}
