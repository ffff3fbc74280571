//! Misuse of the commands that only observe: outputs that cannot be written, two at once, killed in the middle.

use std::process::Command;

use crate::common::{Pid, fastpath, finish, needs_perf_events, start, wait_until};

const FASTPATH: &str = env!("CARGO_BIN_EXE_fastpath");
const NOT_WRITTEN: i32 = 74;

/// Returns each command that prints a result on its standard output and that this user may use.
fn commands() -> Vec<&'static str> {
    let mut commands = vec![
        "--help",
        "--version",
        "doctor --help",
        "probe",
        "probe --json",
        "doctor",
        "doctor --json",
        "guard",
        "guard --json",
    ];
    commands.extend(["audit /bin/true", "audit --sarif /bin/true"]);
    if needs_perf_events().is_some() {
        commands.extend(["trace -d 0.1", "trace -d 0.1 --json"]);
    }
    commands
}

fn in_shell(command: &str, redirection: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec \"$0\" {command} {redirection}"), FASTPATH]);
    shell
}

#[test]
fn a_result_that_cannot_be_written_is_exit_status_74_and_one_line() {
    for command in commands() {
        for redirection in [">/dev/full", ">&-"] {
            let outcome = finish(in_shell(command, redirection)).expect_code(NOT_WRITTEN);
            assert_eq!(outcome.err.lines().count(), 1, "{command} {redirection}: {outcome:#?}");
            assert!(outcome.err.contains("standard output"), "{command}: {outcome:#?}");
        }
        finish(in_shell(command, "<&- >&- 2>&-")).expect_code(NOT_WRITTEN);
    }
}

#[test]
fn a_file_that_is_a_closed_descriptor_cannot_be_written() {
    for (command, redirection, fd) in [
        ("export --textfile /dev/stdout", ">&-", 1),
        ("export --textfile /dev/fd/0", "<&-", 0),
        ("guard --path any --max-ns 1e9 --write-baseline /dev/stdout", ">&-", 1),
        ("report --json --trace 0 -o /dev/stdout", ">&-", 1),
        ("trace --by ptrace -o /dev/stdout -- true", ">&-", 1),
    ] {
        let outcome = finish(in_shell(command, redirection));
        let why = format!("descriptor {fd} is closed");
        assert!(
            !outcome.status.success() && outcome.err.contains(&why),
            "{command}: {outcome:#?}"
        );
    }
    let open = finish(in_shell("export --textfile /dev/stdout", "")).expect_success();
    assert!(open.out.contains("fastpath_export_looks_total 1"), "{open:#?}");
}

#[test]
fn a_standard_error_that_cannot_be_written_changes_no_result() {
    for command in commands() {
        let expected = finish(in_shell(command, "")).status.code();
        for redirection in ["2>&-", "2>/dev/full"] {
            let outcome = finish(in_shell(command, redirection));
            assert_eq!(outcome.status.code(), expected, "{command} {redirection}: {outcome:#?}");
            assert!(!outcome.out.is_empty(), "{command} {redirection}");
        }
    }
}

#[test]
fn two_traces_at_once_see_the_same_calls() {
    needed!(needs_perf_events());
    let asker = needed!(crate::common::helper_program("ask-the-time", "cc", &["-g"]));
    let directory = tempfile::tempdir().expect("a directory");
    let endless = start({
        let mut command = Command::new(&asker);
        command.args(["0", "forever"]);
        command
    });
    wait_until("it runs", || endless.pid().program() == "ask-the-time-cc-g");
    let pid = endless.pid().0.to_string();
    let files = ["a", "b"].map(|name| directory.path().join(name));
    let traces = files.each_ref().map(|file| {
        let file = file.to_str().expect("UTF-8");
        start(fastpath(&["trace", "-p", &pid, "-d", "1", "--json", "-o", file]))
    });
    for trace in traces {
        trace.finish().expect_success();
    }
    for file in files {
        let text = std::fs::read_to_string(file).expect("a report");
        let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert!(report["calls"].as_u64().is_some_and(|calls| calls > 10), "{report}");
    }
}

/// BPF counts in the kernel, and does not affect the program. By ptrace the program is stopped at each call and must
/// die with the tracer: its clock reads would fail.
#[test]
fn when_trace_is_killed_the_program_continues_or_ends_with_it() {
    for (by, goes_on) in [("bpf", true), ("ptrace", false)] {
        if by == "bpf" && needs_perf_events().is_none() {
            continue;
        }
        let trace = start(fastpath(&[
            "trace",
            "--by",
            by,
            "-o",
            "/dev/null",
            "--",
            "sleep",
            "1000",
        ]));
        let mut program = None;
        wait_until("the program runs", || {
            program = trace.pid().children().into_iter().find(|pid| pid.program() == "sleep");
            program.is_some()
        });
        let program: Pid = program.expect("the program");
        trace.pid().signal(libc::SIGKILL);
        trace.finish().expect_signal(libc::SIGKILL);
        if goes_on {
            assert!(program.exists(), "{by}");
            program.signal(libc::SIGKILL);
        }
        wait_until(by, || !program.exists());
    }
}
