//! The helper lives as long as a process of the tree, keeps no file of the user open, and is no process's child.

use std::process::Command;
use std::time::Duration;

use crate::common::command::MARK;
use crate::common::processes::{TIMEOUT, holds_within};
use crate::common::{Pid, SERVED, finish, needs_root, served, start, tool, wait_until};

/// Some intervals at which the helper checks whether any process uses its page.
const LOOKS: Duration = Duration::from_secs(1);

#[test]
fn a_pipe_is_closed_when_the_program_ends_not_when_the_helper_does() {
    // The background job holds no pipe, but keeps the helper alive.
    let job = "sleep 1000 >/dev/null 2>&1 & echo $!";
    for script in [
        format!("sleeper=$(\"$@\" sh -c '{job}'); echo $sleeper"),
        format!("\"$@\" sh -c '{job}' | cat"),
        format!("\"$@\" sh -c '{job}' 2>&1 | cat"),
        format!("\"$@\" sh -c '{job}' 3>&1 1>&2 2>&3 3>&- | cat"),
    ] {
        // A program that starts while the publisher gets no CPU runs untouched, and no helper stays for it.
        wait_until("a job that is served", || {
            let mut shell = Command::new("sh");
            shell
                .args(["-c", &script, "sh", env!("CARGO_BIN_EXE_fastpath")])
                .args(SERVED);
            let running = start(shell);
            let mark = running.mark().to_owned();
            let outcome = running.finish().expect_success();
            let sleeper = Pid(format!("{}{}", outcome.out, outcome.err).trim().parse().expect("a PID"));
            wait_until("the sleeper's start", || sleeper.program() == "sleep");
            // It is named so from its exec on, at which it is stopped.
            let is_served = holds_within(Duration::from_millis(200), || sleeper.is_served());
            let helpers = Pid::helpers(&mark);
            sleeper.signal(libc::SIGKILL);
            wait_until("the helper's end", || Pid::helpers(&mark).is_empty());
            assert!(!is_served || helpers.len() == 1, "{script}: {helpers:?}");
            is_served
        });
    }
}

#[test]
fn the_helper_ends_after_the_last_process() {
    for script in ["exit 0", "sleep 0.3", "sleep 0.3 | cat & wait", "kill -KILL $$"] {
        let running = start(served(&["sh", "-c", script]));
        let mark = running.mark().to_owned();
        running.finish();
        wait_until(script, || Pid::helpers(&mark).is_empty());
    }
}

/// Returns the affinity, the policy and the nice value of a process.
fn scheduling(pid: Pid) -> (String, i32, i32) {
    // SAFETY: system calls with integers.
    let (policy, nice) = unsafe {
        (
            libc::sched_getscheduler(pid.0),
            libc::getpriority(libc::PRIO_PROCESS, pid.0 as u32),
        )
    };
    (pid.status("Cpus_allowed_list"), policy, nice)
}

#[test]
fn the_helper_is_not_starved_by_what_binds_the_program() {
    let own = Pid(std::process::id() as i32).status("Cpus_allowed_list");
    let first = own.split([',', '-']).next().expect("a CPU");
    needed!(needs_root(), tool("taskset"), tool("chrt"));
    let fifo = ["taskset", "-c", first, "chrt", "-f", "7"];
    let low = ["taskset", "-c", first, "nice", "-n", "5"];
    let (.., nice) = scheduling(Pid(std::process::id() as i32));
    for (prefix, policy, nice) in [(fifo, libc::SCHED_FIFO, nice), (low, libc::SCHED_OTHER, 0)] {
        let mut command = Command::new(prefix[0]);
        command.args(&prefix[1..]).arg(env!("CARGO_BIN_EXE_fastpath"));
        let running = start({
            command.args(SERVED).args(["sleep", "1000"]);
            command
        });
        wait_until("the program", || running.pid().program() == "sleep");
        let helper = Pid::helper(running.mark());
        wait_until("its scheduling", || scheduling(helper) == (own.clone(), policy, nice));
        assert_eq!(running.pid().status("Cpus_allowed_list"), first);
    }
}

