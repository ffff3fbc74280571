//! The baseline: an earlier report, as `--json` prints it.

use serde::Deserialize;

/// The part of a report that is compared with a later one: ratios, which are valid on another machine too.
#[derive(Clone, Debug, Deserialize)]
pub struct Baseline {
    /// The calls.
    pub calls: Vec<Remembered>,
}

/// One call of the earlier report.
#[derive(Clone, Debug, Deserialize)]
pub struct Remembered {
    /// As in [`Checked`](super::Checked).
    pub call: String,
    /// As in [`Checked`](super::Checked).
    pub path: String,
    /// As in [`Checked`](super::Checked).
    pub counter_reads: Option<f64>,
}

impl Baseline {
    pub(super) fn remembered(&self, call: &str) -> Option<&Remembered> {
        self.calls.iter().find(|remembered| remembered.call == call)
    }
}
