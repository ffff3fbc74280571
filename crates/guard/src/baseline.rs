//! What it was once: an earlier report, as `--json` prints it.

use serde::Deserialize;

/// What of a report is compared with a later one. Ratios, so that it holds on another machine too.
#[derive(Clone, Debug, Deserialize)]
pub struct Baseline {
    /// Each call.
    pub calls: Vec<Remembered>,
}

/// One call.
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
    pub(super) fn of(&self, call: &str) -> Option<&Remembered> {
        self.calls.iter().find(|remembered| remembered.call == call)
    }
}
