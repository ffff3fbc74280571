//! The results of `trace` for programs that make system calls to read clocks.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::terminal::output_to_terminal;
use crate::common::{Pid, fastpath, finish, helper_program, install, needs_perf_events, skip, start, tool, wait_until};

const NO_SUCH_PROCESS: i32 = 3;
const CANNOT_COUNT: i32 = 69;
const NOT_WRITTEN: i32 = 74;
/// The program's exit status.
const ITS_STATUS: i32 = 7;

fn asker() -> Option<String> {
    helper_program("ask-the-time", "cc", &["-g"])
}

/// Returns the report on a command that ends with `status`.
#[track_caller]
fn traced(options: &[&str], command: &[&str], status: i32) -> Value {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let path = file.path().to_str().expect("UTF-8");
    finish(fastpath(
        &[&["trace", "--json", "-o", path], options, &["--"], command].concat(),
    ))
    .expect_code(status);
    report(file.path())
}

#[track_caller]
fn report(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("the report");
    assert_eq!(text.lines().count(), 1, "{text}");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["schema"], 1);
    report
}

fn rows(report: &Value) -> Vec<&Value> {
    report["rows"].as_array().expect("rows").iter().collect()
}

/// Returns the calls of the rows for which `is_it` holds.
fn calls(report: &Value, is_it: impl Fn(&Value) -> bool) -> u64 {
    let of = |row: &Value| row["calls"].as_u64().expect("calls");
    rows(report).into_iter().filter(|row| is_it(row)).map(of).sum()
}

#[track_caller]
fn assert_nothing_lost(report: &Value) {
    for what in ["calls", "stacks", "process_events"] {
        assert_eq!(report["lost"][what], 0, "{report}");
    }
}

#[test]
fn every_call_is_counted_with_its_cost_and_reason_by_both_methods() {
    let asker = needed!(asker());
    let ways: &[&str] = if cfg!(target_arch = "x86_64") {
        &["own", "cpu", "int80", "vsyscall"]
    } else {
        &["own", "cpu"]
    };
    for by in ["bpf", "ptrace"] {
        if by == "bpf" && needs_perf_events().is_none() {
            continue;
        }
        let report = traced(&["--by", by], &[&[asker.as_str(), "500"], ways].concat(), ITS_STATUS);
        assert_eq!(report["method"], by);
        assert_eq!(report["calls"], 500 * ways.len(), "{report}");
        assert_nothing_lost(&report);
        for (clock, abi, why) in [
            ("MONOTONIC", std::env::consts::ARCH, "own-instruction"),
            ("PROCESS_CPUTIME_ID", std::env::consts::ARCH, "kernel-only"),
        ] {
            let is_it = |row: &Value| row["clock"] == clock && row["abi"] == abi && row["why"] == why;
            assert_eq!(calls(&report, is_it), 500, "{clock}: {report}");
        }
        if cfg!(target_arch = "x86_64") {
            let is_it = |row: &Value| row["why"] == "vsyscall" && row["call"] == "time";
            assert_eq!(calls(&report, is_it), 500, "{report}");
            let is_it = |row: &Value| row["abi"] == "i386" && row["clock"] == "MONOTONIC";
            assert_eq!(calls(&report, is_it), 500, "{report}");
        }
        for row in rows(&report) {
            assert_eq!(
                (&row["comm"], &row["program"]),
                (&"ask-the-time-cc".into(), &asker.as_str().into())
            );
            let cost = row["cost_ns"].as_f64();
            assert!(cost.is_some_and(|ns| ns > 0.0) || row["abi"] == "i386", "{row}");
            if let Some(cost) = cost {
                let cost = row["calls_per_second"].as_f64().expect("a rate") * cost / 1e7;
                let shown = row["cpu_percent"].as_f64().expect("a share");
                assert!((cost - shown).abs() <= 0.001 + cost / 1000.0, "{row}");
            }
        }
    }
}

/// Returns the number of calls of a command that strace sees.
#[track_caller]
fn counted_by_strace(command: &[&str]) -> u64 {
    let log = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-e", "trace=clock_gettime,gettimeofday,time,clock_getres,getcpu"]);
    strace.arg("-o").arg(log.path()).args(command);
    finish(strace).expect_code(ITS_STATUS);
    let lines = std::fs::read_to_string(log.path()).expect("strace's log");
    lines.lines().filter(|line| line.contains('(')).count() as u64
}

