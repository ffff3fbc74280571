//! The helper is killed or stopped: the time stays correct, no program waits for the helper, and clocks become fast
//! again where possible.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use fastpath_inject::MAILBOX_MAPPED_NAME;

use crate::common::clock_calls::{fewest_clock_calls, makes_clock_calls};
use crate::common::processes::holds_within;
use crate::common::{
    Pid, Running, SERVED, fastpath, finish, helper_program, needs_root, program, program_32, served,
    served_without_vdso, start, tool, torture, wait_until,
};

/// Longer than an anchor is valid.
pub const ANCHOR_IS_OLD: Duration = Duration::from_millis(700);

fn busy(command: &[impl AsRef<str>]) -> (Running, Pid) {
    let command: Vec<_> = command.iter().map(AsRef::as_ref).collect();
    let running = start(served_without_vdso(&command));
    // fastpath is the same process before it becomes the program, and on a slow machine it computes for long: it would
    // wait for a helper that is stopped then.
    wait_until("the program", || {
        running.pid().is_served() && running.pid().program() != "fastpath"
    });
    let begun = running.pid().cpu_time();
    wait_until("the loop", || (running.pid().cpu_time() - begun).as_millis() > 100);
    let helper = Pid::helper(running.mark());
    (running, helper)
}

#[test]
fn a_killed_helper_makes_no_read_wrong() {
    let torture = needed!(torture::endless("2"));
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let (running, helper) = busy(&torture);
        std::thread::sleep(Duration::from_millis(300));
        helper.signal(signal);
        torture::go_on(&running);
        torture::end(running);
    }
}

#[test]
fn a_helper_that_is_stopped_now_and_then_makes_no_read_wrong() {
    let torture = needed!(torture::endless("2"));
    let (running, helper) = busy(&torture);
    for stop_ms in [1, 20, 90, 150, 250, 400, 700, 5, 300, 120] {
        helper.signal(libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(stop_ms));
        helper.signal(libc::SIGCONT);
        std::thread::sleep(Duration::from_millis(150));
    }
    torture::end(running);
}

#[test]
fn reads_ask_the_kernel_while_the_helper_is_stopped() {
    let clock = needed!(program("clock-glibc"));
    let (running, helper) = busy(&[&clock, "2000000000", "MONOTONIC"]);
    helper.signal(libc::SIGSTOP);
    std::thread::sleep(ANCHOR_IS_OLD);
    let asks_kernel = makes_clock_calls(running.pid());
    // Before any check that may fail: a stopped helper that is left behind keeps the program's output open.
    helper.signal(libc::SIGCONT);
    let asks_kernel = needed!(asks_kernel);
    assert!(asks_kernel, "a page without a publisher still answers");
    std::thread::sleep(ANCHOR_IS_OLD);
    assert_eq!(fewest_clock_calls(running.pid()), Some(0));
    helper.signal(libc::SIGKILL);
    std::thread::sleep(ANCHOR_IS_OLD);
    assert_ne!(makes_clock_calls(running.pid()), Some(false));
}

#[test]
fn programs_start_without_delay_once_the_helper_is_gone() {
    let directory = tempfile::tempdir().expect("a directory");
    let go = directory.path().join("go");
    let script = "while [ ! -e \"$0\" ]; do :; done; \
        for i in 1 2 3 4 5 6 7 8 9 10; do sh -c 'exit 3' || /bin/true; done; echo $?; while [ -e \"$0\" ]; do :; done";
    let (running, helper) = busy(&["sh", "-c", script, go.to_str().expect("UTF-8")]);
    helper.signal(libc::SIGKILL);
    wait_until("the helper's end", || !helper.exists());
    let before = requests(running.pid());
    std::fs::write(&go, "").expect("write");
    wait_until("the last program's end", || running.out_so_far() == "0\n");
    // A thread that sends no request does not wait for an answer.
    assert_eq!(requests(running.pid()), before, "requests to a helper that is gone");
    assert_ne!(unserved(running.pid(), "gone"), 0);
    std::fs::remove_file(&go).expect("remove");
    running.finish().expect_success();
}

/// Returns how many requests of a process's tree were not served for a reason, as `fastpath status` reports it.
fn unserved(pid: Pid, reason: &str) -> u64 {
    let status = finish(fastpath(&["status", "--json"])).expect_success();
    let document: serde_json::Value = serde_json::from_str(&status.out).expect("JSON");
    let processes = document["processes"].as_array().expect("processes");
    let process = processes.iter().find(|process| process["pid"] == pid.0);
    let unserved = &process.expect("the process")["unserved"]["requests"];
    unserved[reason].as_u64().unwrap_or(0)
}

#[test]
fn a_program_waits_for_a_helper_that_gets_no_cpu() {
    let directory = tempfile::tempdir().expect("a directory");
    let go = directory.path().join("go");
    let script = "while [ ! -e \"$0\" ]; do :; done; grep -c memfd:fastpath-page /proc/self/maps; true";
    let (running, helper) = busy(&["sh", "-c", script, go.to_str().expect("UTF-8")]);
    helper.signal(libc::SIGSTOP);
    std::thread::sleep(ANCHOR_IS_OLD);
    std::fs::write(&go, "").expect("write");
    std::thread::sleep(Duration::from_millis(500));
    helper.signal(libc::SIGCONT);
    running.finish().expect_success().expect_output("1");
}

