//! `fastpath guard` fails if the path is broken, and only then.

use std::process::{Command, Stdio};

use crate::common::{Outcome, fastpath, finish, helper_program, skip};

const BROKEN: i32 = 1;
const USAGE: i32 = 2;
const NO_INPUT: i32 = 66;
const UNKNOWN: i32 = 69;
const NOT_WRITTEN: i32 = 74;
const FASTPATH: &str = env!("CARGO_BIN_EXE_fastpath");
const LOST: &[&str] = &[FASTPATH, "run", "--without-vdso", "--"];
const GUARD: &[&str] = &[FASTPATH, "guard"];

/// Number of runs of a check that must never fail; `FASTPATH_GUARD_RUNS=200` for figures.
fn runs() -> u32 {
    let asked = std::env::var("FASTPATH_GUARD_RUNS").ok();
    asked.and_then(|runs| runs.parse().ok()).unwrap_or(8)
}

fn command(words: &[&[&str]]) -> Outcome {
    let words = words.concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    finish(command)
}

/// Checks guard's one line of output.
#[track_caller]
fn says(outcome: Outcome, code: i32, text: &str) {
    let outcome = outcome.expect_code(code);
    assert_eq!(outcome.out.lines().count(), 1, "{outcome:#?}");
    assert!(outcome.out.contains(text), "{text}: {outcome:#?}");
}

/// Returns whether this host's clocks are fast, so that a broken path makes a difference.
fn is_healthy() -> bool {
    let healthy = command(&[GUARD]).status.success();
    if !healthy {
        skip("the clocks of this host are slow");
    }
    healthy
}

/// Twice as many busy loops as there are CPUs.
struct Load(Vec<std::process::Child>);

impl Load {
    fn on_all_cpus() -> Load {
        let cpus = std::thread::available_parallelism().map_or(2, usize::from);
        let busy = || {
            let mut shell = Command::new("sh");
            shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
            shell.spawn().expect("sh")
        };
        Load((0..2 * cpus).map(|_| busy()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_clock_that_goes_backward_is_reported_by_guard_and_by_doctor() {
    let library = needed!(helper_program("backward-clock", "cc", &["-shared", "-fPIC"]));
    let preloaded = format!("LD_PRELOAD={library}");
    let env: &[&str] = &["env", &preloaded, FASTPATH];
    says(
        command(&[env, &["guard", "--path", "any"]]),
        BROKEN,
        "MONOTONIC goes backward",
    );
    let report = command(&[env, &["guard", "--path", "any", "--json"]]).expect_code(BROKEN);
    let report: serde_json::Value = serde_json::from_str(&report.out).expect("JSON");
    let steps = &report["calls"][0]["backward"];
    assert!(steps["worst_ns"].as_i64() > Some(900_000), "{report}");
    assert!(
        report["calls"][1].get("backward").is_none(),
        "REALTIME can be set: {report}"
    );

    let report = command(&[env, &["doctor", "--json"]]).expect_code(BROKEN);
    let report: serde_json::Value = serde_json::from_str(&report.out).expect("JSON");
    assert_eq!(report["verdict"], "wrong", "{report}");
    let findings = report["findings"].as_array().expect("a list");
    let found = findings.iter().find(|finding| finding["id"] == "clock-backward");
    assert!(found.is_some_and(|found| found["severity"] == "wrong"), "{report}");
}

#[test]
fn a_busy_machine_raises_no_false_alarm() {
    if !is_healthy() {
        return;
    }
    let _load = Load::on_all_cpus();
    for run in 0..runs() {
        let outcome = command(&[GUARD]);
        assert!(outcome.status.success(), "run {run}: {outcome:#?}");
    }
}

#[test]
fn a_busy_machine_passes_against_the_baseline_of_a_quiet_one() {
    if !is_healthy() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("baseline.json");
    let file = file.to_str().expect("UTF-8");
    let written = command(&[GUARD, &["--write-baseline", "-"]]).expect_success();
    std::fs::write(file, written.out).expect("write");
    let _load = Load::on_all_cpus();
    for run in 0..runs() {
        let outcome = command(&[GUARD, &["--versus-baseline", file]]);
        assert!(outcome.status.success(), "run {run}: {outcome:#?}");
    }
}

#[test]
fn fastpaths_path_raises_no_false_alarm_on_a_busy_machine() {
    let given_back = [FASTPATH, "run", "--without-vdso", "--clocks", "all", "--require", "--"];
    let first = command(&[&given_back, GUARD]);
    if first.status.code() == Some(125) {
        return skip(first.err.trim());
    }
    let _load = Load::on_all_cpus();
    for run in 0..runs() {
        let outcome = command(&[&given_back, GUARD]);
        assert!(outcome.status.success(), "run {run}: {outcome:#?}");
        assert!(outcome.out.contains("by fastpath"), "run {run}: {outcome:#?}");
    }
}

#[test]
fn every_lost_path_raises_an_alarm_on_a_busy_machine_too() {
    let _load = Load::on_all_cpus();
    for run in 0..runs() {
        let outcome = command(&[LOST, GUARD]);
        assert_eq!(outcome.status.code(), Some(BROKEN), "run {run}: {outcome:#?}");
        assert!(outcome.out.contains("goes by system call"), "run {run}: {outcome:#?}");
    }
}

#[test]
fn a_seccomp_filter_hides_no_lost_path() {
    let filter = needed!(helper_program("filter", "cc", &[]));
    let number = libc::SYS_clock_gettime.to_string();
    let forbid = [filter.as_str(), "forbid", &number];
    let _load = Load::on_all_cpus();
    for _ in 0..runs() {
        says(command(&[&forbid, LOST, GUARD]), BROKEN, "goes by system call");
    }
}

#[test]
fn a_filter_that_forbids_a_call_that_a_vdso_does_not_need_raises_no_alarm() {
    let filter = needed!(helper_program("filter", "cc", &[]));
    if !is_healthy() {
        return;
    }
    let number = libc::SYS_clock_gettime.to_string();
    for action in ["forbid", "kill"] {
        says(command(&[&[&filter, action, &number], GUARD]), 0, "by vdso");
    }
}

#[test]
fn a_filter_that_slows_every_system_call_fails_no_clock() {
    let filter = needed!(helper_program("filter", "cc", &[]));
    if !is_healthy() {
        return;
    }
    let _load = Load::on_all_cpus();
    for _ in 0..runs() {
        says(command(&[&[filter.as_str(), "tax"], GUARD]), 0, "by vdso");
    }
}

#[test]
fn a_path_that_was_in_the_baseline_must_not_be_lost() {
    if !is_healthy() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("baseline.json");
    let file = file.to_str().expect("UTF-8");
    let any = ["--path", "any", "--max-ns", "1000000"];
    command(&[GUARD, &any, &["--write-baseline", file]]).expect_success();
    says(command(&[GUARD, &any, &["--versus-baseline", file]]), 0, "ok: ");
    says(
        command(&[LOST, GUARD, &any, &["--versus-baseline", file]]),
        BROKEN,
        "by vdso in the baseline",
    );
    let boottime = ["--clocks", "boottime", "--versus-baseline", file];
    says(command(&[GUARD, &boottime]), UNKNOWN, "the baseline does not have it");
}

#[test]
fn a_broken_result_is_not_written_as_a_baseline() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("baseline.json");
    let write = ["--write-baseline", file.to_str().expect("UTF-8")];
    says(command(&[LOST, GUARD, &write]), BROKEN, "goes by system call");
    assert!(!file.exists());
}

#[test]
fn a_file_that_is_no_baseline_is_not_replaced_by_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("notes.txt");
    let name = file.to_str().expect("UTF-8");
    std::fs::write(&file, "notes").expect("a file");
    let read = command(&[GUARD, &["--versus-baseline", name]]).expect_code(NO_INPUT);
    assert!(!read.err.contains(&format!("--write-baseline {name}")), "{read:?}");
    let any = ["--path", "any", "--max-ns", "1e9"];
    let written = command(&[GUARD, &any, &["--write-baseline", name]]).expect_code(NOT_WRITTEN);
    assert!(written.err.contains("is not a baseline"), "{written:?}");
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), "notes");
    std::fs::write(&file, "").expect("a file");
    for _ in ["an empty one", "a baseline"] {
        command(&[GUARD, &any, &["--write-baseline", name]]).expect_success();
    }
}

