//! Facts about this process, and about the one that was asked about.

use super::super::facts::{Process, VdsoKind};
use super::super::findings;
use super::line::{Add, Line, Mark, line};
use fastpath_evidence::Residuals;

pub(super) const PROCESS: &str = "this process";

pub(super) const ASKED: &str = "that process";

pub(super) fn from_facts(section: &'static str, process: &Process) -> Vec<Line> {
    let file = |name: &str| match section {
        PROCESS => format!("/proc/self/{name}"),
        _ => format!("/proc/{}/{name}", process.pid),
    };
    let mut lines = Vec::new();
    let mut add = |what: &str, mark, shows: String, source: &str| lines.push(line(section, what, mark, shows, source));
    if section == ASKED {
        let name = process.name.as_deref().unwrap_or_default();
        let program = process.program.as_ref();
        let program = program.map(|path| format!(", {path}")).unwrap_or_default();
        let shows = format!("{} {name}{program}", process.pid);
        add("process", Mark::Info, shows, &file("status"));
    }
    of_program(process, &file, &mut add);
    of_vdso(process, &file, &mut add);
    of_restrictions(process, &file, &mut add);
    for reads in &process.counter_reads {
        let checked = if reads.is_checked {
            ", which test it all the time"
        } else {
            ""
        };
        let executed = match (&process.reads, reads.samples()) {
            (None, _) => String::new(),
            (Some(all), samples) => format!("; {samples} of {} samples at one", all.samples),
        };
        let shows = format!("{}{checked}{executed}", findings::counter_places(reads));
        add("counter reads", Mark::Info, shows, &reads.file);
    }
    lines
}

fn of_program(process: &Process, file: &dyn Fn(&str) -> String, add: &mut Add<'_>) {
    if let Some(is_static) = process.is_static {
        let linked = if is_static { "static" } else { "dynamic" };
        let isa = process.isa.as_deref().unwrap_or_default();
        let (mark, asks) = match process.asks_for_vdso {
            Some(false) => (Mark::Bad, ", never asks for a vDSO"),
            Some(true) => (Mark::Info, ", asks for a vDSO"),
            None => (Mark::Info, ""),
        };
        let bits = process.word_bits.unwrap_or(0);
        add(
            "program",
            mark,
            format!("{bits}-bit {isa}, {linked}{asks}"),
            &file("exe"),
        );
    }
    if let Some(libc) = &process.libc {
        let version = libc.version.as_deref();
        let version = version.unwrap_or("(the version is not in a static program)");
        let source = libc.path.clone().unwrap_or_else(|| file("exe"));
        add("libc", Mark::Info, format!("{} {version}", libc.name), &source);
    }
    if let Some(go) = &process.go {
        add("Go", Mark::Info, format!("{go}; calls the vDSO itself"), &file("exe"));
    }
    if let Some(java) = &process.java {
        let shows = format!("{java}; reads clocks by libc");
        add("Java", Mark::Info, shows, "the JVM's file `release`");
    }
}

fn of_vdso(process: &Process, file: &dyn Fn(&str) -> String, add: &mut Add<'_>) {
    let vdso = match process.vdso {
        Some(VdsoKind::None) => Some((Mark::Bad, "none".to_owned())),
        Some(VdsoKind::Kernel) => Some((Mark::Ok, "the kernel's".to_owned())),
        Some(VdsoKind::Fastpath) => Some((Mark::Ok, page_shows(process))),
        Some(VdsoKind::Other) => Some((Mark::Unknown, "neither the kernel's nor fastpath's".to_owned())),
        // A process without memory has no vDSO either.
        None if process.is_kernel_thread || matches!(process.state, Some('Z' | 'X')) => None,
        None => Some((Mark::Unknown, "cannot be seen".to_owned())),
    };
    if let Some((mark, shows)) = vdso {
        add("vDSO", mark, shows, &file("maps"));
    }
    let page = process
        .page
        .as_ref()
        .filter(|_| process.vdso == Some(VdsoKind::Fastpath));
    if let Some(experience) = page.and_then(|page| page.experience.as_ref()) {
        let (mark, shows) = experience_shows(experience);
        add("counter there", mark, shows, &file("mem"));
    }
    if process.has_kernel_vdso == Some(true) && process.has_vvar == Some(false) {
        add("vvar", Mark::Info, "no mapping of this name".to_owned(), &file("maps"));
    }
}