#[test]
fn programs_wait_once_for_a_helper_that_stays_stopped() {
    let directory = tempfile::tempdir().expect("a directory");
    let go = directory.path().join("go");
    let script = "while [ ! -e \"$0\" ]; do :; done; for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; done; echo waited; \
        while [ -e \"$0\" ]; do :; done; grep -c memfd:fastpath-page /proc/self/maps; true";
    let (running, helper) = busy(&["sh", "-c", script, go.to_str().expect("UTF-8")]);
    helper.signal(libc::SIGSTOP);
    // Its threads stop when the first has got a CPU; until then, another may begin to trace.
    wait_until("the helper's stop", || helper.state() == 'T');
    let begun = std::time::Instant::now();
    std::fs::write(&go, "").expect("write");
    let waited = holds_within(Duration::from_secs(30), || running.out_so_far() == "waited\n");
    let took = begun.elapsed();
    let late = unserved(running.pid(), "late");
    helper.signal(libc::SIGCONT);
    // It is served again once it runs.
    std::thread::sleep(ANCHOR_IS_OLD);
    std::fs::remove_file(&go).expect("remove");
    running.finish().expect_success().expect_output("waited\n1");
    assert!(waited && late == 10, "{took:?}, {late} late");
    // LONGEST_WAIT_MS of hook.c, and time for ten programs to start.
    assert!(took < Duration::from_secs(9), "{took:?}");
}

#[test]
fn programs_that_the_helper_may_not_look_at_are_not_delayed_and_counted() {
    needed!(needs_root(), tool("setpriv"));
    let directory = tempfile::tempdir().expect("a directory");
    let script = "setpriv --reuid 65534 --clear-groups true; echo ran; while [ -e \"$0\" ]; do :; done";
    let mut run = std::process::Command::new("setpriv");
    let caps = "-sys_ptrace,-sys_admin,-perfmon";
    run.args([
        "--bounding-set",
        caps,
        "--inh-caps",
        caps,
        env!("CARGO_BIN_EXE_fastpath"),
    ]);
    // execvp asks for each directory.
    let path = format!("{}/bin:/usr/bin", "/none:".repeat(20));
    run.args(SERVED)
        .args(["sh", "-c", script])
        .arg(directory.path())
        .env("PATH", path);
    let begun = std::time::Instant::now();
    let running = start(run);
    wait_until("the program without rights", || running.out_so_far() == "ran\n");
    let took = begun.elapsed();
    let hidden = unserved(running.pid(), "hidden");
    drop(directory);
    running.finish().expect_success();
    assert_eq!(hidden, 1);
    assert!(took < Duration::from_millis(2_500), "{took:?}");
}

/// Returns the number of requests to a program's helper: its mailbox's doorbell counts them.
fn requests(pid: Pid) -> u32 {
    let maps = fastpath_os::maps::read(pid.0).expect("its mappings");
    let mailbox = maps.iter().find(|one| one.name.starts_with(MAILBOX_MAPPED_NAME));
    let memory = std::fs::File::open(format!("/proc/{}/mem", pid.0)).expect("its memory");
    let mut doorbell = [0; 4];
    // The first field of the mailbox (surgery/inject/hook/mailbox.h).
    memory
        .read_exact_at(&mut doorbell, mailbox.expect("a mailbox").start)
        .expect("the doorbell");
    u32::from_ne_bytes(doorbell)
}

#[test]
fn a_helper_that_stops_while_programs_start_delays_each_only_briefly() {
    let script =
        "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sh -c 'exit 3' || /bin/true; done; echo $?";
    for delay_ms in [1, 3, 5, 8, 13, 21] {
        let running = start(served(&["sh", "-c", script]));
        wait_until("the shell", || running.pid().program() != "fastpath");
        let helper = Pid::helper(running.mark());
        std::thread::sleep(Duration::from_millis(delay_ms));
        helper.signal(libc::SIGSTOP);
        // Only a program that the helper traces at that moment stays stopped until the helper continues.
        std::thread::sleep(Duration::from_millis(300));
        helper.signal(libc::SIGCONT);
        running.finish().expect_success().expect_output("0");
    }
}

/// Number of times that the helper is killed as a program starts; FASTPATH_TEST_KILLS overrides it.
const KILLS: u32 = 60;

#[test]
fn a_program_runs_whenever_its_helper_is_killed() {
    let clock = needed!(program("clock-glibc"));
    let script = format!("{clock} 10 MONOTONIC | wc -l; sh -c 'exit 3'; echo $?; exit 4");
    kill_at_any_moment(&script, "1\n3\n", 4);
}

