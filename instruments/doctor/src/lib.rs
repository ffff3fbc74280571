//! Explains why clocks are slow on a host, or are not: the checks that an expert would make, in about a second.
//!
//! Facts are gathered first, as plain data ([`facts`]). Their meaning is derived by functions that read nothing else
//! (`findings`, `remedies`, `evidence`), so that tests can cover hosts with faults that the test machine does
//! not have.
#![cfg_attr(all(clippy, not(test)), warn(unused_crate_dependencies))]

mod arch;
mod calls_in_files;
mod causes;
mod code_files;
mod counter_reads;
mod derived;
mod evidence;
pub mod facts;
mod findings;
mod gather;
mod host;
mod kernel_log;
mod messages;
#[cfg(test)]
#[path = "../../../fuzz/mutations.rs"]
mod mutations;
mod page;
mod process;
mod proof;
mod rate;
mod remedies;
mod root;
#[cfg(test)]
mod samples;
mod sampling;
mod served;
#[cfg(test)]
#[path = "../../../tests/skip.rs"]
mod skip;
mod words;

pub use evidence::{Line, Mark};
pub use facts::{Facts, PageFacts};
pub use findings::{Because, Finding, Gain, Severity, Verdict};
pub use gather::DoctorOptions;
pub use proof::Proof;
pub use remedies::{Remedy, When};
pub use root::Unseen;
pub use served::{Served, ServedPage, Walks};

use fastpath_evidence::{Distrust, Trust};
use fastpath_measure::counter;
use root::Root;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// Verdict of `fastpath run` on the counter, from the evidence among the facts.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Belief {
    /// The level of trust: `invariant`, or `anyway` with `--trust-counter`.
    pub trust: Trust,
    /// The reason why it would refuse the counter, with its `kind` first; nothing if it would accept it.
    pub distrust: Option<Distrust>,
    /// The reason in a sentence.
    pub says: Option<String>,
}

impl Belief {
    fn from_facts(facts: &Facts, trust: Trust) -> Belief {
        let distrust = facts.verdict(trust).err();
        Belief {
            trust,
            says: distrust.as_ref().map(Distrust::to_string),
            distrust,
        }
    }
}

/// Result of an examination.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct DoctorReport {
    /// The verdict.
    pub verdict: Verdict,
    /// The verdict in a sentence.
    pub summary: String,
    /// The findings: on the process that was asked about, then on the host, then notes; within each, the most severe
    /// first.
    pub findings: Vec<Finding>,
    /// The remedies, those with an immediate effect first.
    pub remedies: Vec<Remedy>,
    /// Cost of a call in the process that was asked about, now and under fastpath.
    pub gains: Vec<Gain>,
    /// Evidence that could not be read.
    pub unseen: Vec<Unseen>,
    /// Every fact that bears on the verdict, one per line.
    pub evidence: Vec<Line>,
    /// Whether `fastpath run` would accept the counter, without and with `--trust-counter`.
    pub beliefs: [Belief; 2],
    /// All facts.
    pub facts: Facts,
    /// Duration of the examination.
    pub elapsed_ms: u64,
}

/// Examines the host, and the process if there is one. If this process may not read the counter (PR_SET_TSC), it allows
/// itself to, because a clock read would otherwise kill it, and reports that. The error says why nothing of the process
/// can be seen.
pub fn examine(options: &DoctorOptions) -> Result<DoctorReport, String> {
    // This must precede every clock read: where the counter is forbidden, the kernel's vDSO is killed by it too.
    if !counter::usable() {
        counter::allow();
    }
    let was_readable = !counter::was_forbidden();
    let begun = Instant::now();
    let root = Root::at(options.root);
    let mut facts = gather::gather(&root, options)?;
    facts.counter.evidence.is_readable = was_readable;
    let mut report = DoctorReport::from_facts(facts, root.into_unseen());
    report.elapsed_ms = begun.elapsed().as_millis() as u64;
    Ok(report)
}

impl DoctorReport {
    /// Derives the report from facts, without reading anything else.
    pub fn from_facts(facts: Facts, unseen: Vec<Unseen>) -> DoctorReport {
        let findings = findings::from_facts(&facts);
        let verdict = Verdict::from_facts(&facts, &findings);
        DoctorReport {
            verdict,
            summary: findings::summary(&facts, &findings, verdict),
            remedies: remedies::from_facts(&facts, &findings),
            gains: findings::gains(&facts),
            unseen,
            evidence: evidence::from_facts(&facts),
            beliefs: [Trust::Invariant, Trust::AllowNonInvariant].map(|trust| Belief::from_facts(&facts, trust)),
            findings,
            facts,
            elapsed_ms: 0,
        }
    }

    /// Examines a process of the host that this report is on: several are then judged by the same facts of their host. The
    /// error says why nothing of the process can be seen.
    pub fn on_process(&self, pid: u32, sampled: Duration) -> Result<DoctorReport, String> {
        let begun = Instant::now();
        let root = Root::at(Path::new("/"));
        let mut facts = self.facts.clone();
        facts.counter_programs = None;
        facts.process = Some(gather::Begun::with(&root, pid, sampled)?.end(&root));
        let unseen = [self.unseen.clone(), root.into_unseen()].concat();
        Ok(DoctorReport {
            elapsed_ms: self.elapsed_ms + begun.elapsed().as_millis() as u64,
            ..DoctorReport::from_facts(facts, unseen)
        })
    }

    /// Derives the report on the host alone from facts without names, paths and addresses: others may read it.
    pub fn without_names(&self) -> DoctorReport {
        DoctorReport {
            elapsed_ms: self.elapsed_ms,
            ..DoctorReport::from_facts(self.facts.clone().without_names(), self.unseen.clone())
        }
    }
}