/// Returns the number of calls of a command that bpftrace sees, with a tracefs of its own, because machines without
/// systemd have none mounted. `None` if this kernel has no tracepoints for system calls.
#[track_caller]
fn counted_by_bpftrace(command: &[&str]) -> Option<u64> {
    const WITH_TRACEFS: &str = "mount -t tracefs tracefs /sys/kernel/tracing && \
                                test -e /sys/kernel/tracing/events/syscalls/sys_enter_clock_gettime || exit 77; exec \"$@\"";
    // AArch64 has no time().
    let mut calls = vec!["clock_gettime", "gettimeofday", "clock_getres", "getcpu"];
    calls.extend(cfg!(target_arch = "x86_64").then_some("time"));
    let probes = calls.iter().map(|call| format!("tracepoint:syscalls:sys_enter_{call}"));
    let program = format!(
        "BEGIN {{ @calls = (uint64)0; }} {} /pid == cpid/ {{ @calls = @calls + 1; }}",
        probes.collect::<Vec<_>>().join(",")
    );
    let mut bpftrace = Command::new("unshare");
    bpftrace.args(["--mount", "sh", "-c", WITH_TRACEFS, "sh", "bpftrace", "-f", "json"]);
    bpftrace.args(["-e", &program, "-c", &command.join(" ")]);
    let outcome = finish(bpftrace);
    if outcome.status.code() == Some(77) {
        skip("no tracepoints of system calls for bpftrace");
        return None;
    }
    let outcome = outcome.expect_success();
    let maps = outcome
        .out
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let calls = maps.filter_map(|map| map["data"]["@calls"].as_u64()).next_back();
    Some(calls.unwrap_or_else(|| panic!("bpftrace counted nothing: {outcome:#?}")))
}

#[test]
fn the_count_agrees_with_strace_and_bpftrace() {
    needed!(needs_perf_events());
    let asker = needed!(helper_program("ask-the-time", "cc", &["-static", "-g"]));
    let command = [asker.as_str(), "300", "own", "cpu"];
    let report = traced(&[], &command, ITS_STATUS);
    assert_eq!(report["calls"], 600, "{report}");
    if tool("strace").is_some() {
        assert_eq!(report["calls"], counted_by_strace(&command), "{report}");
    }
    if tool("bpftrace").is_some()
        && let Some(calls) = counted_by_bpftrace(&command)
    {
        assert_eq!(report["calls"], calls, "{report}");
    }
}

