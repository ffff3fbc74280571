//! Findings about the rate of the kernel's clocks.

use super::super::facts::Facts;
use super::{Finding, Severity, finding};
use fastpath_measure::clocks::Clock;
use fastpath_measure::{ClockRate, off_by};

pub(super) fn from_facts(facts: &Facts) -> Option<Finding> {
    let Some(rate) = facts.wrong_rate() else {
        return adjusted(facts);
    };
    let here_s = rate.over_s * (1.0 + rate.ppm / 1e6);
    let says = format!(
        "the kernel's clock runs {} against the {}: {:.3} s there, {here_s:.3} here",
        off_by(rate.ppm),
        rate.against,
        rate.over_s
    );
    let shows = format!("{:+.0} ppm; up to {:.0} is no fault", rate.ppm, rate.bound_ppm);
    let mut found = finding("clock-rate", Severity::Wrong, says).proof(&rate.against, &shows);
    if let Some(parameter) = facts.kernel.sets_rate() {
        let why = "the counter's rate was set on the kernel's command line";
        found = found.because_of(why, "/proc/cmdline", parameter);
    }
    if let Some(parameter) = facts.kernel.trusts_counter() {
        let why = "the kernel was told not to compare the counter with another clock";
        found = found.because_of(why, "/proc/cmdline", parameter);
    }
    if let Some(log) = &facts.log
        && let Some(line) = log.lines.iter().find(|line| line.contains("calibration deviates"))
    {
        let why = "when the kernel calibrated the counter, two references differed";
        found = found.because_of(why, &log.source, line);
    }
    if facts.is_synchronized == Some(false) {
        let why = "nothing corrects it: no NTP daemon has synchronized the kernel's clock";
        found = found.because_of(why, "adjtimex(2)", "STA_UNSYNC");
    }
    Some(match &facts.machine.hypervisor {
        Some(hypervisor) => found.because(&format!(
            "{hypervisor} may have changed the counter's rate, or stopped the virtual machine, since the kernel calibrated it"
        )),
        None => found,
    })
}

/// Returns a note on a clock that adjtimex(2) slews or corrects.
fn adjusted(facts: &Facts) -> Option<Finding> {
    let of = |clock| move |rate: &&ClockRate| rate.clock == clock && rate.is_wrong();
    let (rate, says) = if let Some(rate) = facts.rates.iter().find(of(Clock::MONOTONIC)) {
        (rate, "the kernel's clock is being slewed (adjtimex(2))")
    } else {
        let rate = facts.rates.iter().find(of(Clock::MONOTONIC_RAW))?;
        (rate, "the counter's rate is wrong, and adjtimex(2) corrects it")
    };
    let says = format!(
        "{says}: {} runs {} against the {}",
        rate.clock,
        off_by(rate.ppm),
        rate.against
    );
    Some(finding("clock-adjusted", Severity::Note, says).proof(&rate.against, &format!("{:+.0} ppm", rate.ppm)))
}
