//! Findings: what the facts mean. There is a file for each subject; this one has the notes on the host.

mod clocks;
mod counter;
mod counter_reads;
mod finding;
mod gains;
mod process;
mod rate;
mod reads;
mod summary;

pub(super) use clocks::{counter_is_unused, slow_counter_clocks};
pub(super) use counter_reads::places as counter_places;
pub use finding::{Because, Finding, Severity, Verdict};
pub use gains::Gain;
pub(super) use gains::gains;
pub(super) use reads::{name as caller_name, worth_a_change};
pub(super) use summary::summary;

use super::causes;
use super::facts::{Facts, NEVER_WRITES_CODE};
use fastpath_evidence::Trust;
use finding::finding;

/// Cost above which a system call is reported. An entry to the kernel costs 50 to 150 ns if no mitigation adds to it.
const EXPENSIVE_SYSTEM_CALL_NS: f64 = 400.0;

/// Returns all findings, the most severe first; notes are last.
pub(super) fn from_facts(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(facts.process.iter().flat_map(|asked| process::from_facts(asked, facts)));
    findings.extend(rate::from_facts(facts));
    findings.extend(clocks::backward(facts));
    findings.extend(clocks::slow(facts));
    findings.extend(clocks::unknown(facts));
    findings.extend(counter::from_facts(facts));
    findings.extend(counter_reads::of_host(facts));
    findings.extend(notes(facts));
    // Findings about the process that was asked about come before those about the host.
    findings.sort_by_key(|finding| {
        (
            finding.severity == Severity::Note,
            !process::is_about_process(finding),
            finding.severity,
        )
    });
    findings
}

fn notes(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_counter_used = facts.clocksource.current.as_deref().is_none_or(causes::is_counter);
    if let Some(trusting) = facts.kernel.trusts_counter().filter(|_| is_counter_used) {
        let says = format!(
            "`{trusting}`: the kernel does not check the TSC; if it goes wrong, time goes wrong and nothing reports it"
        );
        findings.push(finding("counter-unwatched", Severity::Note, says).proof("/proc/cmdline", trusting));
    }
    let taxes: Vec<&str> = facts
        .mitigations
        .iter()
        .filter(|m| m.taxes_system_calls)
        .map(|m| m.name.as_str())
        .collect();
    if let Some(ns) = facts.syscall_ns.filter(|ns| *ns > EXPENSIVE_SYSTEM_CALL_NS) {
        let says = format!(
            "a system call costs {ns:.0} ns here, so a clock read by system call costs more than on other hosts"
        );
        let mut found =
            finding("system-calls-expensive", Severity::Note, says).proof("measured", &format!("{ns:.1} ns"));
        if !taxes.is_empty() {
            found = found.because(&format!(
                "each entry to the kernel includes the cost of {}",
                taxes.join(", ")
            ));
        }
        findings.push(found);
    }
    let verdict = |trust| facts.verdict(trust);
    if let Err(distrust) = verdict(Trust::Invariant) {
        let allowed = match verdict(Trust::AllowNonInvariant) {
            Ok(()) => "; `fastpath run --trust-counter` would serve them",
            Err(_) => "",
        };
        let says = format!("`fastpath run` would refuse to serve programs here: {distrust}{allowed}");
        findings.push(finding("run-refuses", Severity::Note, says));
    }
    if !facts.kernel.lets_write_code() {
        let says = format!(
            "neither `fastpath run` nor `attach` can serve programs here: `{NEVER_WRITES_CODE}` lets no process write their code"
        );
        findings.push(finding("run-refuses", Severity::Note, says).proof("/proc/cmdline", NEVER_WRITES_CODE));
    }
    let offsets = facts
        .here
        .time_namespace
        .iter()
        .flat_map(|namespace| &namespace.offsets);
    let offsets: Vec<String> = offsets
        .map(|offset| format!("{} {} s", offset.clock, offset.sec))
        .collect();
    if !offsets.is_empty() {
        let says = format!(
            "this process is in a time namespace with offsets: {}",
            offsets.join(", ")
        );
        findings.push(
            finding("time-namespace", Severity::Note, says).proof("/proc/self/timens_offsets", &offsets.join(", ")),
        );
    }
    findings
}

#[cfg(test)]
mod tests;