#[test]
fn programs_without_a_c_library_and_vsyscalls_have_reasons_of_their_own() {
    needed!(tool("cc"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../instruments/tools/tests/labelled/own.c");
    let directory = tempfile::tempdir().expect("a directory");
    let ways: &[(&str, &str)] = if cfg!(target_arch = "x86_64") {
        &[("-DWAY=1", "static-binary"), ("-DWAY=2", "vsyscall")]
    } else {
        &[("-DWAY=1", "static-binary")]
    };
    for (way, why) in ways {
        let program = directory.path().join("own");
        let program = program.to_str().expect("UTF-8");
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-nostdlib", "-static", "-ffreestanding", "-fno-stack-protector"]);
        finish({
            cc.args([way, "-o", program, source]);
            cc
        })
        .expect_success();
        for by in ["bpf", "ptrace"] {
            if by == "bpf" && needs_perf_events().is_none() {
                continue;
            }
            let report = traced(&["--by", by], &[program], 0);
            assert_eq!(calls(&report, |row| row["why"] == *why), 1, "{by} {way}: {report}");
        }
    }
}

/// The text of a terminal with the table, as often as it was drawn.
#[test]
fn on_a_terminal_the_table_is_redrawn_in_place() {
    let ((), asker) = needed!(needs_perf_events(), asker());
    let endless = start({
        let mut command = Command::new(&asker);
        command.args(["0", "forever"]);
        command
    });
    wait_until("it runs", || endless.pid().program() == "ask-the-time-cc-g");
    let pid = endless.pid().0.to_string();
    let mut trace = fastpath(&["trace", "-p", &pid]);
    let mut terminal = output_to_terminal(&mut trace);
    let mut child = trace.spawn().expect("fastpath");
    drop(trace);
    let calls_of = |table: &str| table.split_whitespace().next()?.parse::<u64>().ok();
    let calls_in = |shown: &str| shown.split("\x1b[J").filter_map(calls_of).collect::<Vec<_>>();
    let mut has_ended = false;
    let shown = terminal.read_to_end(|shown| {
        let calls = calls_in(shown);
        if !has_ended && calls.len() >= 3 && calls[0] < calls[calls.len() - 1] {
            Pid(child.id() as i32).signal(libc::SIGINT);
            has_ended = true;
        }
    });
    assert!(child.wait().expect("wait").success(), "{shown}");
    // Drawn once a second and at the end, each time over the previous one.
    let tables: Vec<&str> = shown.split("\x1b[J").collect();
    for pair in tables.windows(2) {
        let lines = pair[0].matches('\n').count();
        assert!(pair[0].ends_with(&format!("\x1b[{lines}A")), "{shown:?}");
    }
    let calls = calls_in(&shown);
    assert_eq!(calls.len(), tables.len(), "{shown:?}");
    assert!(calls.is_sorted(), "{calls:?}");
    // The table is narrow, and its words are explained below it.
    let explains = |table: &str, line: &str| {
        let word = line.strip_prefix("  ").and_then(|line| line.split_once(": "));
        word.is_some_and(|(word, _)| table.matches(word).count() >= 2)
    };
    let is_explained = |table: &&str| table.lines().any(|line| explains(table, line));
    assert!(tables.iter().any(is_explained), "{shown}");
    // A line that is wider than the terminal would take two lines, and the next table would be drawn over half of it.
    for line in tables.iter().rev().skip(1).flat_map(|table| table.lines()) {
        assert!(
            line.split('\x1b').next().unwrap_or_default().chars().count() <= 80,
            "{line:?}"
        );
    }
}

#[test]
fn short_lived_processes_are_counted_by_name() {
    let ((), asker) = needed!(needs_perf_events(), asker());
    let script = format!("for i in $(seq 30); do {asker} 10 own; done; exit 3");
    let report = traced(&[], &["sh", "-c", &script], 3);
    assert_nothing_lost(&report);
    let is_it = |row: &Value| row["comm"] == "ask-the-time-cc" && row["program"] == asker.as_str();
    assert_eq!(calls(&report, is_it), 300, "{report}");
    assert_eq!(rows(&report).iter().filter(|row| is_it(row)).count(), 30);
    assert!(rows(&report).iter().all(|row| row["why"] != "unknown"), "{report}");
}

/// BPF shows registers at the vsyscall page since Linux 5.15, where the kernel has BTF.
fn sees_callers_of_vsyscalls(by: &str) -> bool {
    cfg!(target_arch = "x86_64") && (by == "ptrace" || Path::new("/sys/kernel/btf/vmlinux").exists())
}

#[test]
fn stacks_name_the_function_that_calls_and_its_library() {
    let asker = needed!(asker());
    for by in ["bpf", "ptrace"] {
        if by == "bpf" && needs_perf_events().is_none() {
            continue;
        }
        let ways: &[&str] = if sees_callers_of_vsyscalls(by) {
            &["own", "cpu", "vsyscall"]
        } else {
            &["own", "cpu"]
        };
        // One call in 64 records its stack, at random: with this many calls it is very unlikely that one kind has none.
        let command = [&[asker.as_str(), "4000"], ways].concat();
        let report = traced(&["--stacks", "--by", by], &command, ITS_STATUS);
        for (way, (clock, function)) in ways.iter().zip([
            ("MONOTONIC".into(), "ask_the_kernel"),
            ("PROCESS_CPUTIME_ID".into(), "ask_for_cpu_time"),
            (Value::Null, "ask_the_vsyscall_page"),
        ]) {
            let rows = rows(&report);
            let row = rows.iter().find(|row| row["clock"] == clock);
            let row = row.unwrap_or_else(|| panic!("{way}: {report}"));
            let caller = &row["callers"][0];
            assert_eq!(
                (&caller["function"], &caller["library"]),
                (&function.into(), &asker.as_str().into())
            );
            assert_eq!(caller["calls"], 4000, "{row}");
            let stack = caller["stack"].as_array().expect("a stack");
            assert!(stack.iter().any(|frame| frame["function"] == "main"), "{by}: {row}");
        }
    }
}

#[test]
fn without_bpf_ptrace_gives_the_same_counts_and_a_message() {
    needed!(needs_perf_events(), tool("setpriv"));
    let asker = needed!(asker());
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).expect("chmod");
    let copy = |from: &str, name: &str| install(from, directory.path().join(name), 0o755);
    let (own, asker) = (copy(env!("CARGO_BIN_EXE_fastpath"), "fastpath"), copy(&asker, "asker"));
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    setpriv.current_dir(directory.path());
    setpriv.args([
        own.as_str(),
        "trace",
        "--json",
        "-o",
        "report",
        "--",
        asker.as_str(),
        "200",
        "own",
        "cpu",
    ]);
    let outcome = finish(setpriv).expect_code(ITS_STATUS);
    assert!(
        outcome.err.contains("ptrace") || outcome.err.contains("stopped at each call"),
        "{outcome:#?}"
    );
    let report = report(&directory.path().join("report"));
    assert_eq!(
        (&report["method"], &report["calls"]),
        (&"ptrace".into(), &400.into()),
        "{report}"
    );

    let mut setpriv = Command::new("setpriv");
    setpriv.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        own.as_str(),
        "trace",
        "-d",
        "1",
    ]);
    let outcome = finish(setpriv).expect_code(CANNOT_COUNT);
    assert!(
        outcome.err.contains("CAP_BPF") && outcome.err.contains("trace -- CMD"),
        "{outcome:#?}"
    );
}

