//! The process that was asked about: `process-*`.

use super::super::facts::{Facts, OwnCalls, Process, VdsoKind};
use super::super::words::nanoseconds;
use super::clocks::slow_counter_clocks;
use super::finding::{Finding, Severity, finding};
use super::{counter_reads, reads};
use fastpath_measure::clocks::Clock;

pub(super) fn from_facts(process: &Process, facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let maps = format!("/proc/{}/maps", process.pid);
    let status = format!("/proc/{}/status", process.pid);
    if process.is_kernel_thread {
        let says = "the process is a kernel thread, which reads no clock through a vDSO".to_owned();
        return vec![finding("process-of-kernel", Severity::Unknown, says).proof(&status, "no memory of its own")];
    }
    if process.first_thread_ended {
        let says = "its first thread has ended, though others run: /proc does not show its memory any more".to_owned();
        return vec![
            finding("process-without-first-thread", Severity::Unknown, says).proof(&status, "a zombie with threads"),
        ];
    }
    if matches!(process.state, Some('Z' | 'X')) {
        return vec![
            finding("process-ended", Severity::Unknown, "the process has ended".to_owned()).proof(&status, "zombie"),
        ];
    }
    match process.vdso {
        None => {
            let says = "the vDSO of the process cannot be seen".to_owned();
            findings.push(
                finding("process-unseen", Severity::Unknown, says).because("this user may not examine the process"),
            );
        }
        Some(VdsoKind::None) => {
            let says = format!(
                "the process has no vDSO: every clock read is a system call{}",
                call_cost(facts)
            );
            let found = finding("process-without-vdso", Severity::Slow, says)
                .proof(&maps, "neither [vdso] nor fastpath's page");
            findings.push(match facts.hides_vdso() {
                Some(parameter) => found.because_of("the kernel was started without one", "/proc/cmdline", parameter),
                None if facts.lacks_compat_vdso() => {
                    let says = "this kernel has no compat vDSO, the one for 32-bit programs (CONFIG_COMPAT_VDSO)";
                    found.because_of(says, &maps, "no [vdso]")
                }
                None => found,
            });
        }
        Some(VdsoKind::Fastpath) => findings.push(of_served(process, facts, &maps)),
        Some(VdsoKind::Other) => {
            let says = "the process has a vDSO that is neither the kernel's nor fastpath's".to_owned();
            findings.push(
                finding("process-other-vdso", Severity::Unknown, says).proof(&maps, "AT_SYSINFO_EHDR points elsewhere"),
            );
        }
        Some(VdsoKind::Kernel) => {}
    }
    if process.asks_for_vdso == Some(false) && process.vdso.is_some() {
        let says = format!(
            "the program is static and never asks for a vDSO: when it reads a clock, it makes the system call itself{}",
            call_cost(facts)
        );
        let exe = format!("/proc/{}/exe", process.pid);
        findings
            .push(finding("process-bypasses-vdso", Severity::Slow, says).proof(&exe, "no vDSO function's name in it"));
    }
    findings.extend(process.own_calls.iter().map(|own| of_own_calls(own, process, facts)));
    findings.extend(of_other_isa(process));
    findings.extend(reads::find(process, facts));
    findings.extend(counter_reads::of_process(process, facts));
    if process
        .time_namespace
        .as_ref()
        .is_some_and(|namespace| namespace.is_ours == Some(false))
    {
        let says = "the process is in another time namespace than this one".to_owned();
        let ns = format!("/proc/{}/ns/time", process.pid);
        findings
            .push(finding("process-other-time-namespace", Severity::Note, says).proof(&ns, "differs from /proc/self"));
    }
    findings
}

