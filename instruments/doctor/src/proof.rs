//! What was seen, and where.

use serde::{Deserialize, Serialize};

/// A file, an instruction or a measurement, and its content or result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Proof {
    /// The file, the instruction or the measurement.
    pub source: String,
    /// Its content or result.
    pub shows: String,
}

impl Proof {
    pub(crate) fn new(source: &str, shows: &str) -> Proof {
        Proof {
            source: source.to_owned(),
            shows: shows.to_owned(),
        }
    }
}
