//! Commands that measure, in surroundings where programs usually die, and on processes there.

use std::process::{Command, Stdio};

use crate::common::programs::helper_program;
use crate::common::terminal::{error_to_terminal, output_to_terminal};
use crate::common::{Outcome, Pid, fastpath, finish, needs_root, served, start, wait_until};

/// `fastpath ARGUMENTS`, after the library has done `what` before its main (helpers/before-main.c).
fn after(what: &str, library: &str, arguments: &[&str]) -> Outcome {
    let mut command = if what == "counter" {
        Command::new(env!("CARGO_BIN_EXE_fastpath"))
    } else {
        // The library changes the system call's answer, so there must be no vDSO.
        fastpath(&[
            "run",
            "--without-vdso",
            "--require",
            "--",
            env!("CARGO_BIN_EXE_fastpath"),
        ])
    };
    command
        .args(arguments)
        .env("LD_PRELOAD", library)
        .env("BEFORE_MAIN", what);
    finish(command)
}

const INSTRUMENTS: [&[&str]; 7] = [
    &["probe"],
    &["doctor"],
    &["bench", "--rounds", "3"],
    &["audit", "/bin/true"],
    &["trace", "--", "/bin/true"],
    &["report", "--json"],
    &["guard"],
];

#[test]
fn measuring_commands_survive_a_filter_on_the_clock_calls_and_report_it() {
    let library = needed!(helper_program("before-main", "cc", &["-shared", "-fPIC"]));
    for (what, said) in [("refuse", "Operation not permitted"), ("kill", "SIGSYS")] {
        for arguments in INSTRUMENTS {
            let outcome = after(what, &library, arguments);
            let code = outcome.status.code();
            assert!(matches!(code, Some(1 | 69)), "{what} {arguments:?}: {outcome:#?}");
            let all = format!("{}{}", outcome.out, outcome.err);
            assert!(
                all.contains(said) && !all.contains("panicked"),
                "{what} {arguments:?}: {outcome:#?}"
            );
        }
    }
}

#[test]
fn measuring_commands_survive_a_forbidden_counter_and_report_it() {
    let library = needed!(helper_program("before-main", "cc", &["-shared", "-fPIC"]));
    for arguments in INSTRUMENTS {
        let outcome = after("counter", &library, arguments);
        let all = format!("{}{}", outcome.out, outcome.err);
        let said = all.contains("PR_SET_TSC") || all.contains("PR_GET_TSC");
        // trace itself is not affected: its program fails as it would without trace.
        let is_trace = arguments[0] == "trace";
        assert!(
            outcome.status.code().is_some() || is_trace,
            "{arguments:?}: {outcome:#?}"
        );
        assert!(said, "{arguments:?}: {outcome:#?}");
    }
}

/// Regression test: each was called healthy on a host whose own clocks are fast.
#[test]
fn a_process_without_a_vdso_is_slow_where_fastpath_does_not_serve_it() {
    let doctor = |pid: i32| {
        let outcome = finish(fastpath(&["doctor", "--json", &pid.to_string()]));
        let report: serde_json::Value = serde_json::from_str(&outcome.out).expect("JSON");
        let summary = report["summary"].as_str().expect("a summary").to_owned();
        (outcome.status.code(), summary, report)
    };
    let says = |pid: i32, words: [&str; 2]| {
        let (code, summary, _) = doctor(pid);
        code == Some(1) && words.iter().all(|word| summary.contains(word))
    };
    let hooks_only = start(fastpath(&["run", "--without-vdso", "--require", "--", "sleep", "60"]));
    wait_until("the verdict slow", || {
        says(hooks_only.pid().0, ["serves no clock", "is a system call"])
    });

    let served = start(fastpath(&[
        "run",
        "--without-vdso",
        "--clocks",
        "all",
        "--require",
        "--",
        "sleep",
        "60",
    ]));
    let pid = served.pid().0;
    wait_until("the process to be served", || {
        doctor(pid).1.contains("fast by fastpath")
    });
    let (_, _, report) = doctor(pid);
    let publisher = report["facts"]["process"]["page"]["publisher_pid"]
        .as_i64()
        .expect("a number");
    // SAFETY: kill takes integers; the process is this test's.
    assert_eq!(unsafe { libc::kill(publisher as i32, libc::SIGKILL) }, 0);
    wait_until("its page to be stale", || says(pid, ["not fresh", "is a system call"]));
}

