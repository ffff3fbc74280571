//! Path and cost of every call.

use super::super::facts::Facts;
use super::super::root::plain;
use super::super::words::nanoseconds;
use super::line::{Line, Mark, line};
use fastpath_measure::clocks::ClockKind;
use fastpath_measure::path::Path;
use fastpath_measure::probe::MeasuredCall;
use fastpath_measure::verdict::{self, CallVerdict};
use fastpath_measure::{ClockMonotonicity, ClockRate, Monotonicity};

const CLOCKS: &str = "clocks";

pub(super) fn from_facts(facts: &Facts) -> Vec<Line> {
    let clocks = facts
        .clocks
        .iter()
        .filter(|report| report.clock.kind() != ClockKind::KernelOnly);
    let clocks = clocks.map(|report| (report.clock.name(), &report.measured));
    let functions = facts
        .functions
        .iter()
        .map(|report| (report.function.as_ref(), &report.measured));
    let calls: Vec<(&str, &MeasuredCall)> = clocks.chain(functions).collect();
    let common = common_remark(&calls);
    let of_call = |(name, measured): &(&str, &MeasuredCall)| {
        let why = measured.why.as_ref().filter(|_| common.is_none());
        of_call(name, measured, why, facts.counter.read_ns)
    };
    let mut lines: Vec<Line> = calls.iter().map(of_call).collect();
    let path = |why: &String| line(CLOCKS, "paths", Mark::Unknown, plain(why), "measured");
    lines.extend(common.map(path));
    lines.extend(facts.monotonicity.as_ref().map(of_monotonicity));
    lines.extend(facts.rates.iter().map(of_rate));
    lines
}

fn of_rate(rate: &ClockRate) -> Line {
    let mark = if rate.is_wrong() { Mark::Bad } else { Mark::Ok };
    let shows = format!(
        "{:+.0} ppm over {:.2} s; up to {:.0} is no fault",
        rate.ppm, rate.over_s, rate.bound_ppm
    );
    line(CLOCKS, &format!("{}'s rate", rate.clock), mark, shows, &rate.against)
}

fn of_monotonicity(seen: &Monotonicity) -> Line {
    let goes_back = |clock: &&ClockMonotonicity| clock.faults().next().is_some();
    let backward: Vec<&str> = seen
        .clocks
        .iter()
        .filter(goes_back)
        .map(|clock| clock.clock.name())
        .collect();
    let (mark, shows) = match backward.as_slice() {
        [] => (Mark::Ok, "never".to_owned()),
        names => (Mark::Bad, names.join(", ")),
    };
    let shows = format!("{shows} ({} reads by {} threads)", seen.reads, seen.threads);
    line(CLOCKS, "go backward", mark, shows, "measured")
}

/// Returns the reason why paths could not be established, if it is the same for all such calls.
fn common_remark<'a>(calls: &[(&str, &'a MeasuredCall)]) -> Option<&'a String> {
    let mut remarks = calls
        .iter()
        .filter(|(_, m)| m.path == Path::Unknown)
        .map(|(_, m)| m.why.as_ref());
    let first = remarks.next()??;
    remarks.all(|why| why == Some(first)).then_some(first)
}

fn of_call(name: &str, measured: &MeasuredCall, why: Option<&String>, counter_ns: Option<f64>) -> Line {
    let path = match measured.path {
        Path::Vdso => "by the kernel's vDSO",
        Path::Fastpath => "by fastpath",
        Path::Syscall => "by system call",
        Path::Unsupported => "not in this kernel",
        Path::Unknown => "by a path that is unknown",
    };
    let cost = measured
        .ns
        .map(|ns| format!("{} ", nanoseconds(ns)))
        .unwrap_or_default();
    let threshold = match verdict::slow_above(measured.syscall_ns, counter_ns) {
        Some(limit) if measured.path != Path::Syscall && measured.ns.is_some() => format!("; slow above {limit:.0} ns"),
        _ => String::new(),
    };
    let why = why.map(|why| format!(" ({})", plain(why))).unwrap_or_default();
    let mark = match measured.verdict {
        CallVerdict::Fast => Mark::Ok,
        CallVerdict::Slow => Mark::Bad,
        CallVerdict::Unknown => Mark::Unknown,
        CallVerdict::Unsupported | CallVerdict::SyscallOnly => Mark::Info,
    };
    line(CLOCKS, name, mark, format!("{cost}{path}{threshold}{why}"), "measured")
}
