//! Programs that start under a seccomp filter, or under low resource limits.
//!
//! `inside` runs a program under a filter that its parent has too: the container's, or the shell's. Other filters are
//! the program's own.

use std::os::unix::process::CommandExt;
use std::process::Command;

use super::{SERVED, Server, library, verbose};
use crate::common::{Outcome, finish, helper_program, needs_root, program, tool};

/// Starts a program, which reports whether it is served, by a shell under a filter that answers `number` by `action`.
fn inside(server: &Server, action: &str, number: libc::c_long) -> Option<Outcome> {
    let filter = helper_program("filter", "cc", &[])?;
    let number = number.to_string();
    let preload = format!("LD_PRELOAD={}", library());
    let script = "\"$@\"; exit $?";
    let command = [
        &filter, action, &number, "sh", "-c", script, "sh", "env", &preload, "echo", "ran",
    ];
    let mut run = verbose(server, &command);
    run.env_remove("LD_PRELOAD");
    Some(finish(run))
}

#[track_caller]
fn expect_untouched(outcome: Outcome, why: &str) {
    let outcome = outcome.expect_success();
    let said = format!("libfastpath-preload: not served: {why}\n");
    assert_eq!((outcome.out.as_str(), outcome.err), ("ran\n", said));
}

/// A call that no program here makes, so that only the filter's presence matters.
const NEVER_MADE: libc::c_long = libc::SYS_vmsplice;

#[test]
fn under_a_filter_that_allows_it_a_program_is_served() {
    let server = Server::start();
    if let Some(outcome) = inside(&server, "kill", NEVER_MADE) {
        let outcome = outcome.expect_success();
        assert_eq!((outcome.out.as_str(), outcome.err.as_str()), ("ran\n", SERVED));
        // One request of the trial's child, and one of the program.
        assert_eq!(server.requests(), 2);
    }
}

#[test]
fn the_trial_leaves_nothing_behind() {
    let (filter, state) = needed!(helper_program("filter", "cc", &[]), program("state"));
    let server = Server::start();
    let (never, preload) = (NEVER_MADE.to_string(), format!("LD_PRELOAD={}", library()));
    let under = |more: &[&str]| {
        let script = "\"$@\"; exit $?";
        let command = [&[&filter, "kill", &never, "sh", "-c", script, "sh"], more, &[&state]].concat();
        let mut run = verbose(&server, &command);
        run.env_remove("LD_PRELOAD");
        let mut lines = super::inherited(&finish(run).expect_success());
        // These lines are the shell's.
        lines.retain(|line| !line.starts_with("ppid ") && !line.starts_with("pgid "));
        lines
    };
    assert_eq!(under(&[]), under(&["env", &preload]));
    assert!(server.requests() > 0);
}

/// Every call that the library makes in addition to the loader's own.
const CALLS: [libc::c_long; 10] = [
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_getsockopt,
    libc::SYS_sendmsg,
    libc::SYS_ppoll,
    libc::SYS_recvmsg,
    libc::SYS_prctl,
    libc::SYS_prlimit64,
    libc::SYS_clone,
    libc::SYS_wait4,
];

#[test]
fn a_program_whose_filter_refuses_a_call_runs_untouched() {
    let server = Server::start();
    // The shell itself clones and waits; the limit of core dumps is not required.
    for number in &CALLS[..7] {
        if let Some(outcome) = inside(&server, "forbid", *number) {
            let outcome = outcome.expect_success();
            assert_eq!(outcome.out, "ran\n");
            let is_refused =
                |line: &str| line.starts_with("libfastpath-preload: not served: ") && line.ends_with(" (errno 1)");
            assert!(
                outcome.err.lines().count() == 1 && outcome.err.lines().all(is_refused),
                "{number}: {}",
                outcome.err
            );
        }
    }
}

#[test]
fn a_filter_that_kills_for_a_call_kills_no_program() {
    let server = Server::start();
    for number in &CALLS[..7] {
        if let Some(outcome) = inside(&server, "kill", *number) {
            expect_untouched(outcome, "a seccomp filter is in force, and a trial under it failed");
        }
    }
}

