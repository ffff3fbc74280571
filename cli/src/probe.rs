//! `fastpath probe`: the path that every clock takes here.

use comfy_table::{Cell, CellAlignment};
use fastpath_measure::{CallVerdict, Clock, MeasuredCall, Mode, Path, Probe};
use fastpath_publish::evidence::{self, Distrust, Trust};

use crate::args;
use crate::document;
use crate::output::{self, nanoseconds};

/// Runs the command; returns its exit status.
pub fn run(options: &args::Probe) -> i32 {
    let probe = Probe::run();
    if options.json {
        document::print("probe", &probe)
    } else {
        output::print(text(&probe))
    }
}

fn text(probe: &Probe) -> String {
    let mut table = output::table(["clock", "path", "ns", "system call ns", "verdict"]);
    for report in &probe.clocks {
        table.add_row(row(report.clock.name(), &report.measured));
    }
    let mut functions = output::table(["function", "path", "ns", "system call ns", "verdict"]);
    for report in &probe.functions {
        functions.add_row(row(&report.function, &report.measured));
    }
    let mut text = output::wrapped("", &host(probe)) + &format!("\n{table}\n\n{functions}\n");
    text += &vsyscall(probe);
    let slow = probe.slow();
    text += &match slow.as_slice() {
        [] => "\nEvery clock that can be fast is fast.\n".to_owned(),
        slow => {
            let is_fastpath = probe.host.vdso.as_ref().is_some_and(|vdso| vdso.is_fastpath);
            let promise = evidence::is_promising(Trust::Invariant).map(drop);
            output::wrapped(
                "\n",
                &format!("Slow: {}. {}", slow.join(", "), hint(slow, is_fastpath, promise)),
            )
        }
    };
    text
}

/// Returns advice for the clocks and functions that are slow: no more than `fastpath run` can do here.
fn hint(slow: &[&str], is_fastpath: bool, promise: Result<(), Distrust>) -> String {
    let is_served = |name: &&&str| **name == "gettimeofday" || Clock::SERVED.iter().any(|clock| clock.name() == **name);
    let (served, others): (Vec<&str>, Vec<&str>) = slow.iter().partition(|name| is_served(name));
    if is_fastpath {
        return "This program is on fastpath already. The kernel answers the calls that the page does not (`fastpath doctor` gives the reason).".to_owned();
    }
    if served.is_empty() {
        return "`fastpath run` cannot change that; `fastpath doctor` gives the reason.".to_owned();
    }
    let run = match promise {
        Ok(()) => "`fastpath run -- CMD` starts a program without that cost".to_owned(),
        Err(Distrust::NotInvariant) => {
            "`fastpath run` refuses here, for the CPU does not promise the counter's rate; `fastpath run --trust-counter -- CMD` starts a \
             program without that cost (`fastpath doctor` says at which risk)"
                .to_owned()
        }
        Err(why) => return format!("`fastpath run` would refuse here: {why}; `fastpath doctor` says what to do."),
    };
    match others.as_slice() {
        [] => format!("{run}."),
        others => format!("{run}, but for {}, which stay as they are.", others.join(", ")),
    }
}

fn row(name: &str, measured: &MeasuredCall) -> Vec<Cell> {
    let number = |value: Option<f64>| Cell::new(nanoseconds(value)).set_alignment(CellAlignment::Right);
    let verdict = match (measured.verdict, &measured.why) {
        (verdict, None) => word(&verdict),
        (verdict, Some(why)) => format!("{} ({why})", word(&verdict)),
    };
    vec![
        Cell::new(name),
        output::coloured(
            &word(&measured.path),
            measured.path == Path::Fastpath || measured.path == Path::Vdso,
            false,
        ),
        number(measured.ns),
        number(measured.syscall_ns),
        output::coloured(
            &verdict,
            measured.verdict == CallVerdict::Fast,
            measured.verdict == CallVerdict::Slow,
        ),
    ]
}

/// Returns the word that the JSON has.
fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value)
        .ok()
        .and_then(|v| v.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn host(probe: &Probe) -> String {
    let host = &probe.host;
    let clocksource = host.clocksource.as_deref().unwrap_or("unknown");
    let vdso = match &host.vdso {
        None => "none".to_owned(),
        Some(facts) if facts.is_fastpath => "fastpath".to_owned(),
        Some(_) => "the kernel's".to_owned(),
    };
    let mut text = format!(
        "Linux {} {}, {} CPUs, clocksource {clocksource}, vDSO {vdso}, counter read {} ns",
        host.kernel,
        host.machine,
        host.ncpu,
        nanoseconds(host.counter_ns)
    );
    for offset in &host.timens_offsets {
        text += &format!(
            "\nTime namespace: {} is off by {}.{:09} s",
            offset.clock, offset.sec, offset.nsec
        );
    }
    text
}

fn vsyscall(probe: &Probe) -> String {
    let Some(vsyscall) = &probe.vsyscall else {
        return String::new();
    };
    if vsyscall.mode == Mode::None {
        return "\nvsyscall page: not mapped\n".to_owned();
    }
    let mut text = format!("\nvsyscall page ({}):", word(&vsyscall.mode));
    for entry in &vsyscall.entries {
        text += &match (&entry.ns, &entry.why) {
            (Some(ns), _) => format!(" {} {ns:.0} ns,", entry.function.function()),
            (None, why) => format!(
                " {} {},",
                entry.function.function(),
                why.as_deref().unwrap_or("unknown")
            ),
        };
    }
    text.trim_end_matches(',').to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_promises_no_more_than_run_does() {
        let all = ["MONOTONIC", "MONOTONIC_COARSE", "gettimeofday", "time"];
        let hinted = hint(&all, false, Ok(()));
        assert!(hinted.contains("`fastpath run -- CMD`"), "{hinted}");
        assert!(
            hinted.contains("but for MONOTONIC_COARSE, time, which stay"),
            "{hinted}"
        );
        assert!(!hint(&all[..1], false, Ok(())).contains("but for"));
        assert!(hint(&["time"], false, Ok(())).contains("cannot change"));
        assert!(hint(&all, true, Ok(())).contains("on fastpath already"));
        assert!(hint(&all, false, Err(Distrust::NotInvariant)).contains("--trust-counter"));
        assert!(hint(&all, false, Err(Distrust::NotReadable)).contains("would refuse"));
    }
}
