//! What the facts mean. A file for each subject; here, what a finding is, and notes on the host.

mod clocks;
mod counter;
mod gains;
mod process;
mod summary;

pub(super) use clocks::{counter_is_unused, slow_counter_clocks};
pub use gains::Gain;
pub(super) use gains::gains;
pub(super) use summary::summary;

use super::facts::Facts;
use fastpath_evidence::Trust;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// What it comes to; the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The counter that clocks are read from is not sound.
    Wrong,
    /// A clock or a function costs more than it need.
    Slow,
    /// It could not be told.
    Unknown,
    /// Every clock that can be fast is fast, and nothing speaks against the counter.
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

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Time can be wrong.
    Wrong,
    /// Something costs more than it need.
    Slow,
    /// Something that matters could not be told.
    Unknown,
    /// Nothing is wrong, but it is good to know.
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

/// A file, an instruction or a measurement, and what it shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Proof {
    /// Where.
    pub source: String,
    /// What stands there.
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

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Finding {
    /// Its stable name.
    #[serde(default)]
    pub id: Cow<'static, str>,
    /// How grave it is.
    pub severity: Severity,
    /// What it is.
    pub says: String,
    /// What it is concluded from.
    pub proofs: Vec<Proof>,
    /// Why that is so, as far as it could be told.
    pub because: Vec<Because>,
}

/// A reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Because {
    /// What it is.
    pub says: String,
    /// Where that stands.
    pub proof: Option<Proof>,
}

/// An entry to the kernel costs 50 to 150 ns where nothing is added to it.
const DEAR_SYSTEM_CALL_NS: f64 = 400.0;

/// Everything, the gravest first.
pub(super) fn of(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(facts.process.iter().flat_map(|asked| process::of(asked, facts)));
    findings.extend(clocks::slow(facts));
    findings.extend(clocks::unknown(facts));
    findings.extend(counter::of(facts));
    findings.extend(notes(facts));
    // What was asked about comes before what the host is like.
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

    /// The same, with its proof.
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
    if let Some(trusting) = parameters().find(|p| matches!(p.as_str(), "tsc=reliable" | "tsc=nowatchdog")) {
        let says =
            format!("`{trusting}`: nobody watches the TSC; if it goes wrong, time goes wrong and nothing says so");
        findings.push(finding("counter-unwatched", Severity::Note, says).proof("/proc/cmdline", trusting));
    }
    let taxes: Vec<&str> = facts
        .mitigations
        .iter()
        .filter(|m| m.taxes_system_calls)
        .map(|m| m.name.as_str())
        .collect();
    if let Some(ns) = facts.syscall_ns.filter(|ns| *ns > DEAR_SYSTEM_CALL_NS) {
        let says = format!("a system call costs {ns:.0} ns here, so a lost clock path costs more than elsewhere");
        let mut found = finding("system-calls-dear", Severity::Note, says).proof("measured", &format!("{ns:.1} ns"));
        if !taxes.is_empty() {
            found = found.because(&format!("each entry to the kernel pays for {}", taxes.join(", ")));
        }
        findings.push(found);
    }
    let verdict = |trust| facts.counter.evidence.verdict(trust);
    if let Err(distrust) = verdict(Trust::Invariant) {
        let vouched = match verdict(Trust::AllowNonInvariant) {
            Ok(()) => "; `fastpath run --trust-counter` would serve them",
            Err(_) => "",
        };
        let says = format!("`fastpath run` would refuse to serve programs here: {distrust}{vouched}");
        findings.push(finding("run-refuses", Severity::Note, says));
    }
    if !facts.kernel.has_small_pages() {
        let bytes = facts.kernel.page_size.to_string();
        let says = format!(
            "`fastpath run` would refuse to serve programs here: it needs a kernel whose memory pages are of {} bytes",
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
        let says = format!("this is a time namespace of its own: {}", offsets.join(", "));
        findings.push(
            finding("time-namespace", Severity::Note, says).proof("/proc/self/timens_offsets", &offsets.join(", ")),
        );
    }
    findings
}

#[cfg(test)]
mod tests;