#[test]
fn the_helper_ends_with_a_program_that_has_run_for_long() {
    // By then, it checks once a second, and the next check is half a second away.
    wait_until("a helper that ends", || {
        let running = start(served(&["sleep", "1.5"]));
        let mark = running.mark().to_owned();
        running.finish().expect_success();
        holds_within(Duration::from_millis(60), || Pid::helpers(&mark).is_empty())
    });
}

#[test]
fn the_helper_stays_for_a_daemon_that_was_left_behind() {
    let place = tempfile::tempdir().expect("a directory");
    // The daemon forks and does not exec: a program that it executed might run untouched.
    let until_it_goes = "(while [ -e \"$0\" ]; do sleep 0.05; done) >/dev/null 2>&1 &";
    let running = start(served(&[
        "sh",
        "-c",
        until_it_goes,
        place.path().to_str().expect("UTF-8"),
    ]));
    let mark = running.mark().to_owned();
    running.finish().expect_success();
    let helper = Pid::helper(&mark);
    assert!(!holds_within(LOOKS, || !helper.exists()), "the daemon was left alone");
    drop(place);
    wait_until("the helper's end", || !helper.exists());
}

#[test]
fn the_helper_keeps_no_file_and_no_directory_of_the_user_open() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = served(&["sleep", "1000"]);
    command.current_dir(directory.path());
    let running = start(command);
    let helper = Pid::helper(running.mark());
    wait_until("the program's start", || running.pid().program() == "sleep");
    let links = |what: &str| {
        let names = std::fs::read_dir(format!("/proc/{}/{what}", helper.0))
            .into_iter()
            .flatten()
            .flatten();
        names
            .filter_map(|name| std::fs::read_link(name.path()).ok())
            .collect::<Vec<_>>()
    };
    let is_ours = |path: &std::path::PathBuf| {
        let path = path.to_string_lossy();
        path == "/dev/null"
            || path.contains("memfd:fastpath-")
            || path.starts_with("socket:")
            || path.contains("anon_inode:")
    };
    let of_others = || {
        links("fd")
            .into_iter()
            .filter(|path| !is_ours(path))
            .collect::<Vec<_>>()
    };
    let let_go = holds_within(TIMEOUT, || of_others().is_empty());
    assert!(let_go, "{:?}", of_others());
    let cwd = || std::fs::read_link(format!("/proc/{}/cwd", helper.0)).expect("its directory");
    wait_until("another directory", || cwd() == std::path::Path::new("/"));
}

#[test]
fn the_helper_is_small() {
    let running = start(served(&["sleep", "1000"]));
    let helper = Pid::helper(running.mark());
    wait_until("the program's start", || running.pid().program() == "sleep");
    std::thread::sleep(Duration::from_millis(300));
    let kib: u32 = helper
        .status("VmHWM")
        .trim_end_matches(" kB")
        .parse()
        .expect("a number");
    // With a C library of 2 MB, which is read and not mapped.
    assert!(kib < 14 << 10, "{kib} KiB");
}

#[test]
fn a_program_that_cannot_be_started_leaves_no_helper() {
    for command in ["/nonexistent/program", "/etc/passwd", "/"] {
        let mut run = served(&[command]);
        let mark = format!("left-{}-{}", std::process::id(), command.len());
        run.env(MARK, &mark);
        finish(run);
        wait_until(command, || Pid::helpers(&mark).is_empty());
    }
}

#[test]
fn a_search_for_the_users_command_line_does_not_find_the_helper() {
    let unique = format!("sleep 1000.{}", std::process::id());
    let running = start(served(&["sh", "-c", &format!("{unique}; :")]));
    Pid::helper(running.mark());
    let mut search = Command::new("pgrep");
    search.args(["-fc", &format!("^({unique}|sh -c {unique})")]);
    // A process in the middle of its exec has no command line yet that a search could find.
    wait_until(
        "the shell and its child alone",
        || matches!(running.pid().children()[..], [child] if child.program() == "sleep" && !child.read("cmdline").is_empty()),
    );
    if crate::common::tool("pgrep").is_some() {
        assert_eq!(finish(search).out.trim(), "2");
    }
}