#[test]
fn calls_without_room_in_the_table_are_counted_as_lost() {
    let ((), asker) = needed!(needs_perf_events(), asker());
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let path = file.path().to_str().expect("UTF-8");
    let arguments = [
        "trace", "--places", "1", "--json", "-o", path, "--", &asker, "1000", "own", "cpu",
    ];
    let outcome = finish(fastpath(&arguments)).expect_code(ITS_STATUS);
    assert!(outcome.err.contains("the table is full"), "{outcome:#?}");
    let report = report(file.path());
    let lost = report["lost"]["calls"].as_u64().expect("lost calls");
    // Other processes' calls are lost too, and may have taken the one place.
    assert!(
        lost >= 1000 && lost + report["calls"].as_u64().expect("calls") >= 2000,
        "{report}"
    );
}

#[test]
fn only_the_given_process_is_watched_for_the_given_time() {
    let ((), asker) = needed!(needs_perf_events(), asker());
    let endless = |_| {
        start({
            let mut command = Command::new(&asker);
            command.args(["0", "forever"]);
            command
        })
    };
    let (watched, _other) = (endless(()), endless(()));
    wait_until("it runs", || watched.pid().program() == "ask-the-time-cc-g");
    let begun = Instant::now();
    let pid = watched.pid().0.to_string();
    let outcome = finish(fastpath(&["trace", "--json", "-p", &pid, "-d", "1.2"])).expect_code(0);
    assert!(begun.elapsed() >= Duration::from_millis(1200));
    let report: Value = serde_json::from_str(&outcome.out).expect("JSON");
    assert!(report["calls"].as_u64().is_some_and(|calls| calls > 10), "{report}");
    assert!(
        rows(&report).iter().all(|row| row["pid"] == watched.pid().0),
        "{report}"
    );
    let everybody = finish(fastpath(&["trace", "-d", "1.2"])).expect_code(0);
    assert!(everybody.out.matches("ask-the-time-cc").count() >= 2, "{everybody:#?}");
    assert!(!everybody.out.contains('\x1b'), "{everybody:#?}");
}

#[test]
fn a_command_continues_after_its_time_and_keeps_its_status() {
    needed!(needs_perf_events());
    let directory = tempfile::tempdir().expect("a directory");
    let [written, go] = ["report", "go"].map(|name| directory.path().join(name));
    let mut trace = fastpath(&["trace", "-d", "0.3", "--json", "-o"]);
    trace.arg(&written);
    trace.args(["--", "sh", "-c", "until [ -e \"$0\" ]; do sleep 0.05; done; exit 5"]);
    trace.arg(&go);
    let running = start(trace);
    wait_until("the report", || {
        std::fs::read_to_string(&written).is_ok_and(|text| text.ends_with('\n'))
    });
    std::fs::write(&go, "").expect("write");
    running.finish().expect_code(5);
    report(&written);
    let killed = finish(fastpath(&["trace", "--", "sh", "-c", "kill -TERM $$"]));
    killed.expect_signal(libc::SIGTERM);
    finish(fastpath(&["trace", "--", "/nonexistent/program"])).expect_code(127);
    finish(fastpath(&["trace", "--", "/etc/passwd"])).expect_code(126);
}

#[test]
fn impossible_requests_have_a_message_and_an_exit_status() {
    let outcome = finish(fastpath(&["trace", "-p", "4194304"])).expect_code(NO_SUCH_PROCESS);
    assert!(outcome.err.contains("no process 4194304"), "{outcome:#?}");
    for usage in [
        &["trace", "-d", "0"][..],
        &["trace", "-p", "0"],
        &["trace", "-a", "-p", "1"],
    ] {
        finish(fastpath(usage)).expect_code(2);
    }
    finish(fastpath(&["trace", "-o", "/nonexistent/file", "--", "true"])).expect_code(NOT_WRITTEN);
    let shown = finish(fastpath(&["trace", "-o", "-", "--", "true"])).expect_success();
    assert!(shown.out.contains("system calls to read clocks"), "{shown:#?}");
    needed!(needs_perf_events());
    let mut closed = Command::new("sh");
    closed.args(["-c", "exec \"$0\" trace -d 0.1 >&-", env!("CARGO_BIN_EXE_fastpath")]);
    finish(closed).expect_code(NOT_WRITTEN);
}

/// PIDs of this namespace would be looked up among those of another.
#[test]
fn no_process_gets_a_wrong_name_if_proc_is_another_namespaces() {
    needed!(needs_perf_events(), tool("unshare"));
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", env!("CARGO_BIN_EXE_fastpath"), "trace", "-d", "0.1"]);
    let outcome = finish(unshare).expect_code(CANNOT_COUNT);
    assert!(outcome.err.contains("another PID namespace"), "{outcome:#?}");
}
