//! Every libc and runtime: the page answers its clock reads, which make no system call.
//!
//! The same measurement on the same program without fastpath's page finds system calls, so a count of zero is
//! meaningful.

use std::process::Command;
use std::time::Duration;

use crate::common::clock_calls::{clock_calls, fewest_clock_calls};
use crate::common::{Pid, fastpath, finish, program, served, served_without_vdso, start, tests, wait_until};

/// More reads than any program makes while it is watched.
const ENDLESS: &str = "2000000000";
/// CPU time after which every runtime is in its loop, or at least in its start-up.
const STARTED: Duration = Duration::from_millis(300);

/// `runs` is the executable that the process finally runs.
fn reads_clocks_without_system_calls(name: &str, runs: &str) {
    let path = needed!(program(name));

    for run in [served, served_without_vdso] {
        let outcome = finish(run(&[&path, "2000"])).expect_success();
        assert!(
            outcome.out.lines().count() >= 2 && outcome.err.is_empty(),
            "{outcome:#?}"
        );
    }

    // A script starts the program, which is untouched if the publisher gets no CPU at that moment; then it is started
    // again.
    let start_until = |run: &dyn Fn() -> Command, is_right: &dyn Fn(Pid) -> bool| {
        let mut right = None;
        wait_until(&format!("{name} served"), || {
            let running = start(run());
            wait_for_loop(running.pid(), runs);
            right = is_right(running.pid()).then_some(running);
            right.is_some()
        });
        right.expect("just found")
    };
    let redirected = start_until(&|| served(&[&path, ENDLESS, "MONOTONIC"]), &|pid| pid.is_served());
    #[cfg(target_arch = "x86_64")]
    assert!(!crate::attach::stepping::entries(redirected.pid()).is_empty(), "{name}");
    drop(redirected);
    let on_the_page = start_until(&|| served_without_vdso(&[&path, ENDLESS, "MONOTONIC"]), &|pid| {
        pid.is_served()
    });
    // At its entry it is traced for a moment: a starved virtual CPU counts its waits as CPU time of what comes before.
    wait_until("the attendant to leave the program", || {
        on_the_page.pid().status("TracerPid") == "0"
    });
    let calls = needed!(fewest_clock_calls(on_the_page.pid()));
    assert_eq!(
        calls,
        0,
        "clock system calls of {name} under fastpath; {}",
        finish(fastpath(&["status"])).out
    );
    drop(on_the_page);

    // The program makes system calls without fastpath's page.
    let without = || fastpath(&["run", "--without-vdso", "--", &path, ENDLESS, "MONOTONIC"]);
    start_until(&without, &|pid| clock_calls(pid) != Some(0));
}

fn wait_for_loop(pid: Pid, runs: &str) {
    wait_until(&format!("{runs} in its loop"), || pid.program().starts_with(runs));
    let before = pid.cpu_time();
    wait_until(&format!("{runs} in its loop"), || pid.cpu_time() > before + STARTED);
}

tests! { reads_clocks_without_system_calls:
    a_program_on_glibc_reads_clocks_without_system_calls("clock-glibc", "clock-glibc");
    a_static_program_on_glibc_reads_clocks_without_system_calls("clock-glibc-static", "clock-glibc-static");
    a_static_pie_on_glibc_reads_clocks_without_system_calls("clock-glibc-static-pie", "clock-glibc-static-pie");
    a_program_on_musl_reads_clocks_without_system_calls("clock-musl", "clock-musl");
    a_static_program_on_musl_reads_clocks_without_system_calls("clock-musl-static", "clock-musl-static");
    a_32_bit_program_on_glibc_reads_clocks_without_system_calls("clock-i386-glibc", "clock-i386-");
    a_static_32_bit_program_on_glibc_reads_clocks_without_system_calls("clock-i386-glibc-static", "clock-i386-");
    a_32_bit_program_with_64_bit_time_reads_clocks_without_system_calls("clock-i386-time64", "clock-i386-");
    a_32_bit_program_on_musl_reads_clocks_without_system_calls("clock-i386-musl", "clock-i386-");
    a_static_32_bit_program_on_musl_reads_clocks_without_system_calls("clock-i386-musl-static", "clock-i386-");
    a_32_bit_go_program_reads_clocks_without_system_calls("clock-i386-go", "clock-i386-");
    a_go_program_reads_clocks_without_system_calls("clock-go", "clock-go");
    a_rust_program_reads_clocks_without_system_calls("clock-rust", "clock-rust");
    a_static_rust_program_reads_clocks_without_system_calls("clock-rust-static", "clock-rust-static");
    python_reads_clocks_without_system_calls("clock-python", "python");
    node_reads_clocks_without_system_calls("clock-node", "node");
    the_jvm_reads_clocks_without_system_calls("clock-java", "java");
}
