//! Findings about clocks and functions that cost more than necessary.

use super::super::causes::{self, DIRECT_SYNC};
use super::super::facts::{Facts, HIDES_VDSO, VdsoKind};
use super::super::messages::CauseKind;
use super::super::root::plain;
use super::super::words::{clock_names, costs, is_are, nanoseconds, take};
use super::finding::{Finding, Severity, finding};
use fastpath_measure::ClockMonotonicity;
use fastpath_measure::clocks::{Clock, ClockKind};
use fastpath_measure::path::Path;
use fastpath_measure::probe::{ClockReport, MeasuredCall};
use fastpath_measure::verdict::CallVerdict;

/// Returns the slow clocks that a vDSO could read from the counter.
pub(crate) fn slow_counter_clocks(facts: &Facts) -> Vec<&ClockReport> {
    let slow = |report: &&ClockReport| {
        report.clock.kind() == ClockKind::Counter && report.measured.verdict == CallVerdict::Slow
    };
    facts.clocks.iter().filter(slow).collect()
}

fn slow_others(facts: &Facts) -> Vec<(&str, &MeasuredCall)> {
    let is_coarse = |report: &&ClockReport| report.clock.kind() == ClockKind::Coarse;
    let coarse = facts
        .clocks
        .iter()
        .filter(is_coarse)
        .map(|r| (r.clock.name(), &r.measured));
    let functions = facts.functions.iter().map(|r| (r.function.as_ref(), &r.measured));
    coarse
        .chain(functions)
        .filter(|(_, measured)| measured.verdict == CallVerdict::Slow)
        .collect()
}

fn is_slow_by_call(facts: &Facts, clock: Clock) -> bool {
    slow_counter_clocks(facts)
        .iter()
        .any(|report| report.clock == clock && report.measured.path == Path::Syscall)
}

/// Returns whether MONOTONIC and REALTIME are system calls although there is a vDSO: the kernel does not read the
/// counter.
pub(crate) fn counter_is_unused(facts: &Facts) -> bool {
    facts.here.vdso != Some(VdsoKind::None)
        && is_slow_by_call(facts, Clock::MONOTONIC)
        && is_slow_by_call(facts, Clock::REALTIME)
}

pub(super) fn slow(facts: &Facts) -> Vec<Finding> {
    let slow = slow_counter_clocks(facts);
    let mut findings = Vec::new();
    let mut others = slow_others(facts);
    if facts.here.vdso == Some(VdsoKind::None) && !slow.is_empty() {
        findings.push(no_vdso(facts, &slow));
        // Without a vDSO, all functions are system calls for the same reason.
        others.clear();
    } else if counter_is_unused(facts) {
        findings.push(counter_unused(facts, &slow));
        others.retain(|(name, _)| *name != "gettimeofday");
    } else {
        let (calls, expensive): (Vec<_>, Vec<_>) = slow.into_iter().partition(|r| r.measured.path == Path::Syscall);
        if !calls.is_empty() {
            let names = clock_names(&calls);
            let says = format!(
                "{names} {} not in this kernel's vDSO: {} a call",
                is_are(calls.len()),
                costs(&calls)
            );
            let kernel = format!("Linux {}", facts.kernel.release);
            findings.push(finding("clock-not-in-vdso", Severity::Slow, says).proof("uname -r", &kernel));
        }
        if !expensive.is_empty() {
            let says = format!(
                "{} cost {} a call although no system call is made",
                clock_names(&expensive),
                costs(&expensive)
            );
            let counter = facts
                .counter
                .read_ns
                .map_or("not readable".to_owned(), |ns| format!("{ns:.1} ns a read"));
            findings.push(finding("vdso-expensive", Severity::Slow, says).proof("measured: the counter", &counter));
        }
    }
    if !others.is_empty() {
        let listed: Vec<String> = others
            .iter()
            .map(|(name, measured)| format!("{name} {}", measured.ns.map_or("-".into(), nanoseconds)))
            .collect();
        let names: Vec<&str> = others.iter().map(|(name, _)| *name).collect();
        findings.push(slow_functions(facts, &names, &listed.join(", ")));
    }
    findings
}

