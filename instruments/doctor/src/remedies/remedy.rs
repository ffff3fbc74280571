//! A way to fix a finding.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// When a remedy takes effect, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum When {
    /// Immediately, for programs that are started this way.
    Now,
    /// Immediately, until the next boot.
    UntilReboot,
    /// Permanently.
    Permanent,
}

impl When {
    /// Returns it in words.
    pub fn words(self) -> &'static str {
        match self {
            When::Now => "now",
            When::UntilReboot => "until reboot",
            When::Permanent => "for good",
        }
    }
}

/// A way to fix a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Remedy {
    /// Stable identifier of the remedy.
    #[serde(default)]
    pub id: Cow<'static, str>,
    /// When it takes effect.
    pub when: When,
    /// What to type or to change.
    pub does: String,
    /// Its cost, and how it can fail.
    pub cost: String,
}

pub(super) fn remedy(id: &'static str, when: When, does: impl Into<String>, cost: impl Into<String>) -> Remedy {
    Remedy {
        id: id.into(),
        when,
        does: does.into(),
        cost: cost.into(),
    }
}