fn of_restrictions(process: &Process, file: &dyn Fn(&str) -> String, add: &mut Add<'_>) {
    if let Some(namespace) = &process.time_namespace {
        let offsets = namespace.offsets.iter();
        let offsets: Vec<String> = offsets.map(|o| format!("{} {} s", o.clock, o.sec)).collect();
        let shows = match (namespace.is_ours, offsets.as_slice()) {
            (Some(false), []) => "another one than this process's".to_owned(),
            (_, []) => "no offsets".to_owned(),
            (_, offsets) => offsets.join(", "),
        };
        add("time namespace", Mark::Info, shows, &file("ns/time"));
    }
    if let Some(mode) = process.seccomp {
        let shows = match (mode, process.seccomp_filters) {
            (0, _) => "no filter".to_owned(),
            (1, _) => "strict mode".to_owned(),
            (_, Some(1)) => "1 filter in force".to_owned(),
            (_, Some(count)) => format!("{count} filters in force"),
            (_, None) => "filters in force".to_owned(),
        };
        add("seccomp", Mark::Info, shows, &file("status"));
    }
    if process.no_new_privs == Some(true) {
        add("no_new_privs", Mark::Info, "set".to_owned(), &file("status"));
    }
    if let Some(tracer) = process.tracer_pid.filter(|pid| *pid != 0) {
        let shows =
            format!("by process {tracer}: `fastpath run` does not change a program that is traced at its start");
        add("traced", Mark::Info, shows, &file("status"));
    }
}

/// Returns the results of the publisher's checks of the counter, with the last withdrawals.
fn experience_shows(experience: &Residuals) -> (Mark, String) {
    let mut shows = match experience.warp_within_cycles {
        Some(cycles) => format!(
            "CPUs compared {} times, no two apart by more than {cycles} cycles",
            experience.warp_tests
        ),
        None => format!("CPUs compared {} times", experience.warp_tests),
    };
    if experience.allows_non_invariant {
        shows += "; believed by --trust-counter only";
    }
    if experience.withdrawals == 0 {
        return (Mark::Ok, shows + "; never withdrawn");
    }
    shows += &format!("; withdrawn {} times", experience.withdrawals);
    for withdrawal in &experience.history {
        let seconds = withdrawal.boottime_ns as f64 / 1e9;
        shows += &format!("; {seconds:.1} s after boot: {}", withdrawal.reason);
        if let Some(ns) = withdrawal.ahead_ns {
            shows += &format!(" (off by {ns} ns)");
        }
    }
    (Mark::Info, shows)
}

fn page_shows(process: &Process) -> String {
    let page = process.page.clone().unwrap_or_default();
    let serves = match (&page.withdrawn, &page.serves) {
        (Some(why), _) => format!(", withdrawn: {why}"),
        (None, Some(serves)) if serves.is_empty() && page.clocks.as_ref().is_some_and(Vec::is_empty) => {
            ", it serves no clock here".to_owned()
        }
        (None, Some(serves)) if serves.is_empty() => ", its page is not fresh".to_owned(),
        (None, Some(serves)) => format!(", fresh: {}", serves.join(" ")),
        (None, None) => ", its page cannot be read".to_owned(),
    };
    let published = page
        .refreshes
        .map(|count| format!("; {count} refreshes"))
        .unwrap_or_default();
    let by = page
        .publisher_pid
        .map(|pid| format!(" by process {pid}"))
        .unwrap_or_default();
    let residual = page
        .residual_ns
        .map(|ns| format!(", last error {ns} ns"))
        .unwrap_or_default();
    format!("fastpath's{serves}{published}{by}{residual}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastpath_evidence::Withdrawal;

    #[test]
    fn every_withdrawal_is_shown_with_its_reason() {
        let mut experience = Residuals {
            warp_tests: 12,
            warp_within_cycles: Some(240),
            allows_non_invariant: true,
            ..Residuals::default()
        };
        let (mark, shows) = experience_shows(&experience);
        assert!(
            mark == Mark::Ok && shows.contains("240 cycles") && shows.contains("never withdrawn"),
            "{shows}"
        );
        assert!(shows.contains("--trust-counter"), "{shows}");
        experience.withdrawals = 9;
        experience.history = vec![Withdrawal {
            boottime_ns: 12_340_000_000,
            reason: "the counter stopped".into(),
            ahead_ns: Some(-70),
        }];
        let (mark, shows) = experience_shows(&experience);
        assert!(mark == Mark::Info && shows.contains("withdrawn 9 times"), "{shows}");
        assert!(
            shows.contains("12.3 s after boot: the counter stopped (off by -70 ns)"),
            "{shows}"
        );
    }
}
