//! Processes in other PID, mount, user and time namespaces are attached from the host, and from inside.

use std::process::Command;

use super::stepping::{entries, step};
use super::{Memory, attach, detach};
use crate::common::processes::{TIMEOUT, holds_within};
use crate::common::{
    Pid, Running, fastpath, finish, helper_program, program, skip_namespaces, start, tool, wait_until,
};

/// `unshare OPTIONS COMMAND`, if that works here.
pub fn unshared(options: &[&str], command: &[&str]) -> Option<Running> {
    tool("unshare")?;
    let mut trial = Command::new("unshare");
    trial.args(options).arg("true");
    if !finish(trial).status.success() {
        skip_namespaces();
        return None;
    }
    let mut unshare = Command::new("unshare");
    unshare.args(options).args(command);
    Some(start(unshare))
}

/// Returns the descendant that runs this program, once it does.
fn inside(running: &Running, program: &str) -> Pid {
    let find = || {
        let all = [vec![running.pid()], running.pid().children()].concat();
        all.into_iter().find(|pid| pid.program().starts_with(program))
    };
    wait_until("the program inside", || find().is_some());
    find().expect("just seen")
}

fn is_attached_and_detached(pid: Pid) {
    wait_until("its sleep", || pid.read("wchan").contains("nanosleep"));
    let before = Memory::open(pid);
    attach(pid).expect_success().expect_output("");
    assert!(pid.is_served() && !entries(pid).is_empty());
    detach(pid).expect_success().expect_output("");
    assert_eq!(Memory::open(pid), before);
}

#[test]
fn a_process_in_a_pid_namespace() {
    let running = needed!(unshared(
        &["--pid", "--fork", "--mount-proc", "--kill-child"],
        &["sleep", "1000"]
    ));
    is_attached_and_detached(inside(&running, "sleep"));
}

#[test]
fn an_attach_without_dev_null_holds_no_pipe_open() {
    let sleep = super::sleeper();
    let attaches = format!(
        "mount -t tmpfs none /dev && {} attach --clocks all {} 2>&1 | cat",
        env!("CARGO_BIN_EXE_fastpath"),
        sleep.pid().0
    );
    let shell = needed!(unshared(&["--mount"], &["sh", "-c", &attaches]));
    wait_until("the end of the pipe", || shell.pid().has_stopped_or_ended());
    let out = shell.finish().expect_success().out;
    assert!(out.contains(": attached"), "{out}");
    detach(sleep.pid()).expect_success();
}

#[test]
fn a_process_in_a_user_and_a_mount_namespace() {
    let running = needed!(unshared(&["--user", "--map-root-user", "--mount"], &["sleep", "1000"]));
    is_attached_and_detached(inside(&running, "sleep"));
}

#[test]
fn from_inside_a_container() {
    let script = "sleep 1000 & until grep -q nanosleep /proc/$!/wchan; do sleep 0.05; done\n\
        \"$0\" attach -q --clocks all $! && grep -c memfd:fastpath-page /proc/$!/maps && \"$0\" detach -q $! || exit 1\n\
        ! grep memfd:fastpath /proc/$!/maps; kill $!";
    let options = [
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
    ];
    let running = needed!(unshared(
        &options,
        &["sh", "-c", script, env!("CARGO_BIN_EXE_fastpath")]
    ));
    running.finish().expect_output("1");
}

/// A PID names one process in that /proc, and another one for ptrace(2): attach would change the registers of one and
/// the memory of the other.
#[test]
fn no_process_is_touched_if_proc_is_another_namespaces_or_missing() {
    let tries = "sleep 1000 & pid=$!; \"$0\" attach --clocks all $pid; echo $?; \"$0\" detach $pid; echo $?; \
        \"$0\" run --without-vdso --clocks all -- echo untouched; \
        \"$0\" run --without-vdso --clocks all --require -- true; echo $?; kill -0 $pid && echo alive; kill $pid";
    let another: &[&str] = &["--pid", "--fork", "--kill-child"];
    for (options, before, why) in [
        (another, "", "/proc shows the processes of another PID namespace"),
        (&["--mount"], "umount -l /proc; ", "/proc is not mounted"),
    ] {
        let script = format!("{before}{tries}");
        let running = needed!(unshared(
            options,
            &["sh", "-c", &script, env!("CARGO_BIN_EXE_fastpath")]
        ));
        let outcome = running.finish().expect_success();
        assert_eq!(outcome.out, "70\n70\nuntouched\n125\nalive\n", "{outcome:#?}");
        assert_eq!(outcome.err.matches(why).count(), 4, "{outcome:#?}");
    }
}

const TIME_NAMESPACE: &[&str] = &[
    "--time",
    "--boottime",
    "100000",
    "--monotonic",
    "50000",
    "--fork",
    "--kill-child",
];

