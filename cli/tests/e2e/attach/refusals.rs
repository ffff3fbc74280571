//! Each process that cannot be attached is refused for its own reason, with its own exit status, and is left untouched.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::{Memory, attach, detach};
use crate::common::{
    Outcome, Pid, Running, SERVED, fastpath, finish, helper_program, needs_root, program_32, skip, start, tool,
    wait_until,
};

#[track_caller]
fn is_refused(outcome: Outcome, code: i32, reason: &str) {
    let outcome = outcome.expect_code(code);
    assert!(outcome.err.contains(reason), "{outcome:#?}");
    assert!(
        outcome.err.lines().count() == 1 && outcome.out.is_empty(),
        "{outcome:#?}"
    );
}

/// Refused to attach, and to detach; as it was after each.
#[track_caller]
fn is_refused_and_untouched(pid: Pid, code: i32, reason: &str) {
    let before = Memory::of(pid);
    is_refused(attach(pid), code, reason);
    assert_eq!(Memory::of(pid), before);
    assert!(pid.exists());
}

fn sleeper() -> Running {
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let running = start(sleep);
    wait_until("its sleep", || running.pid().read("wchan").contains("nanosleep"));
    running
}

#[test]
fn a_number_that_no_process_has() {
    is_refused(attach(Pid(4_194_303)), 3, "no such process");
    is_refused(detach(Pid(4_194_303)), 3, "no such process");
}

#[test]
fn a_thread_that_is_not_a_process() {
    let Some(path) = helper_program("sleepers", "cc", &[]) else {
        return;
    };
    let running = start(Command::new(path));
    wait_until("its threads", || running.out_so_far().contains("ready"));
    let threads = std::fs::read_dir(format!("/proc/{}/task", running.pid().0)).expect("its threads");
    let tid = threads
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .find(|tid| *tid != running.pid().0)
        .expect("a thread");
    let reason = format!("thread of process {}", running.pid().0);
    is_refused(attach(Pid(tid)), 3, &reason);
}

#[test]
fn a_thread_of_the_kernel() {
    // kthreadd, where this is not a container.
    if Pid(2).read("cmdline").is_empty() && Pid(2).read("comm").contains("kthreadd") {
        is_refused(attach(Pid(2)), 4, "kernel's");
        is_refused(detach(Pid(2)), 4, "kernel's");
    } else {
        skip("no thread of the kernel's is to be seen here");
    }
}

#[test]
fn a_zombie() {
    let mut child = Command::new("true").stdin(Stdio::null()).spawn().expect("true");
    let pid = Pid(child.id() as i32);
    wait_until("its end", || pid.state() == 'Z');
    is_refused(attach(pid), 5, "zombie");
    is_refused(detach(pid), 5, "zombie");
    child.wait().expect("its end");
}

#[test]
fn a_process_that_is_traced() {
    let Some(strace) = tool("strace") else { return };
    let running = sleeper();
    let mut tracer = Command::new(strace);
    tracer.args(["-o", "/dev/null", "-p", &running.pid().0.to_string()]);
    let tracer = start(tracer);
    wait_until("a tracer", || running.pid().status("TracerPid") != "0");
    is_refused_and_untouched(running.pid(), 6, &format!("{} (strace)", tracer.pid().0));
    is_refused(detach(running.pid()), 6, "strace");
}

#[test]
fn a_process_of_another_user() {
    let (Some(()), Some(setpriv)) = (needs_root(), tool("setpriv")) else {
        return;
    };
    let running = sleeper();
    let before = Memory::of(running.pid());
    for verb in ["attach", "detach"] {
        let mut command = Command::new(setpriv);
        command
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .args([env!("CARGO_BIN_EXE_fastpath"), verb, &running.pid().0.to_string()]);
        is_refused(finish(command), 7, "belongs to user 0");
    }
    assert_eq!(Memory::of(running.pid()), before);
}