/// Reports calls in the process's own code. If a library makes such calls and also uses the vDSO, the finding is only a
/// note: the library may be mapped for functions that read no clock.
fn of_own_calls(own: &OwnCalls, process: &Process, facts: &Facts) -> Finding {
    let exe = format!("/proc/{}/exe", process.pid);
    let (source, whose) = if own.is_program {
        (exe.as_str(), "the program's own code".to_owned())
    } else {
        (own.file.as_str(), format!("code of {}", own.file))
    };
    let calls = own.calls.join(", ");
    let places = if own.places == 1 {
        "one place".to_owned()
    } else {
        format!("{} places", own.places)
    };
    let shows = format!("`fastpath audit`: {}, {calls} in {places}", own.rule);
    if own.rescued >= own.places {
        let says = format!("{whose} makes the system call itself ({calls}), and fastpath answers it in {places}");
        return finding("process-is-rescued", Severity::Note, says).proof(source, &shows);
    }
    let (id, says) = match own.rule.as_ref() {
        VSYSCALL => {
            let says = format!("{whose} calls the vsyscall page ({calls}): each call traps into the kernel");
            ("process-calls-vsyscall", says)
        }
        _ => {
            let says = format!(
                "{whose} makes the system call itself ({calls}) instead of calling libc: such a read never takes the vDSO{}",
                call_cost(facts)
            );
            ("process-makes-own-calls", says)
        }
    };
    let says = match own.rescuable {
        Some(count) if count > 0 => format!(
            "{says}; `fastpath attach --rescue {}` redirects {count} of {}",
            process.pid, own.places
        ),
        _ => says,
    };
    if own.is_program || own.rule != OWN_SYSTEM_CALL {
        return finding(id, Severity::Slow, says).proof(source, &shows);
    }
    let says = format!("{says}; `fastpath trace -p {}` counts how often it does", process.pid);
    finding(id, Severity::Note, says).proof(source, &shows)
}

/// Names of rules of `fastpath audit`.
const OWN_SYSTEM_CALL: &str = "own-system-call";
const VSYSCALL: &str = "vsyscall-page";

/// Reports that the process is of another ISA, whose programs have a vDSO of their own.
fn of_other_isa(process: &Process) -> Option<Finding> {
    let isa = process.isa.as_deref().filter(|_| process.is_of_other_isa())?;
    let says = format!("the process is an {isa} program; the cost of its calls is not measured");
    Some(finding("process-other-isa", Severity::Note, says))
}

fn call_cost(facts: &Facts) -> String {
    let monotonic = facts.clocks.iter().find(|report| report.clock == Clock::MONOTONIC);
    let ns = monotonic.and_then(|report| report.measured.syscall_ns);
    ns.map_or(String::new(), |ns| format!(", {} for CLOCK_MONOTONIC", nanoseconds(ns)))
}

fn of_served(process: &Process, facts: &Facts, maps: &str) -> Finding {
    let page = process.page.clone().unwrap_or_default();
    let mapped = |found: Finding| found.proof(maps, fastpath_page::MAPPED_NAME);
    // The kernel answers the clocks that fastpath does not: through its vDSO, as slowly as here, or by system call.
    let is_without_vdso = page.is_without_vdso == Some(true);
    let severity = if slow_counter_clocks(facts).is_empty() && !is_without_vdso {
        Severity::Note
    } else {
        Severity::Slow
    };
    let behind = if is_without_vdso {
        format!(
            ", and it was started without the kernel's vDSO: every clock read is a system call{}",
            call_cost(facts)
        )
    } else {
        String::new()
    };
    match (&page.withdrawn, &page.serves) {
        (Some(why), _) => {
            let says = format!("fastpath is in the process, but has withdrawn its clocks ({why}){behind}");
            mapped(finding("process-page-withdrawn", severity, says))
        }
        (None, Some(serves)) if serves.is_empty() && page.clocks.as_ref().is_some_and(Vec::is_empty) => {
            let says = format!("fastpath serves no clock in the process{behind}");
            mapped(finding("process-not-served", severity, says))
                .because("`run --without-vdso` serves only the clocks that `--clocks` lists")
        }
        (None, Some(serves)) if serves.is_empty() => {
            let says = if is_without_vdso {
                format!("fastpath is in the process, but its page is not fresh{behind}")
            } else {
                "fastpath is in the process, but its page is not fresh: reads go to the kernel's vDSO".to_owned()
            };
            mapped(finding("process-page-stale", severity, says)).because("the publisher is gone, stopped or starved")
        }
        (None, Some(serves)) => {
            let says = format!("fastpath serves {} in the process", serves.join(", "));
            let found = mapped(finding("process-served", Severity::Note, says));
            match page.experience {
                Some(experience) if experience.allows_non_invariant => found.because(
                    "it was started with --trust-counter: the CPU does not guarantee the counter's rate, so it is checked more \
                     often (docs/counter.md)",
                ),
                _ => found,
            }
        }
        (None, None) => {
            let says = "fastpath is in the process; whether its page is fresh cannot be seen".to_owned();
            mapped(finding("process-page-unseen", Severity::Unknown, says))
        }
    }
}

pub(super) fn is_about_process(finding: &Finding) -> bool {
    finding.id.starts_with("process-")
}
