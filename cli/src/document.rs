//! What a script reads: a result as JSON, one object on one line, which begins alike for every command.
//!
//! `docs/schema` has the JSON Schema of each, and `docs/json.md` their fields; both are made of the types here, by a test that fails when they are not
//! what the types say.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::output;

/// The version of all documents. A field is added without changing it; it changes when one is removed or means another thing.
pub const SCHEMA: u32 = fastpath_report::data::SCHEMA;

/// A result with what every document has.
#[derive(Serialize, schemars::JsonSchema)]
struct Document<'a, T> {
    /// The version of the document's shape: a field is added without changing it; it changes when one is removed or means another thing
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

/// The result of a command as one line.
pub fn line<T: Serialize>(command: &str, result: &T) -> Result<String, String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let document = Document {
        schema: SCHEMA,
        fastpath: env!("CARGO_PKG_VERSION"),
        command,
        time_unix: since.unwrap_or_default().as_secs(),
        result,
    };
    let json = serde_json::to_string(&document);
    json.map(|json| json + "\n")
        .map_err(|error| format!("{command}: the result cannot be written as JSON: {error}"))
}

/// Prints it; the exit status.
pub fn print<T: Serialize>(command: &str, result: &T) -> i32 {
    match line(command, result) {
        Ok(line) => output::print(line),
        Err(why) => {
            output::note(why);
            output::NOT_WRITTEN
        }
    }
}

#[cfg(test)]
mod tests;