/// Returns the clocks that cannot be set but go backward.
pub(super) fn backward(facts: &Facts) -> Vec<Finding> {
    let clocks = facts.monotonicity.iter().flat_map(|seen| &seen.clocks);
    let is_served = facts.here.vdso == Some(VdsoKind::Fastpath);
    let found = |clock: &ClockMonotonicity| {
        let faults: Vec<_> = clock.faults().collect();
        let worst = faults.iter().map(|(_, steps)| steps.worst_ns).max()?;
        let says = format!(
            "{} goes backward, by up to {}, as {} reads it",
            clock.clock.name(),
            nanoseconds(worst as f64),
            if is_served { "fastpath" } else { "the kernel" }
        );
        let mut found = finding("clock-backward", Severity::Wrong, says);
        for (way, steps) in faults {
            let shows = format!(
                "{} of {} reads, by up to {}",
                steps.backward,
                steps.compared,
                nanoseconds(steps.worst_ns as f64)
            );
            found = found.proof(&format!("measured {way}"), &shows);
        }
        Some(found)
    };
    clocks.filter_map(found).collect()
}

fn slow_functions(facts: &Facts, names: &[&str], listed: &str) -> Finding {
    if facts.here.vdso == Some(VdsoKind::Fastpath) {
        let says = format!("not answered by fastpath, but by the kernel: {listed}");
        return finding("function-not-served", Severity::Slow, says)
            .because("fastpath passes these on to the kernel's vDSO, and this process was started without one");
    }
    if let Some(name) = facts.machine.stand_in.as_deref()
        && slow_counter_clocks(facts).is_empty()
    {
        let says = format!("not answered by the vDSO of {name}, which has no such function: {listed}");
        return finding("function-not-in-vdso", Severity::Note, says)
            .because("its clocks are fast, and few programs call these often: nothing needs fixing");
    }
    let says = format!("not answered by this kernel's vDSO: {listed}");
    let mut found = finding("function-not-in-vdso", Severity::Slow, says);
    // Other functions that it lacks (getrandom, which reads no clock) do not explain why these are slow.
    let is_named = |symbol: &str| {
        let plain = symbol.trim_start_matches("__vdso_").trim_start_matches("__kernel_");
        names.contains(&plain)
    };
    for (name, since) in facts.vdso.lacks.iter().filter(|(symbol, _)| is_named(symbol)) {
        found = found.because(&format!("this vDSO has no {name}, which Linux has had since {since}"));
    }
    found
}

fn no_vdso(facts: &Facts, slow: &[&ClockReport]) -> Finding {
    let says = format!(
        "programs started like this one have no vDSO: every clock read is a system call, {}",
        costs(slow)
    );
    let found = finding("no-vdso", Severity::Slow, says).proof("auxiliary vector", "no AT_SYSINFO_EHDR");
    let unreadable = |found: Finding| match facts.clocksource.unreadable() {
        Some(current) => found.because_of(
            "and a vDSO alone would not help: this kernel runs on a clocksource that none can read",
            "/sys/devices/system/clocksource",
            current,
        ),
        None => found,
    };
    if facts.kernel.has_parameter(HIDES_VDSO) {
        let found = unreadable(found.because_of("the kernel was started without one", "/proc/cmdline", "vdso=0"));
        return match facts.clocksource.unreadable() {
            Some(_) => because_of_causes(found, facts),
            None => found,
        };
    }
    let found = unreadable(found);
    match facts.here.has_kernel_vdso {
        Some(true) => found.because_of(
            "the kernel's vDSO is mapped, but was hidden from this process at its start",
            "/proc/self/maps",
            "[vdso] is mapped",
        ),
        Some(false) => found.because_of(
            "it was unmapped at this process's start (by a sandbox, a tracer, `fastpath run --without-vdso`), or this is not the \
             Linux kernel but a program that acts as one",
            "/proc/self/maps",
            "no [vdso]",
        ),
        None => found,
    }
}

