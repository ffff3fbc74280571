//! Formats names and figures for sentences.

use fastpath_measure::probe::ClockReport;

pub(super) fn clock_names(reports: &[&ClockReport]) -> String {
    let names: Vec<&str> = reports.iter().map(|report| report.clock.name()).collect();
    names.join(", ")
}

/// Formats a range of costs: `812 ns`, or `812 to 1,040 ns`.
pub(super) fn costs(reports: &[&ClockReport]) -> String {
    let costs = || reports.iter().filter_map(|report| report.measured.ns);
    match (costs().min_by(f64::total_cmp), costs().max_by(f64::total_cmp)) {
        (Some(least), Some(most)) if most > 1.1 * least => format!("{:.0} to {}", least, nanoseconds(most)),
        (Some(least), _) => nanoseconds(least),
        _ => "at a cost that could not be measured".to_owned(),
    }
}

pub(super) fn nanoseconds(ns: f64) -> String {
    if ns < 100.0 {
        format!("{ns:.1} ns")
    } else {
        format!("{ns:.0} ns")
    }
}

/// Formats how far two counters are apart: `842 ns`, `38.9 µs`, `12.4 s`.
pub(super) fn distance(ns: f64) -> String {
    match ns {
        1e9.. => format!("{:.1} s", ns / 1e9),
        1e6.. => format!("{:.1} ms", ns / 1e6),
        1e4.. => format!("{:.1} µs", ns / 1e3),
        _ => format!("{ns:.0} ns"),
    }
}

pub(super) fn megahertz(hz: f64) -> String {
    format!("{:.3} MHz", hz / 1e6)
}

pub(super) fn is_are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

pub(super) fn take(count: usize) -> &'static str {
    if count == 1 { "takes" } else { "take" }
}