#[test]
fn a_filter_that_only_the_program_has_is_not_tried() {
    let filter = needed!(helper_program("filter", "cc", &[]));
    let server = Server::start();
    let preload = format!("LD_PRELOAD={}", library());
    for number in CALLS {
        // glibc's own start-up calls getrlimit.
        if number == libc::SYS_prlimit64 {
            continue;
        }
        let command = [&filter, "kill", &number.to_string(), "env", &preload, "echo", "ran"];
        let mut run = verbose(&server, &command);
        run.env_remove("LD_PRELOAD");
        let why = "it has a seccomp filter that its parent does not have, and a trial might kill it";
        expect_untouched(finish(run), why);
    }
    assert_eq!(server.requests(), 0);
}

#[test]
fn the_first_process_of_a_container_is_served_under_the_containers_filter() {
    let ((), _, filter) = needed!(needs_root(), tool("unshare"), helper_program("filter", "cc", &[]));
    let server = Server::start();
    let preload = format!("LD_PRELOAD={}", library());
    for (number, said) in [
        (NEVER_MADE, SERVED),
        (
            libc::SYS_connect,
            "libfastpath-preload: not served: a seccomp filter is in force, and a trial under it failed\n",
        ),
    ] {
        let unshare = ["unshare", "--pid", "--fork", "--mount-proc"];
        let number = number.to_string();
        let command: [&str; 7] = [&filter, "kill", &number, "env", &preload, "echo", "ran"];
        let mut run = verbose(&server, &[&unshare[..], &command[..]].concat());
        run.env_remove("LD_PRELOAD");
        let outcome = finish(run).expect_success();
        assert_eq!((outcome.out.as_str(), outcome.err.as_str()), ("ran\n", said));
    }
}

#[test]
fn a_program_that_is_served_can_confine_itself() {
    let filter = needed!(helper_program("filter", "cc", &[]));
    let server = Server::start();
    let outcome = finish(verbose(&server, &[&filter, "strict", "100000"])).expect_success();
    assert_eq!((outcome.out.as_str(), outcome.err.as_str()), ("alive\n", SERVED));
    // The program that it executes under its filter is left alone.
    let outcome = finish(verbose(&server, &[&filter, "strict", "1000", &filter, "alive"])).expect_success();
    let ends = outcome.out == "alive\n" && outcome.err.contains("that its parent does not have");
    assert!(ends, "{outcome:#?}");
}

fn limited(mut command: Command, resource: libc::__rlimit_resource_t, value: u64) -> Command {
    let limit = libc::rlimit {
        rlim_cur: value,
        rlim_max: value,
    };
    // SAFETY: a system call with a valid rlimit.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(resource, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    command
}

#[test]
fn a_program_starts_with_few_descriptors() {
    let state = needed!(program("state"));
    let server = Server::start();
    // The loader itself takes a fourth.
    for limit in 4..9 {
        let with = finish(limited(verbose(&server, &[&state]), libc::RLIMIT_NOFILE, limit)).expect_success();
        let bare = finish(limited(Command::new(&state), libc::RLIMIT_NOFILE, limit)).expect_success();
        assert_eq!(super::inherited(&bare), super::inherited(&with));
        // One for the connection, three for the answer.
        assert_eq!(with.err == SERVED, limit >= 7, "{limit}: {with:#?}");
    }
}

#[test]
fn a_program_starts_with_little_memory() {
    let clock = needed!(program("clock-musl"));
    let server = Server::start();
    // Memory that the library itself takes, and the room that it tries to reserve.
    const ADDED: u64 = 256 << 10;
    let starts = |memory, with: bool| {
        let command = match with {
            true => verbose(&server, &[&clock, "10"]),
            false => Command::new(&clock),
        };
        let mut command = limited(command, libc::RLIMIT_AS, memory);
        if !with {
            command.arg("10");
        }
        finish(command)
    };
    let (mut served, mut not_served) = (0, 0);
    for memory in (300 << 10..2 << 20).step_by(32 << 10) {
        if !starts(memory, false).status.success() {
            continue;
        }
        let outcome = starts(memory + ADDED, true).expect_success();
        assert_eq!(outcome.out.lines().count(), 5);
        let outcome = starts(memory, true);
        match outcome.err == SERVED {
            true => served += 1,
            // A message of the loader if there is no room for the library, or one of the library.
            false => not_served += 1,
        }
    }
    assert!(served > 0, "{served} served, {not_served} not");
}