/// Adds the reasons why the kernel does not read the counter.
fn because_of_causes(found: Finding, facts: &Facts) -> Finding {
    let causes = causes::from_facts(facts);
    let differ = causes.iter().any(|cause| cause.kind == CauseKind::Unsynchronized);
    let found = causes.into_iter().fold(found, |found, cause| {
        found.because_of(&cause.says, &cause.proof.source, &cause.proof.shows)
    });
    match differ && facts.kernel.has_parameter(DIRECT_SYNC) {
        true => found.because_of(
            "this kernel does not know the parameter that would make them agree, or it did not help",
            "/proc/cmdline",
            DIRECT_SYNC,
        ),
        false => found,
    }
}

fn counter_unused(facts: &Facts, slow: &[&ClockReport]) -> Finding {
    let current = facts.clocksource.current.as_deref();
    let name = current.map_or("a clocksource that could not be seen".to_owned(), |name| {
        format!("clocksource {name}")
    });
    let says = format!(
        "the kernel runs on {name}, which its vDSO cannot read: {} {} a system call, {}",
        clock_names(slow),
        if slow.len() == 1 { "costs" } else { "each cost" },
        costs(slow)
    );
    let mut found = finding("counter-unused", Severity::Slow, says);
    if let Some(current) = current {
        found = found.proof("/sys/devices/system/clocksource", current);
    }
    found = because_of_causes(found, facts);
    if facts.clocksource.is_too_coarse() {
        found = found.because_of(
            "the kernel's clocks advance with its timer ticks, by milliseconds, and fastpath cannot follow them (`fastpath run` refuses)",
            "/sys/devices/system/clocksource",
            current.unwrap_or_default(),
        );
    }
    if found.because.is_empty() {
        found = found.because(&reason_is_unknown(facts));
    }
    found
}

fn reason_is_unknown(facts: &Facts) -> String {
    let sources = [
        ("the kernel's log", facts.log.is_some()),
        ("its command line", facts.kernel.parameters.is_some()),
        ("the CPU's flags", facts.counter.flags.is_some()),
        ("its list of clocksources", facts.clocksource.current.is_some()),
    ];
    let named = |was_read| {
        let named = sources
            .iter()
            .filter(|(_, read)| *read == was_read)
            .map(|(name, _)| *name);
        named.collect::<Vec<_>>().join(", ")
    };
    let (read, unread) = (named(true), named(false));
    if !unread.is_empty() {
        let others = if read.is_empty() {
            String::new()
        } else {
            format!("; not in {read}")
        };
        return format!("the reason is unknown: {unread} cannot be read here{others}");
    }
    match &facts.log {
        Some(log) if !log.is_complete => {
            "the reason is unknown: the kernel's log no longer goes back to the boot".into()
        }
        _ => "the reason is unknown: neither the log, the command line nor the CPU's flags contain it".into(),
    }
}

pub(super) fn unknown(facts: &Facts) -> Option<Finding> {
    let unknown = |r: &&ClockReport| r.clock.kind() == ClockKind::Counter && r.measured.verdict == CallVerdict::Unknown;
    let unknown: Vec<&ClockReport> = facts.clocks.iter().filter(unknown).collect();
    let first = unknown.first()?;
    let says = format!(
        "the path that {} {} could not be established",
        clock_names(&unknown),
        take(unknown.len())
    );
    let found = finding("path-unknown", Severity::Unknown, says);
    Some(match &first.measured.why {
        Some(why) => found.because(&plain(why)),
        None if facts.here.seccomp.is_some_and(|mode| mode != 0) => {
            found.because("the seccomp filter of this process forbids the system calls that would show it")
        }
        None => found,
    })
}