#[test]
fn a_process_in_a_time_namespace_keeps_its_own_clocks() {
    let path = needed!(program("clock-glibc"));
    // The program reads the clock until then. If the host's page were put in its place, its clock would go backwards,
    // and it would report that.
    let running = needed!(unshared(TIME_NAMESPACE, &[&path, "2000000000", "BOOTTIME"]));
    let pid = inside(&running, "clock-glibc");
    wait_until("its loop", || pid.cpu_time().as_millis() > 50);
    attach(pid).expect_success().expect_output("");
    let by_page = holds_within(TIMEOUT, || step(pid).are_of_reads_by_the_page());
    assert!(by_page && pid.exists(), "{}", pid.describe());
    detach(pid).expect_success().expect_output("");
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(pid.exists() && !pid.is_served(), "{}", pid.describe());
}

#[test]
fn processes_of_two_time_namespaces_get_a_page_each() {
    let running = needed!(unshared(TIME_NAMESPACE, &["sleep", "1000"]));
    let there = inside(&running, "sleep");
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let here = start(sleep);
    wait_until("their sleep", || {
        [there, here.pid()]
            .iter()
            .all(|pid| pid.read("wchan").contains("nanosleep"))
    });
    let pids = [there, here.pid()].map(|pid| pid.0.to_string());
    finish(fastpath(&["attach", "--clocks", "all", &pids[0], &pids[1]])).expect_success();
    let inode = |pid: Pid| {
        let maps = pid.read("maps");
        let line = maps
            .lines()
            .find(|line| line.contains("memfd:fastpath-page"))
            .expect("a page");
        line.split_whitespace().nth(4).expect("an inode").to_owned()
    };
    assert_ne!(inode(there), inode(here.pid()));
    finish(fastpath(&["detach", &pids[0], &pids[1]])).expect_success();
}

/// A script of Python that enters another time namespace in some way, or whose child does, once the file exists that is its
/// argument, and then compares its clocks with the kernel's there.
pub fn entering(how: &str) -> String {
    format!(
        "import ctypes, os, sys, time\n\
        libc, kernels = ctypes.CDLL(None), (ctypes.c_long * 2)()\n\
        before = time.monotonic()\n\
        print('ready', flush=True)\n\
        while not os.path.exists(sys.argv[1]):\n    time.sleep(0.01)\n\
        {how}\
        ours = [time.clock_gettime(clock) for clock in (1, 7)]\n\
        for clock, time in zip((1, 7), ours):\n    libc.syscall({}, clock, kernels)\n    print(abs(time - kernels[0]) < 100)\n\
        print(ours[0] - before > 40000)",
        libc::SYS_clock_gettime
    )
}

/// What such a script prints.
pub const ENTERED: &str = "ready\nTrue\nTrue\nTrue";

/// Returns the way for children, by this call of unshare(2).
pub fn unsharing(call: &str) -> String {
    format!(
        "assert {call} == 0\n\
        open('/proc/self/timens_offsets', 'w').write('boottime 100000 0\\nmonotonic 50000 0\\n')\n\
        child = os.fork()\n\
        if child:\n    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
}

/// Starts a process in another time namespace; returns it, and the way to enter that by setns(2).
pub fn setting() -> Option<(Running, String)> {
    let sleeper = unshared(TIME_NAMESPACE, &["sleep", "1000"])?;
    let there = format!("/proc/{}/ns/time", inside(&sleeper, "sleep").0);
    let way = format!("assert libc.setns(os.open('{there}', os.O_RDONLY), 0x80) == 0\n");
    Some((sleeper, way))
}

#[test]
fn a_process_that_enters_a_time_namespace_later_sees_its_clocks() {
    let (python, filter) = needed!(tool("python3"), helper_program("filter", "cc", &[]));
    let (_sleeper, setns) = needed!(setting());
    let unshare = unsharing("libc.unshare(0x80)");
    let syscall = unsharing(&format!("libc.syscall({}, 0x80)", libc::SYS_unshare));
    let filter = [&filter, "forbid", &libc::SYS_acct.to_string()];
    for (how, prefix) in [(&unshare, &[][..]), (&setns, &[]), (&syscall, &[]), (&unshare, &filter)] {
        let script = entering(how);
        enters_when_attached(&[prefix, &[python, "-I", "-c", &script]].concat(), ENTERED);
    }
}

#[test]
fn a_program_on_musl_that_enters_a_time_namespace_later_sees_its_clocks() {
    if unshared(TIME_NAMESPACE, &["true"]).is_none() {
        return;
    }
    for flags in [&[][..], &["-static"]] {
        let enter = needed!(helper_program("enter-namespace", "musl-gcc", flags));
        enters_when_attached(&[&enter], "ready\nright");
    }
}

/// Starts a command that enters another time namespace when the file exists that is its last argument, attaches it, and
/// checks what it prints.
#[track_caller]
fn enters_when_attached(words: &[&str], out: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let signal = directory.path().join("go");
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(&signal);
    let running = start(command);
    wait_until("its loop", || running.out_so_far().contains("ready"));
    attach(running.pid()).expect_success().expect_output("");
    assert!(running.pid().is_served());
    std::fs::write(&signal, "").expect("a file");
    running.finish().expect_success().expect_output(out);
}
