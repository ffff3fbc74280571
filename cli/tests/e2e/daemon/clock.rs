//! A program with nothing but `fastpath-clock.h`, and a daemon.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use super::Place;
use crate::common::{fastpath, finish, needs_root, program, served, served_without_vdso};

/// (On a host whose clock only the kernel reads: kernels.rs)
#[test]
fn the_header_tells_a_fast_clock_from_a_slow_one() {
    let witness = needed!(program("clock-witness"));
    let checked = |mut command: Command, says: &str| {
        command.args([&witness, "check"]);
        // A measurement on a busy machine, and a page that has no time for a moment.
        let is_so = || finish(command_again(&command)).out.starts_with(says);
        assert!((0..20).any(|_| is_so()), "{says}: {:#?}", finish(command));
    };
    let direct = Command::new("env");
    let healthy = finish(fastpath(&["probe", "--json"]))
        .out
        .contains("\"id\":1,\"path\":\"vdso\"");
    if healthy {
        checked(direct, "path 2, slow 0, fast, ");
    }
    if cfg!(target_arch = "x86_64") {
        let outcome = finish({
            let mut forbidden = Command::new(&witness);
            forbidden.arg("check-");
            forbidden
        });
        assert!(outcome.out.contains("slow -1, unknown, "), "{outcome:#?}");
    }
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        checked(served(&[]), "path 3, slow 0, fast, ");
        checked(served_without_vdso(&[]), "path 3, slow 0, fast, ");
        if healthy {
            // fastpath is there, and the kernel's vDSO answers.
            checked(
                fastpath(&["run", "--clocks", "tai", "--require", "--"]),
                "path 2, slow 0, ",
            );
            // Nothing is served: the host's clocks are fast.
            checked(fastpath(&["run", "--without-vdso", "--"]), "path 0, slow 1, no-vdso, ");
        }
        // Only another clock than MONOTONIC is served.
        let other = ["run", "--without-vdso", "--clocks", "tai", "--require", "--"];
        checked(fastpath(&other), "path 1, slow 1, ");
    }
}

fn command_again(command: &Command) -> Command {
    let mut again = Command::new(command.get_program());
    again.args(command.get_args());
    again
}

#[test]
fn times_of_the_header_never_go_back_while_daemons_are_killed() {
    let (witness, ()) = needed!(program("clock-witness"), needs_root());
    let place = Place::alone();
    let mut daemon = place.daemon();
    // Also in a child that began before the daemon was killed, and under a filter that kills for calls.
    let steps = "open=1 page threads fork page threads bounds=1000 pause kernel threads pause page threads filter page";
    let mut reader = Command::new(witness)
        .args(steps.split(' '))
        .env("FASTPATH_SOCKET", place.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the witness");
    let mut input = reader.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(reader.stdout.take().expect("a pipe"))
        .lines()
        .map_while(Result::ok);
    assert!(lines.next().is_some_and(|line| line.starts_with("bounds: ")));
    assert_eq!(lines.next().as_deref(), Some("paused"));
    assert_eq!(place.status().pages_in_all, 1);
    // It is not taken for a process whose vDSO is redirected.
    let pid = reader.id().to_string();
    let status = finish(place.fastpath(&["status"]));
    assert!(!status.out.contains(&pid), "{status:#?}");
    if cfg!(target_arch = "x86_64") {
        finish(place.fastpath(&["attach", "--clocks", "all", &pid])).expect_code(0);
        assert_eq!(place.status().pages_in_all, 2);
    }
    daemon.pid().signal(libc::SIGKILL);
    input.write_all(b"\n").expect("write");
    assert_eq!(lines.next().as_deref(), Some("paused"));
    daemon = place.daemon();
    input.write_all(b"\n").expect("write");
    assert_eq!(lines.next().as_deref(), Some("ok"));
    assert!(reader.wait().expect("wait").success());
    drop(daemon);
}
