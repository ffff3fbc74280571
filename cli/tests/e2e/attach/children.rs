//! With --children, the programs that an attached process executes are served from their start.

use std::path::Path;
use std::process::Command;

use super::{Memory, detach};
use crate::common::{
    Outcome, Pid, Running, fastpath, finish, helper_program, needs_root, program, start, tool, wait_until,
};

/// `fastpath attach --quiet --children PID`.
pub fn attach_with_children(pid: Pid) -> Outcome {
    finish(fastpath(&[
        "attach",
        "--quiet",
        "--children",
        "--clocks",
        "all",
        &pid.0.to_string(),
    ]))
}

/// Says `ready`, waits for a file, and starts the given program again and again.
fn starter(python: &str, go: &Path, how: &str) -> Running {
    starter_by(&[], python, go, how)
}

/// The same, executed by the program `by`, with arguments, if there is one.
fn starter_by(by: &[&str], python: &str, go: &Path, how: &str) -> Running {
    let script = format!(
        "import os, subprocess, sys, time\n\
        print('ready', flush=True)\n\
        while not os.path.exists(sys.argv[1]):\n    time.sleep(0.01)\n\
        {how}\n"
    );
    let words = [by, &[python, "-I", "-c", &script]].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(go);
    let running = start(command);
    wait_until("the starter", || running.out_so_far().contains("ready"));
    std::thread::sleep(std::time::Duration::from_millis(100));
    running
}

const IS_SERVED: &str = "['grep', '-c', 'memfd:fastpath-page', '/proc/self/maps']";

#[test]
fn programs_that_it_executes_are_served_from_their_start() {
    let python = needed!(tool("python3"));
    let how = format!("for i in range(3): subprocess.run({IS_SERVED})\nos.execvp('grep', {IS_SERVED})");
    // Programs that start while the publisher gets no CPU run untouched.
    wait_until("programs that are served, all of them", || {
        let directory = tempfile::tempdir().expect("a directory");
        let go = directory.path().join("go");
        let running = starter(python, &go, &how);
        attach_with_children(running.pid()).expect_success().expect_output("");
        std::fs::write(&go, "").expect("a file");
        running.finish().out == "ready\n1\n1\n1\n1\n"
    });
}

#[test]
fn programs_that_it_executes_by_each_of_two_copies_of_the_c_library_are_served() {
    let path = needed!(helper_program("second-libc", "cc", &[]));
    for copy in ["first", "second"] {
        wait_until("a program that is served", || {
            let mut command = Command::new(&path);
            command.args([copy, "grep", "-c", "memfd:fastpath-page", "/proc/self/maps"]);
            let running = start(command);
            wait_until("its library", || running.out_so_far().contains("ready"));
            let pid = running.pid();
            attach_with_children(pid).expect_success().expect_output("");
            pid.signal(libc::SIGUSR1);
            running.finish().out == "ready\n1\n"
        });
    }
}

#[test]
fn without_children_the_programs_it_executes_are_not_served() {
    let python = needed!(tool("python3"));
    let directory = tempfile::tempdir().expect("a directory");
    let go = directory.path().join("go");
    let running = starter(python, &go, &format!("subprocess.run({IS_SERVED})"));
    super::attach(running.pid()).expect_success();
    std::fs::write(&go, "").expect("a file");
    running.finish().expect_success().expect_output("ready\n0");
}

/// Starts the starter under a seccomp filter, by the helper `filter` with these arguments.
fn confined(filter: &[&str], go: &Path, how: &str) -> Option<Running> {
    let (Some(()), Some(python)) = (needs_root(), tool("python3")) else {
        return None;
    };
    let program = helper_program("filter", "cc", &[])?;
    Some(starter_by(&[&[program.as_str()], filter].concat(), python, go, how))
}

