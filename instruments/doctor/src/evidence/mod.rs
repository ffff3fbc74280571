//! The facts that bear on the verdict, one per line: what was examined, the result, its source, and whether it is good.

mod clocks;
mod counter;
mod kernel;
mod line;
mod process;

use super::facts::Facts;
pub use line::{Line, Mark};

/// Returns all lines, section by section.
pub(super) fn from_facts(facts: &Facts) -> Vec<Line> {
    let asked = facts
        .process
        .iter()
        .flat_map(|asked| process::from_facts(process::ASKED, asked));
    asked
        .chain(clocks::from_facts(facts))
        .chain(kernel::from_facts(facts))
        .chain(counter::from_facts(facts))
        .chain(process::from_facts(process::PROCESS, &facts.here))
        .collect()
}
