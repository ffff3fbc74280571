//! The kernel and what it runs on.

use super::super::causes;
use super::super::facts::{Facts, VdsoKind};
use super::super::findings;
use super::super::words::nanoseconds;
use super::{Line, Mark, if_it_matters, line};
use fastpath_measure::vsyscall::Mode;

const KERNEL: &str = "kernel";

pub(super) fn of(facts: &Facts) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut add = |what: &str, mark, shows: String, source: &str| lines.push(line(KERNEL, what, mark, shows, source));
    add(
        "version",
        Mark::Info,
        format!("Linux {} {}", facts.kernel.release, facts.kernel.machine),
        "uname",
    );
    let clocksource = &facts.clocksource;
    let (mark, shows) = match &clocksource.current {
        None => (Mark::Unknown, "not to be seen".to_owned()),
        Some(current) => {
            let mark = if causes::is_counter(current) {
                Mark::Ok
            } else {
                Mark::Info
            };
            let mark = if findings::counter_is_unused(facts) {
                Mark::Bad
            } else {
                mark
            };
            (
                mark,
                format!("{current} (available: {})", clocksource.available.join(" ")),
            )
        }
    };
    add("clocksource", mark, shows, "/sys/devices/system/clocksource");
    let (mark, shows) = match &facts.kernel.parameters {
        None => (Mark::Unknown, "not to be seen".to_owned()),
        Some(parameters) if parameters.is_empty() => (Mark::Ok, "nothing about clocks".to_owned()),
        Some(parameters) => (Mark::Info, parameters.join(" ")),
    };
    add("command line", mark, shows, "/proc/cmdline");
    match &facts.log {
        None => add("log", Mark::Unknown, "cannot be read".to_owned(), "/dev/kmsg"),
        Some(log) => {
            let telling: Vec<&String> = log
                .lines
                .iter()
                .filter(|line| causes::explain(line).is_some())
                .collect();
            for line in &telling {
                add("log", if_it_matters(facts), (*line).clone(), &log.source);
            }
            let switched = log
                .lines
                .iter()
                .rev()
                .find(|line| line.contains("Switched to clocksource"));
            match switched {
                Some(line) => add("log", Mark::Info, line.clone(), &log.source),
                None if telling.is_empty() => {
                    let reach = if log.is_complete {
                        ""
                    } else {
                        "; it no longer reaches back to the boot"
                    };
                    add(
                        "log",
                        Mark::Info,
                        format!("nothing against the counter{reach}"),
                        &log.source,
                    );
                }
                None => {}
            }
        }
    }
    add(
        "machine",
        Mark::Info,
        match (&facts.machine.hypervisor, &facts.machine.product) {
            _ if facts.machine.stand_in.is_some() => {
                format!(
                    "{}, a program that acts as a kernel",
                    facts.machine.stand_in.unwrap_or_default()
                )
            }
            (Some(hypervisor), Some(product)) => format!("guest of {hypervisor} ({product})"),
            (Some(hypervisor), None) => format!("guest of {hypervisor}"),
            (None, Some(product)) => product.clone(),
            (None, None) => "no hypervisor says that it is one".to_owned(),
        },
        "CPUID, DMI, /sys/hypervisor",
    );
    add(
        "vDSO",
        vdso_mark(facts),
        vdso_shows(facts),
        "auxiliary vector, its symbols",
    );
    if let Some(vsyscall) = &facts.vsyscall {
        let price = vsyscall.entries.iter().find_map(|entry| entry.ns);
        let price = price
            .map(|ns| format!(", {} a call", nanoseconds(ns)))
            .unwrap_or_default();
        let shows = match vsyscall.mode {
            Mode::None if facts.here.has_kernel_vdso.is_none() => "not to be seen".to_owned(),
            Mode::None => "not mapped: programs that still jump to it die".to_owned(),
            Mode::Xonly => format!("trapped (xonly){price}; only programs from before 2011 jump to it"),
            Mode::Emulate => format!("trapped (emulate){price}; only programs from before 2011 jump to it"),
        };
        add("vsyscall", Mark::Info, shows, "/proc/self/maps, measured");
    }
    let taxes: Vec<String> = facts
        .mitigations
        .iter()
        .filter(|m| m.taxes_system_calls)
        .map(|m| m.name.clone())
        .collect();
    if let Some(ns) = facts.syscall_ns {
        let paid = match (facts.mitigations.is_empty(), taxes.is_empty()) {
            (true, _) => "mitigations not to be seen".to_owned(),
            (false, true) => "no mitigation adds to it".to_owned(),
            (false, false) => format!("mitigations that add to it: {}", taxes.join(", ")),
        };
        add(
            "system call",
            Mark::Info,
            format!("{} each; {paid}", nanoseconds(ns)),
            "measured, /sys/…/vulnerabilities",
        );
    }
    lines
}

fn vdso_mark(facts: &Facts) -> Mark {
    match facts.here.vdso {
        Some(VdsoKind::None) => Mark::Bad,
        Some(_) if facts.vdso.is_mapped => Mark::Ok,
        Some(_) => Mark::Info,
        None => Mark::Unknown,
    }
}

fn vdso_shows(facts: &Facts) -> String {
    if facts.here.has_kernel_vdso.is_none() {
        return "not to be seen".to_owned();
    }
    if !facts.vdso.is_mapped {
        return "the kernel's is not mapped here".to_owned();
    }
    let lacks: Vec<String> = facts
        .vdso
        .lacks
        .iter()
        .map(|(name, since)| format!("{name} (Linux {since})"))
        .collect();
    match lacks.as_slice() {
        [] => "the kernel's, complete".to_owned(),
        _ => format!("the kernel's, without {}", lacks.join(", ")),
    }
}
