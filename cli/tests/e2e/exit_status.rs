//! The exit status is the program's; if there is no program, it is `env`'s.

use std::process::Command;

use crate::common::{fastpath, finish, install_script, served, start, wait_until};

#[test]
fn run_returns_every_exit_status_of_the_program() {
    for code in 0..=255 {
        let outcome = finish(served(&["sh", "-c", &format!("exit {code}")])).expect_code(code);
        assert!(outcome.out.is_empty() && outcome.err.is_empty(), "{outcome:#?}");
    }
}

/// Without memory, Rust's standard library says so, and aborts.
#[test]
fn a_command_that_aborts_has_an_exit_status() {
    let running = start(fastpath(&["status", "--watch"]));
    wait_until("a table", || running.out_so_far().contains("fastpath status"));
    running.pid().signal(libc::SIGABRT);
    running.finish().expect_code(70);
}

#[test]
fn run_dies_of_the_signal_that_kills_the_program() {
    let stopping = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
    let harmless = [libc::SIGCHLD, libc::SIGCONT, libc::SIGURG, libc::SIGWINCH];
    let deadly = |s: &i32| !stopping.contains(s) && !harmless.contains(s);
    for signal in (1..=31).chain([34, 50, 64]).filter(deadly) {
        finish(served(&[
            "sh",
            "-c",
            &format!("ulimit -c 0; kill -{signal} $$; sleep 1000"),
        ]))
        .expect_signal(signal);
    }
}

#[test]
fn a_missing_program_gives_127_and_one_that_cannot_be_executed_126() {
    let directory = tempfile::tempdir().expect("a directory");
    let plain = directory.path().join("plain");
    std::fs::write(&plain, "not a program").expect("write");
    let plain = plain.to_str().expect("UTF-8");
    for (command, code) in [
        ("/nonexistent/program", 127),
        ("nonexistent-program", 127),
        ("", 127),
        (plain, 126),
        ("/", 126),
        ("/etc/passwd/x", 126),
    ] {
        finish({
            let mut env = Command::new("env");
            env.arg("--").arg(command);
            env
        })
        .expect_code(code);
        for options in [
            vec!["run", "--clocks", "all", "--require", "--"],
            vec!["run", "--without-vdso", "--"],
            vec!["run", "--"],
        ] {
            let mut run = fastpath(&options);
            run.arg(command);
            let outcome = finish(run).expect_code(code);
            assert_eq!(outcome.err.lines().count(), 1, "{outcome:#?}");
            assert!(
                outcome.err.contains(&format!("cannot execute {command}")),
                "{outcome:#?}"
            );
        }
    }
}

#[test]
fn a_script_without_an_interpreter_line_runs_as_it_does_under_env() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = &install_script("echo \"$0 $1\"; exit 9\n", directory.path().join("script"));
    let bare = finish({
        let mut env = Command::new("env");
        env.args([script, "x"]);
        env
    })
    .expect_code(9);
    let outcome = finish(fastpath(&["run", "--clocks", "all", "--", script, "x"])).expect_code(9);
    assert_eq!(outcome.out, bare.out);
}
