//! The facts that bear on the verdict, a line each: what, what is seen, where, and whether that is good.

mod clocks;
mod counter;
mod kernel;
mod process;

use super::facts::Facts;
use super::findings;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// What a fact means for clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// As it should be.
    Ok,
    /// It makes clocks slow, or wrong.
    Bad,
    /// It could not be told.
    Unknown,
    /// Neither good nor bad.
    Info,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Line {
    /// What kind of fact.
    pub section: Cow<'static, str>,
    /// Which.
    pub what: String,
    /// What is seen.
    pub shows: String,
    /// What it means.
    pub mark: Mark,
    /// The file, the instruction, or `measured`.
    pub source: String,
}

/// Adds a line to a section: what, its mark, what is seen, and where.
type Add<'a> = dyn FnMut(&str, Mark, String, &str) + 'a;

fn line(section: &'static str, what: &str, mark: Mark, shows: String, source: &str) -> Line {
    Line {
        section: section.into(),
        what: what.to_owned(),
        shows,
        mark,
        source: source.to_owned(),
    }
}

/// Everything, section by section.
pub(super) fn of(facts: &Facts) -> Vec<Line> {
    let asked = facts
        .process
        .iter()
        .flat_map(|asked| process::of(process::ASKED, asked));
    asked
        .chain(clocks::of(facts))
        .chain(clocks::of_other_isa(facts))
        .chain(kernel::of(facts))
        .chain(counter::of(facts))
        .chain(process::of(process::PROCESS, &facts.here))
        .collect()
}

/// What speaks against the counter is bad where it has been given up; else it is good to know.
fn if_it_matters(facts: &Facts) -> Mark {
    if findings::slow_counter_clocks(facts).is_empty() {
        Mark::Info
    } else {
        Mark::Bad
    }
}
