//! Facts about the kernel and the machine that it runs on.

use super::super::causes;
use super::super::facts::{Facts, VdsoKind};
use super::super::findings;
use super::super::messages;
use super::super::words::nanoseconds;
use super::line::{Add, Line, Mark, if_it_matters, line};
use fastpath_measure::vsyscall::Mode;

const KERNEL: &str = "kernel";

pub(super) fn from_facts(facts: &Facts) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut add = |what: &str, mark, shows: String, source: &str| lines.push(line(KERNEL, what, mark, shows, source));
    let version = format!("Linux {} {}", facts.kernel.release, facts.kernel.machine);
    add("version", Mark::Info, version, "uname");
    let (mark, shows) = clocksource(facts);
    add("clocksource", mark, shows, "/sys/devices/system/clocksource");
    let (mark, shows) = match &facts.kernel.parameters {
        None => (Mark::Unknown, "cannot be seen".to_owned()),
        Some(parameters) if parameters.is_empty() => (Mark::Ok, "nothing about clocks".to_owned()),
        Some(parameters) => (Mark::Info, parameters.join(" ")),
    };
    add("command line", mark, shows, "/proc/cmdline");
    of_log(facts, &mut add);
    add("machine", Mark::Info, machine(facts), "CPUID, DMI, /sys/hypervisor");
    let source = "auxiliary vector, its symbols";
    add("vDSO", vdso_mark(facts), vdso_shows(facts), source);
    of_calls(facts, &mut add);
    lines
}

fn clocksource(facts: &Facts) -> (Mark, String) {
    let Some(current) = &facts.clocksource.current else {
        return (Mark::Unknown, "cannot be seen".to_owned());
    };
    let mark = if findings::counter_is_unused(facts) {
        Mark::Bad
    } else if causes::is_counter(current) {
        Mark::Ok
    } else {
        Mark::Info
    };
    let available = facts.clocksource.available.join(" ");
    (mark, format!("{current} (available: {available})"))
}

fn of_log(facts: &Facts, add: &mut Add<'_>) {
    let Some(log) = &facts.log else {
        return add("log", Mark::Unknown, "cannot be read".to_owned(), "/dev/kmsg");
    };
    let telling = || log.lines.iter().filter(|line| messages::explain(line).is_some());
    for line in telling() {
        add("log", if_it_matters(facts), line.clone(), &log.source);
    }
    let is_switch = |line: &&String| line.contains("Switched to clocksource");
    match log.lines.iter().rev().find(is_switch) {
        Some(line) => add("log", Mark::Info, line.clone(), &log.source),
        None if telling().next().is_none() => {
            let reach = if log.is_complete {
                ""
            } else {
                "; it no longer goes back to the boot"
            };
            let shows = format!("nothing against the counter{reach}");
            add("log", Mark::Info, shows, &log.source);
        }
        None => {}
    }
}

fn machine(facts: &Facts) -> String {
    let machine = &facts.machine;
    match (&machine.stand_in, &machine.hypervisor, &machine.product) {
        (Some(stand_in), ..) => format!("{stand_in}, which acts as a kernel on top of another one"),
        (_, Some(hypervisor), Some(product)) => format!("guest of {hypervisor} ({product})"),
        (_, Some(hypervisor), None) => format!("guest of {hypervisor}"),
        (_, None, Some(product)) => product.clone(),
        (_, None, None) => "no hypervisor identifies itself".to_owned(),
    }
}

fn of_calls(facts: &Facts, add: &mut Add<'_>) {
    if let Some(vsyscall) = &facts.vsyscall {
        let cost = vsyscall.entries.iter().find_map(|entry| entry.ns);
        let cost = cost.map_or(String::new(), |ns| format!(", {} a call", nanoseconds(ns)));
        let shows = match vsyscall.mode {
            Mode::None if facts.here.has_kernel_vdso.is_none() => "cannot be seen".to_owned(),
            Mode::None => "not mapped: programs that still jump to it die".to_owned(),
            Mode::Xonly => format!("trapped (xonly){cost}; only programs from before 2011 jump to it"),
            Mode::Emulate => format!("trapped (emulate){cost}; only programs from before 2011 jump to it"),
        };
        add("vsyscall", Mark::Info, shows, "/proc/self/maps, measured");
    }
    if let Some(ns) = facts.syscall_ns {
        let taxes = facts.mitigations.iter().filter(|m| m.taxes_system_calls);
        let taxes: Vec<&str> = taxes.map(|m| m.name.as_str()).collect();
        let paid = match (facts.mitigations.is_empty(), taxes.is_empty()) {
            (true, _) => "mitigations cannot be seen".to_owned(),
            (false, true) => "no mitigation adds to it".to_owned(),
            (false, false) => format!("mitigations that add to it: {}", taxes.join(", ")),
        };
        let shows = format!("{} each; {paid}", nanoseconds(ns));
        add("system call", Mark::Info, shows, "measured, /sys/…/vulnerabilities");
    }
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
        return "cannot be seen".to_owned();
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