#[test]
fn programs_that_a_container_executes_under_its_seccomp_filters_are_served() {
    let filter = needed!(helper_program("filter", "cc", &[]));
    let mount = libc::SYS_mount.to_string();
    let how = format!(
        "subprocess.run({IS_SERVED})\n\
         subprocess.run(['sh', '-c', 'grep -c memfd:fastpath-page /proc/self/maps; :'])\n\
         os.execvp('grep', {IS_SERVED})"
    );
    for (filters, count) in [
        (&["container"][..], "1"),
        (&["container", &filter, "forbid", &mount], "2"),
    ] {
        wait_until("programs that are served, all of them", || {
            let directory = tempfile::tempdir().expect("a directory");
            let go = directory.path().join("go");
            let Some(running) = confined(filters, &go, &how) else {
                return true;
            };
            assert_eq!(running.pid().status("Seccomp_filters"), count);
            attach_with_children(running.pid()).expect_success().expect_output("");
            std::fs::write(&go, "").expect("a file");
            // The last program fails if it is not served.
            let outcome = running.finish();
            outcome.status.success() && outcome.out == "ready\n1\n1\n1\n"
        });
    }
}

#[test]
fn a_filter_that_may_kill_leaves_the_page_and_untouched_children() {
    for (name, number) in [
        ("clock_gettime", libc::SYS_clock_gettime),
        ("recvmsg", libc::SYS_recvmsg),
        ("socketpair", libc::SYS_socketpair),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let go = directory.path().join("go");
        let how = format!("os.execvp('grep', {IS_SERVED})");
        let running = needed!(confined(&["kill", &number.to_string()], &go, &how));
        let attached = attach_with_children(running.pid()).expect_success();
        let reason =
            format!("will not be served: it has a seccomp filter that may answer {name} by SECCOMP_RET_KILL_PROCESS");
        assert!(attached.err.contains(&reason), "{attached:#?}");
        assert!(running.pid().is_served());
        std::fs::write(&go, "").expect("a file");
        running.finish().expect_code(1).expect_output("ready\n0");
    }
}

#[test]
fn descendants_are_attached_too_and_detach_reverts_all() {
    let python = needed!(tool("python3"));
    let directory = tempfile::tempdir().expect("a directory");
    let running = starter(python, &directory.path().join("never"), "");
    let mut shell = Command::new("sh");
    shell.args(["-c", "sh -c 'sleep 1000; :'; :"]);
    let tree = start(shell);
    let child = |pid: Pid| pid.children().first().copied();
    wait_until("its sleep", || {
        let leaf = child(tree.pid()).and_then(child);
        leaf.is_some_and(|pid| pid.read("wchan").contains("nanosleep"))
    });
    let middle = child(tree.pid()).expect("a child");
    let family = [tree.pid(), middle, child(middle).expect("a child")];
    let before = family.map(Memory::open);
    let libc = |pid: Pid| {
        let [start, end] = super::range(pid, "/libc");
        super::bytes(pid, start, end)
    };
    let code = libc(tree.pid());
    attach_with_children(tree.pid()).expect_success().expect_output("");
    assert!(family.iter().all(|pid| pid.is_served()));
    assert!(libc(tree.pid()) != code, "no system call goes through the hook");
    for pid in family {
        detach(pid).expect_success().expect_output("");
    }
    assert_eq!(family.map(Memory::open), before);
    assert!(libc(tree.pid()) == code, "its libc was not restored");
    drop(running);
}

#[test]
fn a_go_program_that_waits_in_its_own_system_calls_is_attached_and_detached() {
    let path = needed!(program("clock-go"));
    let mut command = Command::new(path);
    command.args(["2000000000", "MONOTONIC"]);
    let running = start(command);
    let pid = running.pid();
    wait_until("its loop", || pid.cpu_time().as_millis() > 300);
    for _ in 0..10 {
        attach_with_children(pid).expect_success().expect_output("");
        goes_on(pid);
        detach(pid).expect_success();
        goes_on(pid);
    }
    detach(pid).expect_code(15);
    assert!(!pid.read("maps").contains("memfd:fastpath"), "{}", pid.read("maps"));
}

fn goes_on(pid: Pid) {
    let before = pid.cpu_time();
    wait_until("some more of its work", || pid.cpu_time() > before);
}
