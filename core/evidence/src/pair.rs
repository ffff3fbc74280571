//! The distance of two CPUs' counters.

use serde::{Deserialize, Serialize};

/// Distance of one CPU's counter ahead of another's: between `least_cycles` and `most_cycles`, whatever interrupted the
/// comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pair {
    /// The CPU that the other is compared with.
    pub cpu: usize,
    /// The other CPU.
    pub other: usize,
    /// Least distance, in counts; negative if the other may be behind.
    pub least_cycles: i64,
    /// Most distance, in counts; negative if the other is behind.
    pub most_cycles: i64,
}

impl Pair {
    /// Returns by how many counts the two are certainly apart; 0 if they may be equal.
    pub fn apart_cycles(&self) -> u64 {
        self.least_cycles
            .max(self.most_cycles.saturating_neg())
            .max(0)
            .unsigned_abs()
    }

    /// Returns the pair with so many counts subtracted from its bounds.
    pub(crate) fn less(self, least_cycles: i64, most_cycles: i64) -> Pair {
        Pair {
            least_cycles: self.least_cycles.saturating_sub(least_cycles),
            most_cycles: self.most_cycles.saturating_sub(most_cycles),
            ..self
        }
    }

    /// Returns the same bounds for the other CPU as the one that is compared with.
    pub(crate) fn turned(self) -> Pair {
        Pair {
            cpu: self.other,
            other: self.cpu,
            least_cycles: self.most_cycles.saturating_neg(),
            most_cycles: self.least_cycles.saturating_neg(),
        }
    }

    /// Returns by how many counts the two are apart at most: a smaller difference could have been missed.
    pub fn within_cycles(&self) -> u64 {
        self.least_cycles.unsigned_abs().max(self.most_cycles.unsigned_abs())
    }
}