#[test]
fn a_process_that_is_attached() {
    let running = sleeper();
    attach(running.pid()).expect_success();
    is_refused_and_untouched(running.pid(), 8, "attached already");
    detach(running.pid()).expect_success();
    is_refused(detach(running.pid()), 15, "not attached");
}

#[test]
fn a_process_that_run_started() {
    let running = start(fastpath(&[SERVED, &["sleep", "1000"]].concat()));
    wait_until("its sleep", || running.pid().read("wchan").contains("nanosleep"));
    is_refused_and_untouched(running.pid(), 8, "fastpath run");
    is_refused(detach(running.pid()), 8, "fastpath run");
}

#[test]
fn a_32_bit_process() {
    let Some(path) = program_32("clock-i386-glibc-static") else {
        return;
    };
    let mut command = Command::new(path);
    command.args(["2000000000", "MONOTONIC"]);
    let running = start(command);
    wait_until("its loop", || running.pid().cpu_time().as_millis() > 30);
    is_refused_and_untouched(running.pid(), 9, "64-bit");
}

#[test]
fn a_process_without_a_vdso() {
    let Some(path) = helper_program("unmap-vdso", "cc", &[]) else {
        return;
    };
    let running = start(Command::new(path));
    wait_until("its vDSO's end", || running.out_so_far().contains("gone"));
    let maps = running.pid().read("maps");
    is_refused(attach(running.pid()), 10, "no vDSO");
    assert_eq!(running.pid().read("maps"), maps);
}

#[test]
fn a_process_that_may_not_read_the_counter() {
    let Some(path) = helper_program("counter-forbidden", "cc", &[]) else {
        return;
    };
    let running = start({
        let mut command = Command::new(path);
        command.arg("wait");
        command
    });
    wait_until("its word", || running.out_so_far().contains("waiting"));
    is_refused_and_untouched(running.pid(), 13, "PR_SET_TSC");
}

#[test]
fn a_process_under_a_filter_is_attached_by_root_and_left_alone_by_others() {
    let (Some(()), Some(setpriv), Some(filter)) = (needs_root(), tool("setpriv"), helper_program("filter", "cc", &[]))
    else {
        return;
    };
    // socketpair kills it.
    let number = libc::SYS_socketpair.to_string();
    let mut command = Command::new(setpriv);
    command.args([
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "--inh-caps=-all",
    ]);
    command.args([&filter, "kill", &number, "sleep", "1000"]);
    let running = start(command);
    wait_until("its sleep", || running.pid().read("wchan").contains("nanosleep"));
    let before = Memory::of(running.pid());
    let mut other = Command::new(setpriv);
    other
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .args([
            env!("CARGO_BIN_EXE_fastpath"),
            "attach",
            "--clocks",
            "all",
            &running.pid().0.to_string(),
        ]);
    is_refused(finish(other), 11, "seccomp");
    assert_eq!(Memory::of(running.pid()), before);

    attach(running.pid()).expect_success();
    assert!(running.pid().is_served());
    assert_eq!(running.pid().status("Seccomp"), "2");
    detach(running.pid()).expect_success();
    assert_eq!(Memory::of(running.pid()), before);
}

#[test]
fn a_process_in_the_middle_of_a_vfork_is_waited_for_and_then_left_alone() {
    let Some(path) = helper_program("vfork", "cc", &[]) else {
        return;
    };
    let mut child = Command::new(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("vfork");
    let mut word = [0; 6];
    child
        .stdout
        .as_mut()
        .expect("a pipe")
        .read_exact(&mut word)
        .expect("its word");
    let pid = Pid(child.id() as i32);
    let (_, before) = super::vdso(pid);
    let outcome = attach(pid);
    assert_eq!(super::vdso(pid).1, before);
    // The child of the vfork ends when its input does.
    drop(child.stdin.take());
    is_refused(outcome, 14, "");
    let status = child.wait().expect("its end");
    assert!(status.success(), "{status}");
}
