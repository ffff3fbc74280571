//! A fact as a line.

use super::super::facts::Facts;
use super::super::findings;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Meaning of a fact for clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// The fact is as it should be.
    Ok,
    /// The fact makes clocks slow or wrong.
    Bad,
    /// The fact could not be determined.
    Unknown,
    /// The fact is neither good nor bad.
    Info,
}

/// A fact as one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Line {
    /// Section of the report that contains it.
    pub section: Cow<'static, str>,
    /// Name of the fact.
    pub what: String,
    /// Result of the examination.
    pub shows: String,
    /// Meaning of the result.
    pub mark: Mark,
    /// The file, the instruction, or `measured`.
    pub source: String,
}

/// Adds a line to a section: name, mark, result and source.
pub(super) type Add<'a> = dyn FnMut(&str, Mark, String, &str) + 'a;

pub(super) fn line(section: &'static str, what: &str, mark: Mark, shows: String, source: &str) -> Line {
    Line {
        section: section.into(),
        what: what.to_owned(),
        shows,
        mark,
        source: source.to_owned(),
    }
}

/// Returns the mark of evidence against the counter: bad if the kernel has rejected the counter, otherwise for
/// information.
pub(super) fn if_it_matters(facts: &Facts) -> Mark {
    if findings::slow_counter_clocks(facts).is_empty() {
        Mark::Info
    } else {
        Mark::Bad
    }
}
