//! Why clocks are slow here, or are not: what an expert would look up, in about a second.
//!
//! Facts are gathered first, as plain data ([`facts`]); what they mean is derived from them by functions that look at nothing
//! else (`findings.rs`, `remedies.rs`, `evidence.rs`), so that a host that is sick in a way that this one is not can be tested.

mod arch;
mod causes;
mod evidence;
pub mod facts;
mod findings;
mod gather;
mod host;
mod kernel_log;
mod own_calls;
mod page;
mod process;
mod program;
mod rate;
mod remedies;
mod root;
#[cfg(test)]
mod samples;
mod served;
mod words;

pub use evidence::{Line, Mark};
pub use facts::Facts;
pub use findings::{Because, Finding, Gain, Proof, Severity, Verdict};
pub use program::{Program, read as read_program};
pub use remedies::{Remedy, When};
pub use root::Unseen;
pub use served::{Served, ServedPage, served};

use fastpath_evidence::{Distrust, Evidence, Trust};
use fastpath_measure::counter;
use root::Root;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// What is to be examined.
pub struct Options<'a> {
    /// `/`, or a directory with a host's /proc, /sys and /dev.
    pub root: &'a Path,
    /// A process, beside the host.
    pub pid: Option<u32>,
}

/// Whether `fastpath run` would believe the counter, by the evidence among the facts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Belief {
    /// `invariant`; with `--trust-counter`, `anyway`.
    pub trust: Trust,
    /// Nothing if it would; else why not, with its `kind` first.
    pub distrust: Option<Distrust>,
    /// The same in a sentence.
    pub says: Option<String>,
}

impl Belief {
    fn of(evidence: &Evidence, trust: Trust) -> Belief {
        let distrust = evidence.verdict(trust).err();
        Belief {
            trust,
            says: distrust.as_ref().map(Distrust::to_string),
            distrust,
        }
    }
}

/// The outcome.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Report {
    /// What it comes to.
    pub verdict: Verdict,
    /// The same in a sentence.
    pub summary: String,
    /// What is the matter: with the process that was asked about, with the host, notes; the gravest first.
    pub findings: Vec<Finding>,
    /// What to do, what helps at once first.
    pub remedies: Vec<Remedy>,
    /// What the process that was asked about pays for a call, and would pay under fastpath.
    pub gains: Vec<Gain>,
    /// What could not be seen.
    pub unseen: Vec<Unseen>,
    /// Every fact that bears on the verdict, a line each.
    pub evidence: Vec<Line>,
    /// Whether `fastpath run` would believe the counter, without and with `--trust-counter`.
    pub beliefs: [Belief; 2],
    /// All that was found out.
    pub facts: Facts,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// Examines the host, and the process if there is one. Where this process may not read the counter (PR_SET_TSC), it allows
/// itself to: there is no other way to go on living, and it is reported. The error says why nothing can be seen of the process.
pub fn examine(options: &Options) -> Result<Report, String> {
    // Before any clock is read: where the counter is forbidden, the kernel's vDSO dies of it too.
    if !counter::usable() {
        counter::allow();
    }
    let was_readable = !counter::was_forbidden();
    let begun = Instant::now();
    let root = Root::at(options.root);
    let mut facts = gather::gather(&root, options)?;
    facts.counter.evidence.is_readable = was_readable;
    let mut report = Report::of(facts, root.into_unseen());
    report.elapsed_ms = begun.elapsed().as_millis() as u64;
    Ok(report)
}

impl Report {
    /// What facts mean. Looks at nothing but them.
    pub fn of(facts: Facts, unseen: Vec<Unseen>) -> Report {
        let findings = findings::of(&facts);
        let verdict = Verdict::of(&facts, &findings);
        Report {
            verdict,
            summary: findings::summary(&facts, &findings, verdict),
            remedies: remedies::of(&facts, &findings),
            gains: findings::gains(&facts),
            unseen,
            evidence: evidence::of(&facts),
            beliefs: [Trust::Invariant, Trust::AllowNonInvariant]
                .map(|trust| Belief::of(&facts.counter.evidence, trust)),
            findings,
            facts,
            elapsed_ms: 0,
        }
    }
}