/// Runs a shell's script many times, kills the helper at another moment each time, and expects output and exit status.
fn kill_at_any_moment(script: &str, out: &str, code: i32) {
    let kills = std::env::var("FASTPATH_TEST_KILLS").ok().and_then(|n| n.parse().ok());
    let kills = kills.unwrap_or(KILLS);
    let (mut seed, mut hit) = (0x9e37_79b9u32, 0);
    for round in 0..kills {
        // xorshift: the moments differ, and the number of a failed round identifies its moment.
        seed ^= seed << 13;
        seed ^= seed >> 17;
        seed ^= seed << 5;
        let delay = Duration::from_micros(u64::from(seed % 6000));
        let running = start(fastpath(&[
            "run",
            "--without-vdso",
            "--clocks",
            "all",
            "--",
            "sh",
            "-c",
            script,
        ]));
        if let Some(helper) = young_helper(&running) {
            std::thread::sleep(delay);
            helper.signal(libc::SIGKILL);
            hit += 1;
        }
        let outcome = running.finish();
        assert!(
            outcome.status.code() == Some(code) && outcome.out == out,
            "round {round}, killed after {delay:?}: {outcome:#?}"
        );
    }
    assert!(hit > kills / 2, "the helper was found only {hit} times of {kills}");
}

/// Returns the helper as soon as it exists. Its PID follows the program's, unless other processes start at the same
/// time. `None`: the program and its helper have ended.
fn young_helper(running: &Running) -> Option<Pid> {
    loop {
        let has_ended = running.pid().has_stopped_or_ended();
        let near = (1..40).map(|i| Pid(running.pid().0 + i));
        let found = Pid::helpers_among(near, running.mark()).pop();
        let found = found.or_else(|| Pid::helpers(running.mark()).pop());
        if found.is_some() || has_ended {
            return found;
        }
    }
}

/// The helper is killed at each of its first ptrace(2) calls: with calls in a batch, a start takes some 12, and a program
/// that sends a request by the mailbox starts after another one.
const EACH_OF: u32 = 45;
/// Then it is killed at one of this many. A single remote call takes 5, so each of its steps is hit.
const EACH: usize = 3;
/// The start of a program whose remote calls are made one by one takes some 70.
const MOST_CALLS: u32 = 150;

#[test]
fn a_program_runs_at_whichever_ptrace_call_its_helper_is_killed() {
    let library = needed!(helper_program("killed-at-ptrace", "cc", &["-shared", "-fPIC"]));
    let native = ["clock-glibc", "clock-glibc-static", "clock-go"].map(program);
    let clocks = native.into_iter().chain([program_32("clock-i386-glibc-static")]);
    let read = |clock| vec![clock, "10".to_owned(), "MONOTONIC".to_owned()];
    let mut commands: Vec<_> = clocks.flatten().map(read).collect();
    // A program that a shell starts sends its helper a request by the mailbox.
    let in_shell = |clock| vec!["sh".to_owned(), "-c".to_owned(), format!("{clock} 10 MONOTONIC; exit")];
    commands.extend(program("clock-glibc").map(in_shell));
    // The headers and the code of this one are in the same page of its file.
    let spawned = |spawn, clock| [spawn, "fork".to_owned()].into_iter().chain(read(clock)).collect();
    commands.extend(
        program_32("spawn-i386-musl-static")
            .zip(program("clock-glibc"))
            .map(|(s, c)| spawned(s, c)),
    );
    for command in commands {
        let killed = tempfile::NamedTempFile::new().expect("a file");
        for call in (1..EACH_OF).chain((EACH_OF..MOST_CALLS).step_by(EACH)) {
            let mut run = fastpath(&["run", "--without-vdso", "--clocks", "all", "--"]);
            run.args(&command)
                .env("LD_PRELOAD", &library)
                .env("KILL_AT_PTRACE", call.to_string())
                .env("KILLED", killed.path());
            let outcome = finish(run);
            assert!(
                outcome.status.success() && outcome.out.starts_with("MONOTONIC "),
                "{command:?}, call {call}: {outcome:#?}"
            );
        }
        let kills = killed.as_file().metadata().expect("its size").len();
        assert!(kills > 10, "{command:?}: the helper was killed only {kills} times");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_program_that_must_be_served_waits_for_a_helper_without_cpu() {
    let library = needed!(helper_program("before-main", "cc", &["-shared", "-fPIC"]));
    // The request of the child may be late as well, for which no program waits.
    wait_until("a child that is served", || {
        let directory = tempfile::tempdir().expect("a directory");
        let waits = directory.path().join("waits");
        let mut run = served(&["sh", "-c", "grep -c memfd:fastpath-page /proc/self/maps; true"]);
        run.env("LD_PRELOAD", &library).env("BEFORE_MAIN", &waits);
        let running = start(run);
        wait_until("its loader", || waits.exists());
        let helper = Pid::helper(running.mark());
        helper.signal(libc::SIGSTOP);
        std::thread::sleep(ANCHOR_IS_OLD);
        std::fs::remove_file(&waits).expect("the loader's file");
        // Longer than other requests wait.
        std::thread::sleep(Duration::from_millis(300));
        helper.signal(libc::SIGCONT);
        running.finish().out == "1\n"
    });
}
