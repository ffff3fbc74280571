//! A probe inside a sandbox: this test starts itself again under a seccomp filter, and reads the probe's report from
//! there.

use fastpath_measure::{Assume, Clock, Measured, Path, Probe, Verdict, measure_for_auto};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use serde_json::Value;
use std::io::{Error, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const INSIDE: &str = "FASTPATH_OBSERVE_PROBE_INSIDE";

/// Returns a filter that applies `action` to these system calls.
fn filter(numbers: &[i64], action: SeccompAction) -> BpfProgram {
    let rules = numbers.iter().map(|number| (*number, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    SeccompFilter::new(rules, SeccompAction::Allow, action, arch)
        .unwrap()
        .try_into()
        .unwrap()
}

/// Returns the report of a probe in a process under the filter.
fn probe_under(filter: BpfProgram) -> Value {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "the_inner_process", "--nocapture"])
        .env(INSIDE, "1")
        .stderr(Stdio::inherit());
    let install = move || seccompiler::apply_filter(&filter).map_err(|_| Error::last_os_error());
    // SAFETY: between fork and exec only prctl and seccomp are called.
    unsafe { command.pre_exec(install) };
    let output = command.output().unwrap();
    assert!(output.status.success(), "the probe did not survive: {}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    let json = text
        .lines()
        .find_map(|line| line.strip_prefix("PROBE "))
        .unwrap_or_else(|| panic!("no probe in {text}"));
    serde_json::from_str(json).unwrap()
}

fn clock<'a>(probe: &'a Value, name: &str) -> &'a Value {
    probe["clocks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|report| report["clock"] == name)
        .unwrap()
}

/// Not a test by itself: the process in which the tests below run the probe.
#[test]
fn the_inner_process() {
    if std::env::var_os(INSIDE).is_some() {
        let quick = measure_for_auto(Assume::SamePath);
        assert_eq!(quick.len(), Clock::SERVED.len());
        // The harness has begun a line of its own.
        writeln!(
            std::io::stdout(),
            "\nPROBE {}",
            serde_json::to_string(&Probe::run()).unwrap()
        )
        .unwrap();
    }
}

#[test]
fn a_probe_survives_a_filter_that_kills_and_reports_the_unknown_paths() {
    let probe = probe_under(filter(&[libc::SYS_clock_gettime], SeccompAction::KillProcess));
    let monotonic = clock(&probe, "MONOTONIC");
    assert_eq!(monotonic["path"], "unknown");
    assert!(monotonic["why"].as_str().unwrap().contains("SIGSYS"), "{monotonic}");
    assert_eq!(monotonic["syscall_ns"], Value::Null);
    assert_eq!(probe["host"]["seccomp"], 2);
}

#[test]
fn a_path_is_established_under_a_filter_that_refuses_the_clocks() {
    let open = Probe::run();
    let path = |clock| {
        let report = open.clocks.iter().find(|report| report.clock == clock).unwrap();
        report.measured.clone()
    };
    let Measured {
        path: outside, verdict, ..
    } = path(Clock::MONOTONIC);
    let probe = probe_under(filter(
        &[libc::SYS_clock_gettime],
        SeccompAction::Errno(libc::EPERM as u32),
    ));
    let monotonic = clock(&probe, "MONOTONIC");
    assert_eq!(monotonic["path"], serde_json::to_value(outside).unwrap());
    assert_eq!(monotonic["syscall_ns"], Value::Null, "a refused call has no cost");
    if (outside, verdict) == (Path::Vdso, Verdict::Fast) {
        assert_eq!(monotonic["verdict"], "fast");
    }
    let cpu_time = clock(&probe, "PROCESS_CPUTIME_ID");
    assert_eq!(
        (cpu_time["path"].as_str(), cpu_time["ns"].is_null()),
        (Some("syscall"), true),
        "{cpu_time}"
    );
}

#[test]
fn without_seccomp_a_path_is_unknown_and_never_guessed() {
    let probe = probe_under(filter(&[libc::SYS_seccomp], SeccompAction::Errno(libc::ENOSYS as u32)));
    for report in probe["clocks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|report| report["path"] != "unsupported")
    {
        assert_eq!(report["path"], "unknown", "{report}");
        assert!(
            report["why"]
                .as_str()
                .unwrap()
                .contains("no seccomp filter can be installed"),
            "{report}"
        );
        assert!(
            report["syscall_ns"].as_f64().unwrap() > 20.0,
            "prices are still known: {report}"
        );
    }
}
