//! Programs are attached and detached again and again: one that detects any change to it (tests/programs/attached), and
//! some that do what few programs do (`programs`).
//!
//! FASTPATH_ATTACH_CYCLES sets the number of cycles; `make torture` sets 1,000.

mod programs;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::command::{MARK, Outcome};
use crate::common::{Pid, fastpath, finish, program, wait_until};

/// Some seconds of `make test` for each test here.
const CYCLES: u32 = 40;

fn cycles() -> u32 {
    cycles_or(CYCLES)
}

/// Returns `number`, unless FASTPATH_ATTACH_CYCLES sets another.
fn cycles_or(number: u32) -> u32 {
    let given = std::env::var("FASTPATH_ATTACH_CYCLES").ok();
    given.map_or(number, |n| n.parse().expect("FASTPATH_ATTACH_CYCLES is a number"))
}

/// The program, which reports on request what it saw. It is killed if the test ends early.
struct Witness {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
    mark: String,
}

impl Witness {
    fn start(test: &str) -> Option<Witness> {
        let path = program("attached")?;
        let mark = format!("{}-{test}", std::process::id());
        let mut child = Command::new(path)
            .env(MARK, &mark)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("attached");
        let asks = child.stdin.take().expect("its input");
        let answers = BufReader::new(child.stdout.take().expect("its output"));
        Some(Witness {
            child,
            asks,
            answers,
            mark,
        })
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id() as i32)
    }

    fn ask(&mut self, what: &str) -> Value {
        writeln!(self.asks, "{what}").expect("the program runs");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the program runs");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: `{line}`; {:?}", self.child.try_wait()))
    }

    /// Returns what the program saw so far; fails the test if anything was wrong.
    #[track_caller]
    fn report(&mut self) -> Value {
        let report = self.ask("report");
        assert_eq!(report["wrong"], 0, "{report:#}");
        report
    }

    /// As [`Witness::report`] and `stop`, after fastpath was killed: a call that returns EINTR after a stop is
    /// restarted by the tracer that stopped it, and a killed tracer cannot. What the tracer had not closed or unmapped
    /// yet stays, unused.
    #[track_caller]
    fn has_seen_nothing_but_eintr(&mut self, what: &str) -> Value {
        let report = self.ask(what);
        assert_eq!(report["wrong"], report["unexplained_eintr"], "{report:#}");
        report
    }

    /// As [`Witness::report`], for the last time; the program must then end by itself.
    #[track_caller]
    fn stop(mut self) -> Value {
        let report = self.ask("stop");
        assert_eq!(report["wrong"], 0, "{report:#}");
        let status = self.child.wait().expect("wait");
        assert!(status.success(), "{status}");
        report
    }

    fn command(&self, name: &str, options: &[&str]) -> Command {
        let mut command = fastpath(&[name]);
        command
            .args(options)
            .arg(self.pid().0.to_string())
            .env(MARK, &self.mark);
        command
    }

    fn attach(&self) -> Outcome {
        finish(self.command("attach", &["--clocks", "all"]))
    }

    fn detach(&self) -> Outcome {
        finish(self.command("detach", &[]))
    }

    /// Nothing of fastpath's is left in the program.
    #[track_caller]
    fn is_as_before(&mut self, before: &Value) {
        let maps = self.pid().read("maps");
        assert!(!maps.contains("memfd:fastpath"), "{maps}");
        let report = self.report();
        for what in ["mappings", "descriptors"] {
            assert_eq!(report[what], before[what], "{what}\n{maps}");
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Long enough for every thread to do everything once.
fn let_it_live() {
    std::thread::sleep(Duration::from_millis(500));
}

#[test]
fn a_thousand_cycles_on_a_busy_program_with_64_threads_leave_no_trace() {
    let mut witness = needed!(Witness::start("cycles"));
    let_it_live();
    let before = witness.report();
    for cycle in 0..cycles() {
        witness.attach().expect_success();
        assert!(witness.pid().is_served(), "cycle {cycle}");
        witness.detach().expect_success();
        assert!(!witness.pid().is_served(), "cycle {cycle}");
    }
    witness.is_as_before(&before);
    let mark = witness.mark.clone();
    witness.stop();
    wait_until("the helpers go", || Pid::helpers(&mark).is_empty());
}

#[test]
fn a_busy_program_is_served_for_a_while() {
    let mut witness = needed!(Witness::start("served"));
    let_it_live();
    let before = witness.report();
    witness.attach().expect_success();
    std::thread::sleep(Duration::from_secs(3));
    witness.report();
    witness.detach().expect_success();
    witness.is_as_before(&before);
    witness.stop();
}

#[test]
fn a_program_runs_correctly_after_fastpath_was_killed_at_any_moment() {
    let mut witness = needed!(Witness::start("killed"));
    let_it_live();
    let before = witness.report();
    for moment in 0..cycles() {
        let command = if moment % 2 == 0 {
            witness.command("attach", &["--clocks", "all"])
        } else {
            witness.command("detach", &[])
        };
        let mut running = { command }
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("fastpath");
        // Anywhere within the time of an attach, and some time after it.
        std::thread::sleep(Duration::from_micros(u64::from(moment * 7919 % 60_000)));
        let _ = running.kill();
        let _ = running.wait();
        assert_eq!(
            witness.pid().status("State").chars().next().map(|s| "RSD".contains(s)),
            Some(true)
        );
    }
    witness.has_seen_nothing_but_eintr("report");
    // Whatever the state, a whole cycle works, and removes everything that is in force.
    let _ = witness.detach();
    witness.attach().expect_success();
    witness.detach().expect_success();
    let maps = witness.pid().read("maps");
    assert!(!maps.contains("memfd:fastpath"), "{maps}");
    let after = witness.has_seen_nothing_but_eintr("report");
    // At most one thread sees an EINTR for each kill.
    for (what, most_left) in [("mappings", 1), ("descriptors", 5), ("unexplained_eintr", 1)] {
        let [before, after] = [&before, &after].map(|report| report[what].as_u64().expect("a number"));
        assert!(
            after <= before + most_left * u64::from(cycles()),
            "{what}: {before}, {after}"
        );
    }
    witness.has_seen_nothing_but_eintr("stop");
    assert!(
        witness.child.wait().expect("wait").code().is_some(),
        "it was killed by a signal"
    );
}
