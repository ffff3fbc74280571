//! Findings: what the facts mean. There is a file for each subject; this one defines a finding, and has the notes on
//! the host.

mod clocks;
mod counter;
mod counter_reads;
mod gains;
mod process;
mod rate;
mod reads;
mod summary;

pub(super) use clocks::{counter_is_unused, slow_counter_clocks};
pub(super) use counter_reads::places as counter_places;
pub use gains::Gain;
pub(super) use gains::gains;
pub(super) use reads::{name as caller_name, worth_a_change};
pub(super) use summary::summary;

use super::causes;
use super::facts::Facts;
use fastpath_evidence::Trust;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The verdict of an examination; the worst is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The counter that clocks are read from is not reliable.
    Wrong,
    /// A clock or a function costs more than necessary.
    Slow,
    /// The verdict could not be determined.
    Unknown,
    /// Every clock that can be fast is fast, and there is no evidence against the counter.
    Healthy,
}

impl Verdict {
    /// Returns the word for it, the same as in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Wrong => "wrong",
            Verdict::Slow => "slow",
            Verdict::Unknown => "unknown",
            Verdict::Healthy => "healthy",
        }
    }
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Time can be wrong.
    Wrong,
    /// Something costs more than necessary.
    Slow,
    /// Something that matters could not be determined.
    Unknown,
    /// Nothing is wrong; the finding is for information.
    Note,
}

impl Severity {
    /// Returns the word for it, the same as in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Severity::Wrong => "wrong",
            Severity::Slow => "slow",
            Severity::Unknown => "unknown",
            Severity::Note => "note",
        }
    }
}

/// A file, an instruction or a measurement, and its content or result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Proof {
    /// The file, the instruction or the measurement.
    pub source: String,
    /// Its content or result.
    pub shows: String,
}

impl Proof {
    pub(super) fn new(source: &str, shows: &str) -> Proof {
        Proof {
            source: source.to_owned(),
            shows: shows.to_owned(),
        }
    }
}

/// A result of the examination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Finding {
    /// Stable identifier of the finding.
    #[serde(default)]
    pub id: Cow<'static, str>,
    /// Its severity.
    pub severity: Severity,
    /// The finding in a sentence.
    pub says: String,
    /// The evidence for it.
    pub proofs: Vec<Proof>,
    /// Its reasons, as far as they are known.
    pub because: Vec<Because>,
}

/// A reason for a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Because {
    /// The reason in a sentence.
    pub says: String,
    /// The evidence for it.
    pub proof: Option<Proof>,
}

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

fn finding(id: &'static str, severity: Severity, says: String) -> Finding {
    Finding {
        id: id.into(),
        severity,
        says,
        because: Vec::new(),
        proofs: Vec::new(),
    }
}

impl Finding {
    fn because(mut self, why: &str) -> Finding {
        self.because.push(Because {
            says: why.to_owned(),
            proof: None,
        });
        self
    }

    /// Adds a reason with its proof.
    fn because_of(mut self, why: &str, source: &str, shows: &str) -> Finding {
        self.because.push(Because {
            says: why.to_owned(),
            proof: Some(Proof::new(source, shows)),
        });
        self
    }

    fn proof(mut self, source: &str, shows: &str) -> Finding {
        self.proofs.push(Proof::new(source, shows));
        self
    }
}

fn notes(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let parameters = || facts.kernel.parameters.iter().flatten();
    let is_counter_used = facts.clocksource.current.as_deref().is_none_or(causes::is_counter);
    if let Some(trusting) = parameters()
        .filter(|_| is_counter_used)
        .find(|p| matches!(p.as_str(), "tsc=reliable" | "tsc=nowatchdog"))
    {
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
    if !facts.kernel.has_small_pages() {
        let bytes = facts.kernel.page_size.to_string();
        let says = format!(
            "`fastpath run` would refuse to serve programs here: it requires a kernel with memory pages of {} bytes",
            fastpath_page::PAGE_SIZE
        );
        findings.push(finding("run-refuses", Severity::Note, says).proof("auxiliary vector: AT_PAGESZ", &bytes));
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
