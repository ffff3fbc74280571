//! Containers: PID 1 of a PID namespace, user namespaces, other roots, and clocks of a time namespace.

use std::process::Command;

use crate::common::{
    Pid, SERVED, comes_to, finish, helper_program, install, needs_root, program, served, skip, skip_namespaces, start,
    tool, wait_until,
};

const LEAF_IN_SHELL: &str = "grep -c memfd:fastpath-page /proc/self/maps";

/// `unshare OPTIONS`, if that works here.
fn unshare(options: &[&'static str]) -> Option<Vec<&'static str>> {
    tool("unshare")?;
    let prefix = [&["unshare"], options].concat();
    let mut trial = Command::new("unshare");
    trial.args(options).arg("true");
    if !finish(trial).status.success() {
        skip_namespaces();
        return None;
    }
    Some(prefix)
}

/// `PREFIX fastpath run ... -- COMMAND`.
fn served_inside(prefix: &[&str], command: &[&str]) -> Command {
    let whole = [prefix, &[env!("CARGO_BIN_EXE_fastpath")], SERVED, command].concat();
    let mut run = Command::new(whole[0]);
    run.args(&whole[1..]);
    run
}

const PID_NAMESPACE: &[&str] = &["--pid", "--fork", "--mount-proc"];

/// As docs/security-agents.md says: `vm.memfd_noexec` holds for a PID namespace.
#[test]
fn where_the_kernel_makes_no_executable_memfd_programs_are_served() {
    const SETTING: &str = "/proc/sys/vm/memfd_noexec";
    if needs_root().is_none() {
        return;
    }
    if !std::path::Path::new(SETTING).exists() {
        return skip("the kernel has no vm.memfd_noexec (Linux 6.3)");
    }
    let prefix = needed!(unshare(PID_NAMESPACE));
    let fastpath = env!("CARGO_BIN_EXE_fastpath");
    for value in [1, 2] {
        let attach = match cfg!(target_arch = "x86_64") {
            true => format!("sleep 60 & {fastpath} attach -q --clocks all $! && {fastpath} detach -q $! && kill $!"),
            false => "true".to_owned(),
        };
        let script = format!(
            "echo {value} >{SETTING} && {fastpath} run --clocks all --require -- {LEAF_IN_SHELL} && {attach}; cat {SETTING}"
        );
        comes_to(
            || {
                let mut run = Command::new(prefix[0]);
                run.args(&prefix[1..]).args(["sh", "-ec", &script]);
                run
            },
            0,
            &format!("1\n{value}"),
        );
    }
}

#[test]
fn the_first_process_of_a_container_is_served_and_keeps_its_exit_status() {
    let prefix = needed!(unshare(PID_NAMESPACE));
    let script = format!("echo $$; {LEAF_IN_SHELL}; sh -c '{LEAF_IN_SHELL}; exit 3' & wait $!; echo $?; exit 7");
    comes_to(|| served_inside(&prefix, &["sh", "-c", &script]), 7, "1\n1\n1\n3");
}

#[test]
fn an_init_that_waits_for_all_its_children_does_not_wait_for_the_helper() {
    let (prefix, python) = needed!(unshare(PID_NAMESPACE), tool("python3"));
    let init = "import os, sys\n\
        for code in 1, 2, 3:\n    os.fork() or os._exit(code)\n\
        codes = []\n\
        while True:\n\
        \x20   try:\n        codes.append(os.waitstatus_to_exitcode(os.wait()[1]))\n\
        \x20   except ChildProcessError:\n        break\n\
        print(os.getpid(), sorted(codes))\n";
    // -I: no import of the user's modules. The interpreter itself, because a wrapper would start it as a child.
    let outcome = finish(served_inside(&prefix, &[python, "-I", "-c", init])).expect_success();
    outcome.expect_output("1 [1, 2, 3]");
}

/// Runs a script of Python as PID 1 under `fastpath run`.
fn init(script: &str) -> Option<String> {
    let (prefix, python) = (unshare(PID_NAMESPACE)?, tool("python3")?);
    let script = format!("import ctypes, os, signal, subprocess, time\n{script}");
    let outcome = finish(served_inside(&prefix, &[python, "-I", "-c", &script])).expect_success();
    Some(outcome.out)
}

/// Waits with __WALL.
const WAIT_FOR_ALL: &str = "def wait_for_all():\n\
    \x20   while ctypes.CDLL(None).waitpid(-1, None, 0x40000000) > 0: pass\n";

#[test]
fn a_wait_for_children_of_every_kind_ends() {
    let wait =
        "import threading\nwaits = threading.Thread(target=wait_for_all)\nwaits.start()\nwaits.join()\nprint('none')";
    for wait in ["wait_for_all()\nprint('none')", wait] {
        let script = format!("{WAIT_FOR_ALL}if os.fork() == 0:\n    time.sleep(.1); os._exit(0)\n{wait}");
        let out = needed!(init(&script));
        assert_eq!(out, "none\n");
    }
}

#[test]
fn an_init_that_ends_all_processes_finds_none_left() {
    let script = "time.sleep(.1)\nos.kill(-1, signal.SIGTERM)\n\
        while True:\n\
        \x20   try:\n        while os.waitpid(-1, os.WNOHANG)[0]: pass\n\
        \x20   except ChildProcessError: pass\n\
        \x20   try: os.kill(-1, 0)\n\
        \x20   except ProcessLookupError: break\n\
        \x20   time.sleep(.01)\n\
        print('none')";
    let out = needed!(init(script));
    assert_eq!(out, "none\n");
}

#[test]
fn a_helper_whose_init_is_detached_can_be_waited_for() {
    let script = format!(
        "subprocess.run([{:?}, 'detach', '1'], check=True, capture_output=True)\n\
         for tries in range(1000):\n\
         \x20   try:\n        print(os.wait()[1])\n        break\n\
         \x20   except ChildProcessError: time.sleep(.01)\n\
         print(open('/proc/1/task/1/children').read())",
        env!("CARGO_BIN_EXE_fastpath")
    );
    let out = needed!(init(&script));
    assert_eq!(out, "0\n\n");
}

#[test]
fn an_init_that_cannot_be_served_is_left_no_child() {
    let (prefix, strace) = needed!(unshare(PID_NAMESPACE), tool("strace"));
    // The helper cannot trace a process that is traced already.
    let fastpath = [env!("CARGO_BIN_EXE_fastpath"), "run", "--clocks", "all", "--"];
    let mut traced = Command::new(strace);
    traced.args(["-f", "-e", "trace=none", "-o", "/dev/null"]);
    traced
        .args(prefix)
        .args(fastpath)
        .args(["cat", "/proc/1/task/1/children"]);
    let outcome = finish(traced).expect_success();
    assert!(outcome.err.contains("untouched"), "{outcome:#?}");
    assert_eq!(outcome.out, "", "children of PID 1");
}

#[test]
fn a_container_started_by_a_served_program_is_served_too() {
    let prefix = needed!(unshare(PID_NAMESPACE));
    let script = format!("echo $$; sh -c '{LEAF_IN_SHELL}'; exit 7");
    let command = [&prefix[..], &["sh", "-c", &script]].concat();
    comes_to(|| served(&command), 7, "1\n1");
}

#[test]
fn programs_are_served_in_a_user_namespace() {
    let prefix = needed!(unshare(&["--user", "--map-root-user"]));
    let script = format!("id -u; sh -c '{LEAF_IN_SHELL}'; exit 7");
    comes_to(|| served_inside(&prefix, &["sh", "-c", &script]), 7, "0\n1");
    let command = [&prefix[..], &["sh", "-c", &script]].concat();
    comes_to(|| served(&command), 7, "0\n1");
}

#[test]
fn a_program_in_another_root_is_served_without_a_common_path() {
    let ((), _, clock) = needed!(needs_root(), tool("chroot"), program("clock-glibc-static"));
    let root = tempfile::tempdir().expect("a directory");
    install(clock, root.path().join("clock"), 0o755);
    let root = root.path().to_str().expect("UTF-8");
    finish(served(&["chroot", root, "/clock", "1000"])).expect_success();
    let running = start(served(&["chroot", root, "/clock", "2000000000", "MONOTONIC"]));
    let is_clock = |pid: Pid| pid.program() == "clock";
    wait_until("the clock's start", || {
        is_clock(running.pid()) && running.pid().cpu_time().as_millis() > 50
    });
    assert!(running.pid().is_served(), "{}", running.pid().describe());
}

/// Prints how far BOOTTIME and MONOTONIC are ahead of this process's, in thousands of seconds.
fn clocks_ahead() -> String {
    let now = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a valid timespec.
        unsafe { libc::clock_gettime(clock, &mut time) };
        time.tv_sec
    };
    let (boot, monotonic) = (now(libc::CLOCK_BOOTTIME), now(libc::CLOCK_MONOTONIC));
    format!(
        "import time; print(round((time.clock_gettime(7) - {boot}) / 1000), round((time.clock_gettime(1) - {monotonic}) / 1000))"
    )
}

const TIME_NAMESPACE: &[&str] = &["--time", "--boottime", "100000", "--monotonic", "50000"];

#[test]
fn a_program_started_in_a_time_namespace_sees_its_clocks() {
    let (prefix, python) = needed!(unshare(TIME_NAMESPACE), tool("python3"));
    let script = clocks_ahead();
    let command = [&prefix[..], &[python, "-c", &script]].concat();
    finish(served(&command)).expect_success().expect_output("100 50");
    let command = [
        &prefix[..],
        &["--fork"],
        &["sh", "-c", "\"$@\"; exit $?", "sh", python, "-c", &script],
    ]
    .concat();
    finish(served(&command)).expect_success().expect_output("100 50");
    finish(served(&[python, "-c", &script]))
        .expect_success()
        .expect_output("0 0");
}

#[test]
fn a_run_inside_a_time_namespace_serves_its_clocks() {
    let (prefix, python) = needed!(unshare(&[TIME_NAMESPACE, &["--fork"]].concat()), tool("python3"));
    let script = clocks_ahead();
    finish(served_inside(&prefix, &[python, "-c", &script]))
        .expect_success()
        .expect_output("100 50");
    comes_to(|| served_inside(&prefix, &["sh", "-c", LEAF_IN_SHELL]), 0, "1");
}

#[test]
fn a_child_forked_into_a_time_namespace_sees_its_clocks() {
    let (_, python) = needed!(unshare(TIME_NAMESPACE), tool("python3"));
    // There is no exec after the fork.
    let fork = "import ctypes, os\n\
        assert ctypes.CDLL(None).unshare(0x80) == 0\n\
        open('/proc/self/timens_offsets', 'w').write('boottime 100000 0\\nmonotonic 50000 0\\n')\n\
        child = os.fork()\n\
        if child:\n    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n";
    let script = format!("{fork}{}", clocks_ahead());
    finish(served(&[python, "-c", &script]))
        .expect_success()
        .expect_output("100 50");
}

#[test]
fn a_program_that_enters_a_time_namespace_sees_its_clocks() {
    let (prefix, python, nsenter) = needed!(unshare(TIME_NAMESPACE), tool("python3"), tool("nsenter"));
    let script = clocks_ahead();
    let mut sleeper = Command::new(prefix[0]);
    sleeper
        .args(&prefix[1..])
        .args(["--fork", "--kill-child", "sleep", "1000"]);
    let sleeper = start(sleeper);
    wait_until("the sleeper", || {
        sleeper
            .pid()
            .children()
            .first()
            .is_some_and(|pid| pid.program() == "sleep")
    });
    let inside = format!("--time=/proc/{}/ns/time", sleeper.pid().children()[0].0);
    finish(served(&[nsenter, &inside, python, "-c", &script]))
        .expect_success()
        .expect_output("100 50");
}

#[test]
fn the_requesting_process_is_served_though_another_has_its_pid() {
    let (prefix, threads) = needed!(unshare(PID_NAMESPACE), helper_program("many-threads", "cc", &[]));
    if std::fs::File::options()
        .write(true)
        .open("/proc/sys/kernel/ns_last_pid")
        .is_err()
    {
        return skip("no PID can be chosen for the next process (CONFIG_CHECKPOINT_RESTORE)");
    }
    let inner = format!("echo $(($0 - 1)) >/proc/sys/kernel/ns_last_pid; {LEAF_IN_SHELL}; :");
    let script = format!(
        "\"$0\" 10 & other=$!; sleep 1; {} sh -c '{inner}' $other; kill $other; wait $other",
        prefix.join(" ")
    );
    let command = ["sh", "-c", &script, &threads];
    comes_to(|| served(&command), 0, "ready\n1\ndone");
}
