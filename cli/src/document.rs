//! Results for scripts: JSON, one object on one line, which begins with the same fields for every command.
//!
//! `fastpath schema` prints the JSON Schema of each (`schema.rs`).

use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Serialize;

use crate::output;

/// Version of all documents. Adding a field does not change it; removing a field, or changing its meaning, does.
const SCHEMA: u32 = fastpath_report::data::SCHEMA;

/// A result with the fields that every document has.
#[derive(Serialize, JsonSchema)]
pub struct Document<'a, T> {
    /// The schema version: adding a field does not change it; removing a field, or changing its meaning, does
    schema: u32,
    /// The version of fastpath that wrote this
    fastpath: &'static str,
    /// The command that wrote this
    command: &'a str,
    /// When it was written, in seconds since 1970
    time_unix: u64,
    #[serde(flatten)]
    result: &'a T,
}

impl<'a, T> Document<'a, T> {
    fn new(command: &'a str, result: &'a T) -> Document<'a, T> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Document {
            schema: SCHEMA,
            fastpath: env!("CARGO_PKG_VERSION"),
            command,
            time_unix: since.unwrap_or_default().as_secs(),
            result,
        }
    }
}

/// Returns the result of a command as one line.
pub fn line<T: Serialize>(command: &str, result: &T) -> Result<String, String> {
    output::json(&Document::new(command, result))
}

/// Prints the result of a command; returns the exit status.
pub fn print<T: Serialize>(command: &str, result: &T) -> i32 {
    output::print_json(&Document::new(command, result))
}