#[test]
fn a_path_that_cannot_be_determined_has_its_own_exit_status() {
    let filter = needed!(helper_program("filter", "cc", &[]));
    let number = libc::SYS_seccomp.to_string();
    let forbidden = command(&[&[&filter, "forbid", &number], GUARD]);
    says(forbidden, UNKNOWN, "seccomp");
}

#[test]
fn json_has_the_result_as_data() {
    let outcome = command(&[LOST, GUARD, &["--json"]]).expect_code(BROKEN);
    let report: serde_json::Value = serde_json::from_str(&outcome.out).expect("JSON");
    assert_eq!((&report["schema"], &report["outcome"]), (&1.into(), &"broken".into()));
    let first = &report["calls"][0];
    assert_eq!(first["call"], "clock_gettime MONOTONIC");
    assert_eq!(first["path"], "syscall");
    assert!(
        first["ns"].as_f64() > Some(20.0) && first["complaint"].is_string(),
        "{first}"
    );
}

/// Checks that guard fails without a result, and with a reason.
#[track_caller]
fn fails(arguments: &[&str], code: i32) {
    let outcome = finish(fastpath(&[&["guard"], arguments].concat())).expect_code(code);
    assert!(outcome.out.is_empty() && !outcome.err.is_empty(), "{outcome:#?}");
}

#[test]
fn each_kind_of_failure_has_an_exit_status_of_its_own() {
    for arguments in [
        &["--max-ns", "0"][..],
        &["--max-ns", "fast"],
        &["--clocks", "wall"],
        &["--path", "kernel"],
        &["--tolerance", "-1"],
    ] {
        fails(arguments, USAGE);
    }
    // A read of the last one never ends.
    for baseline in ["/nonexistent", "/dev/null", "/dev/zero"] {
        fails(&["--versus-baseline", baseline], NO_INPUT);
    }
    let write = ["--write-baseline", "/nonexistent/b.json"];
    fails(
        &[&write[..], &["--path", "any", "--max-ns", "1e9"]].concat(),
        NOT_WRITTEN,
    );
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$0\" guard >/dev/full", FASTPATH]);
    finish(shell).expect_code(NOT_WRITTEN);
}