#[test]
fn every_table_fits_a_terminal_of_80_columns() {
    let asker = needed!(helper_program("ask-the-time", "cc", &["-g"]));
    let served = start(served(&["sleep", "1000"]));
    wait_until("its sleep", || served.pid().read("wchan").contains("nanosleep"));
    let endless = start({
        let mut command = Command::new(&asker);
        command.args(["1", "forever"]);
        command
    });
    wait_until("it runs", || endless.pid().program() == "ask-the-time-cc-g");
    // A long name, and a long list of clocks.
    let clocks = "REALTIME,MONOTONIC,MONOTONIC_RAW,BOOTTIME";
    let several = start(fastpath(&[
        "run",
        "--require",
        "--clocks",
        clocks,
        "--",
        &asker,
        "1",
        "forever",
    ]));
    wait_until("it runs", || several.pid().program() == "ask-the-time-cc-g");
    let pid = endless.pid().0.to_string();
    let wide: [&[&str]; 5] = [
        &["probe"],
        &["doctor", "-v"],
        &["bench", "--rounds", "3"],
        &["trace", "-d", "1", "-p", &pid],
        &["status"],
    ];
    let may_count_calls = needs_root().is_some();
    for arguments in wide
        .into_iter()
        .filter(|arguments| arguments[0] != "trace" || may_count_calls)
    {
        let mut command = fastpath(arguments);
        command.env("NO_COLOR", "1");
        let mut terminal = output_to_terminal(&mut command);
        let mut child = command.spawn().expect("fastpath");
        drop(command);
        let shown = terminal.read_to_end(|_| {});
        child.wait().expect("wait");
        let shown = shown.rsplit("\x1b[J").next().expect("the last table");
        assert!(shown.lines().count() > 1, "{arguments:?}: {shown}");
        for line in shown.lines() {
            assert!(line.chars().count() <= 80, "{arguments:?}: {line}");
        }
    }
}

#[test]
fn bench_shows_its_progress_on_a_terminal_only() {
    // The command is ended as soon as its progress is shown.
    let long = |options: &[&str]| fastpath(&[&["bench"], options].concat());
    for options in [&["--rounds", "5000"][..], &["--rounds", "1", "--accuracy", "30"]] {
        let mut bench = long(options);
        bench.stdout(Stdio::null()).env("TERM", "xterm");
        let mut terminal = error_to_terminal(&mut bench);
        let mut child = bench.spawn().expect("fastpath");
        drop(bench);
        let words = ["measuring ", "comparing with the kernel's clocks for 30 s"];
        let shown = terminal.read_to_end(|shown| {
            if words.iter().any(|word| shown.contains(word)) {
                Pid(child.id() as i32).signal(libc::SIGKILL);
            }
        });
        child.wait().expect("wait");
        let word = words[usize::from(options.len() > 2)];
        assert!(
            shown.contains(word) || shown.contains("fastpath's vDSO is not measured"),
            "{options:?}: {shown:?}"
        );
    }
    // Takes some seconds.
    let outcome = finish(long(&["--rounds", "700", "--json"])).expect_success();
    assert!(!outcome.err.contains("measuring"), "{outcome:#?}");
    let bench: serde_json::Value = serde_json::from_str(&outcome.out).expect("JSON");
    for row in bench["rows"].as_array().expect("rows") {
        let cost = &row["syscall_ns"];
        let number = |field: &str| cost[field].as_f64().unwrap_or_else(|| panic!("{field}: {row}"));
        assert!(
            number("min") <= number("median") && number("median") <= number("max"),
            "{row}"
        );
        assert!(
            number("min") <= number("mean") && number("mean") <= number("max"),
            "{row}"
        );
        assert!(number("stddev") >= 0.0 && number("outliers") <= 700.0, "{row}");
    }
}
