//! A finding, and the verdict that follows from all of them.

use super::super::proof::Proof;
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

pub(super) fn finding(id: &'static str, severity: Severity, says: String) -> Finding {
    Finding {
        id: id.into(),
        severity,
        says,
        because: Vec::new(),
        proofs: Vec::new(),
    }
}

impl Finding {
    pub(super) fn because(mut self, why: &str) -> Finding {
        self.because.push(Because {
            says: why.to_owned(),
            proof: None,
        });
        self
    }

    /// Adds a reason with its proof.
    pub(super) fn because_of(mut self, why: &str, source: &str, shows: &str) -> Finding {
        self.because.push(Because {
            says: why.to_owned(),
            proof: Some(Proof::new(source, shows)),
        });
        self
    }

    pub(super) fn proof(mut self, source: &str, shows: &str) -> Finding {
        self.proofs.push(Proof::new(source, shows));
        self
    }
}
