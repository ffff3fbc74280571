//! What a command meets under `slow-clock`, by the real binary. A test that cannot run on this machine writes the reason
//! to the file that FASTPATH_SKIPS names, and passes.

#![cfg(target_arch = "x86_64")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fastpath_measure::path::{TRIES, establish};
use fastpath_measure::{Call, Clock, Functions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// More than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The variable in which a test finds the part that it plays as the command.
const PART: &str = "SLOW_CLOCK_TEST_PART";

fn slow_clock(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slow-clock"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Returns whether slow-clock works on this machine, and skips the test if not.
fn is_possible() -> bool {
    let clocksource = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let reason = if !nix::unistd::geteuid().is_root() {
        "not root".to_owned()
    } else if clocksource.is_ok_and(|name| name.trim() != "tsc") {
        "the clocksource is not tsc".to_owned()
    } else {
        let tried = slow_clock(&["--", "true"]).output().expect("slow-clock");
        let why = text(&tried.stderr);
        match tried.status.code() {
            Some(125) if why.contains("cgroup2 is not mounted") || why.contains("not permitted") => why,
            _ => return true,
        }
    };
    let line = format!("slow-clock's tests: {}\n", reason.trim_end());
    eprint!("skipped: {line}");
    if let Some(path) = std::env::var_os("FASTPATH_SKIPS") {
        let file = fs::File::options().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("FASTPATH_SKIPS");
    }
    false
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn expect_code(output: Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    text(&output.stdout)
}

#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < TIMEOUT, "timeout: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// The calls of the tests; the first six are slow on a host on hpet.
fn calls() -> Vec<Call> {
    let clocks = Clock::SERVED.iter().copied();
    let coarse = [Clock::REALTIME_COARSE, Clock::MONOTONIC_COARSE];
    let mut calls: Vec<Call> = clocks.map(Call::ClockGettime).collect();
    calls.push(Call::Gettimeofday);
    calls.extend(coarse.map(Call::ClockGettime));
    calls.extend([Call::Time, Call::ClockGetres(Clock::MONOTONIC)]);
    calls
}

/// Returns how many system calls this process makes for `TRIES` of each call.
fn system_calls() -> Vec<u64> {
    let evidence = establish(&calls()).into_iter();
    evidence.map(|one| one.syscalls.expect("a count")).collect()
}

/// Runs this test again as the command behind `prefix`, and returns what it prints for `@`.
#[track_caller]
fn as_command(prefix: &mut Command, test: &str) -> Vec<String> {
    let own = std::env::current_exe().expect("this program");
    // Two execs by a shell's children: the model follows descendants.
    let script = format!(
        "'{0}' --exact {test} --nocapture; '{0}' --exact {test} --nocapture",
        own.display()
    );
    let output = prefix.args(["sh", "-c", &script]).env(PART, "command").output();
    let out = expect_code(output.expect("a shell"), 0);
    let lines = out.lines().filter_map(|line| Some(line.split_once('@')?.1.to_owned()));
    lines.collect()
}

#[test]
fn clock_reads_are_system_calls_in_the_command_and_nowhere_else() {
    if std::env::var_os(PART).is_some() {
        return println!("@{:?}", system_calls());
    }
    if !is_possible() {
        return;
    }
    let slow = as_command(
        &mut slow_clock(&["--"]),
        "clock_reads_are_system_calls_in_the_command_and_nowhere_else",
    );
    let expected = [[TRIES; 6].as_slice(), &[0; 4]].concat();
    assert_eq!(slow, [format!("{expected:?}"), format!("{expected:?}")]);
    // While another command runs under the model.
    let mut other = Running::start(slow_clock(&["--", "sh", "-c", "echo here; exec sleep 1000"]));
    assert_eq!(other.line(), "here");
    assert_eq!(system_calls(), [0; 10]);
}

#[test]
fn a_read_takes_at_least_what_was_asked_for() {
    const READS: u64 = 200;
    const NS: u64 = 20_000;
    if std::env::var_os(PART).is_some() {
        let raw = Functions::syscalls();
        let clock = Clock::MONOTONIC;
        let begun = raw.now_ns(clock).expect("the time");
        // The last one ends the interval.
        let reads: Vec<_> = (0..READS).filter_map(|_| raw.now_ns(clock)).collect();
        return println!("@{}", reads[READS as usize - 1] - begun);
    }
    if !is_possible() {
        return;
    }
    let mut model = slow_clock(&["--ns", &NS.to_string(), "--"]);
    let took = as_command(&mut model, "a_read_takes_at_least_what_was_asked_for");
    assert_eq!(took.len(), 2);
    for ns in took {
        assert!(ns.parse::<u64>().expect("ns") >= READS * NS, "{ns}");
    }
}

#[test]
fn slow_clock_ends_as_its_command_does() {
    if !is_possible() {
        return;
    }
    let output = |words: &[&str]| slow_clock(words).output().expect("slow-clock");
    let seven = output(&["--", "sh", "-c", "echo out; exit 7"]);
    let err = text(&seven.stderr);
    assert!(
        err.starts_with("slow-clock: a model: ") && err.lines().count() == 1,
        "{err}"
    );
    assert_eq!(expect_code(seven, 7), "out\n");
    let killed = output(&["--", "sh", "-c", "kill -KILL $$"]);
    assert_eq!(killed.status.signal(), Some(libc::SIGKILL));
    expect_code(output(&["--", "/nonexistent"]), 127);
    expect_code(output(&["--", "/dev/null"]), 126);
    expect_code(output(&["--ns", "0", "--", "true"]), 2);
}

#[test]
fn a_signal_is_passed_on_to_the_command() {
    if !is_possible() {
        return;
    }
    let script = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done";
    let mut running = Running::start(slow_clock(&["--", "sh", "-c", script]));
    assert_eq!(running.line(), "ready");
    kill(running.pid(), Signal::SIGTERM).expect("kill");
    assert_eq!(running.child.wait().expect("wait").code(), Some(3));
}

#[test]
fn what_the_command_leaves_running_ends_with_it() {
    if !is_possible() {
        return;
    }
    let script = format!("sleep 1000 >&- 2>&- & echo $!; {CGROUP}");
    let out = slow_clock(&["--", "sh", "-c", &script]).output().expect("slow-clock");
    let out = expect_code(out, 0);
    let (pid, cgroup) = out.trim().split_once('\n').expect("two lines");
    assert!(!directory(cgroup).exists(), "{cgroup}");
    assert!(!runs(pid), "{pid}");
}

#[test]
fn the_command_of_a_killed_slow_clock_ends_and_the_next_one_removes_its_cgroup() {
    if !is_possible() {
        return;
    }
    let script = format!("{CGROUP}; echo $$; exec sleep 1000");
    let mut running = Running::start(slow_clock(&["--", "sh", "-c", &script]));
    let (cgroup, pid) = (directory(&running.line()), running.line());
    assert!(cgroup.exists());
    kill(running.pid(), Signal::SIGKILL).expect("kill");
    running.child.wait().expect("wait");
    wait_until("the command ends", || !runs(&pid));
    wait_until("its cgroup is removed", || {
        expect_code(slow_clock(&["--", "true"]).output().expect("slow-clock"), 0);
        !cgroup.exists()
    });
}

/// Returns whether a process exists and has not ended.
fn runs(pid: &str) -> bool {
    // A process that has ended and is not waited for has no command line.
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| !words.is_empty())
}

/// Prints the cgroup of a shell.
const CGROUP: &str = "sed -n 's/^0:://p' /proc/self/cgroup";

/// Returns the directory of a cgroup.
fn directory(cgroup: &str) -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"));
    let mount = mount.expect("cgroup2").split(' ').nth(1).expect("a path");
    Path::new(mount).join(cgroup.trim().trim_start_matches('/'))
}

/// A command whose output is read line by line. It is terminated, and slow-clock ends its descendants, when this is
/// dropped.
struct Running {
    child: Child,
    out: Box<dyn BufRead>,
}

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("slow-clock");
        let out: Box<dyn Read> = Box::new(child.stdout.take().expect("a pipe"));
        Running {
            child,
            out: Box::new(BufReader::new(out)),
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = kill(self.pid(), Signal::SIGTERM);
            let _ = self.child.wait();
        }
    }
}
