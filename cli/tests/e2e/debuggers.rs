//! A process is not traced while it runs, so debuggers work as usual: on a served program, and inside `run`.

use std::process::Command;
use std::time::Duration;

use crate::common::{Running, finish, program, served, start, tool, wait_until};

fn busy_clock() -> Option<Running> {
    let clock = program("clock-glibc")?;
    let running = start(served(&[&clock, "2000000000", "MONOTONIC"]));
    wait_until("the program", || running.pid().program() == "clock-glibc");
    let begun = running.pid().cpu_time();
    wait_until("the loop", || {
        running.pid().cpu_time() > begun + Duration::from_millis(100)
    });
    Some(running)
}

#[test]
fn a_served_program_is_not_traced() {
    let clock = needed!(busy_clock());
    for _ in 0..50 {
        assert_eq!(clock.pid().status("TracerPid"), "0");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_program_can_be_traced_by_one_that_is_served() {
    let strace = needed!(tool("strace"));
    let log = tempfile::NamedTempFile::new().expect("a file");
    let log_path = log.path().to_str().expect("UTF-8");
    let script = "sh -c 'exit 5'; exit 6";
    finish(served(&[
        strace,
        "-f",
        "-e",
        "trace=exit_group",
        "-o",
        log_path,
        "sh",
        "-c",
        script,
    ]))
    .expect_code(6);
    let seen = std::fs::read_to_string(log.path()).expect("the trace");
    assert!(
        seen.contains("exit_group(5)") && seen.contains("exit_group(6)"),
        "{seen}"
    );
}

#[test]
fn gdb_debugs_programs_inside_run() {
    let (gdb, clock) = needed!(tool("gdb"), program("clock-glibc"));
    let outcome = finish(served(&[
        gdb,
        "-nx",
        "-batch",
        "-ex",
        "set debuginfod enabled off",
        "-ex",
        "break main",
        "-ex",
        "run",
        "-ex",
        "print argc",
        "-ex",
        "delete",
        "-ex",
        "continue",
        "--args",
        &clock,
        "4711",
        "MONOTONIC",
    ]))
    .expect_success();
    assert!(
        outcome.out.contains("$1 = 3") && outcome.out.contains("exited normally"),
        "{outcome:#?}"
    );
}

#[test]
fn gdb_attaches_to_a_served_program_and_shows_where_it_is() {
    let gdb = needed!(tool("gdb"));
    let clock = needed!(busy_clock());
    let mut attach = Command::new(gdb);
    attach.args([
        "-nx",
        "-batch",
        "-ex",
        "set debuginfod enabled off",
        "-p",
        &clock.pid().0.to_string(),
    ]);
    attach.args(["-ex", "backtrace", "-ex", "detach"]);
    let outcome = finish(attach).expect_success();
    assert!(
        outcome.out.contains("read_many") && outcome.out.contains("main"),
        "{outcome:#?}"
    );
    assert!(!outcome.out.contains("corrupt stack"), "{outcome:#?}");
    let before = clock.pid().cpu_time();
    wait_until("the program to continue", || {
        clock.pid().cpu_time() > before + Duration::from_millis(50)
    });
}

#[test]
fn a_served_program_keeps_the_kernels_vdso() {
    let script = "LD_SHOW_AUXV=1 exec cat /proc/self/maps";
    let out = finish(served(&["sh", "-c", script])).expect_success().out;
    assert!(out.contains("/memfd:fastpath-page"), "{out}");
    let line = |what: &str| out.lines().find(|line| line.contains(what)).expect(what);
    let told = line("AT_SYSINFO_EHDR").rsplit("0x").next().expect("an address");
    assert!(line("[vdso]").starts_with(told), "{out}");
}

#[test]
fn gdb_stops_a_served_program_in_the_vdso_and_names_its_functions_and_their_callers() {
    let gdb = needed!(tool("gdb"));
    let clock = needed!(busy_clock());
    let mut attach = Command::new(gdb);
    let pid = clock.pid().0.to_string();
    attach.args(["-nx", "-batch", "-ex", "set debuginfod enabled off", "-p", &pid]);
    for command in [
        "break *__vdso_clock_gettime",
        "continue",
        "info symbol $pc",
        "backtrace",
        // Into the code for reads.
        "stepi 10",
        "info symbol $pc",
        "backtrace",
        "delete",
        "detach",
    ] {
        attach.args(["-ex", command]);
    }
    let out = finish(attach).expect_success().out;
    assert!(out.contains("clock_gettime in section .text of "), "{out}");
    assert!(out.contains("gettimeofday + "), "{out}");
    // The place where gdb attached can be in read_many, too: that line is no frame of a backtrace.
    let callers = out
        .lines()
        .filter(|line| line.starts_with('#') && line.contains("read_many ("));
    assert_eq!(callers.count(), 2, "{out}");
    let before = clock.pid().cpu_time();
    wait_until("going on", || {
        clock.pid().cpu_time() > before + Duration::from_millis(50)
    });
}

#[test]
fn strace_attaches_to_a_shell_and_follows_its_children() {
    let strace = needed!(tool("strace"));
    let mut shell = served(&["sh", "-c", "while [ ! -e \"$0\" ]; do :; done; sh -c 'exit 5'; exit $?"]);
    let go = tempfile::tempdir().expect("a directory").path().join("go");
    std::fs::create_dir_all(go.parent().expect("a parent")).expect("a directory");
    shell.arg(&go);
    let shell = start(shell);
    wait_until("the shell", || shell.pid().program() != "fastpath");
    let begun = shell.pid().cpu_time();
    wait_until("its loop", || {
        shell.pid().cpu_time() > begun + Duration::from_millis(50)
    });
    let log = tempfile::NamedTempFile::new().expect("a file");
    let mut attach = Command::new(strace);
    attach.args(["-f", "-e", "trace=exit_group", "-o"]).arg(log.path());
    attach.args(["-p", &shell.pid().0.to_string()]);
    let tracer = start(attach);
    wait_until("being traced", || {
        shell.pid().status("TracerPid") == tracer.pid().0.to_string()
    });
    std::fs::write(&go, "").expect("write");
    shell.finish().expect_code(5);
    tracer.finish();
    let seen = std::fs::read_to_string(log.path()).expect("the trace");
    assert_eq!(seen.matches("exit_group(5)").count(), 2, "{seen}");
    let _ = std::fs::remove_dir_all(go.parent().expect("a parent"));
}
