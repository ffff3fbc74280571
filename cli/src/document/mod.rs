//! Results for scripts: JSON, one object on one line, which begins with the same fields for every command.
//!
//! `fastpath schema` prints the JSON Schema of each, made from the types here.

use std::time::{SystemTime, UNIX_EPOCH};

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::Serialize;

use crate::output;

/// The documents, as [`print_schema`] names them.
pub const COMMANDS: [&str; 9] = [
    "probe",
    "doctor",
    "trace",
    "audit",
    "audit-rescue",
    "bench",
    "guard",
    "status",
    "report",
];

/// Version of all documents. Adding a field does not change it; removing a field, or changing its meaning, does.
const SCHEMA: u32 = fastpath_report::data::SCHEMA;

/// A result with the fields that every document has.
#[derive(Serialize, JsonSchema)]
struct Document<'a, T> {
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

fn schema_of<T: JsonSchema>(command: &str) -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = settings.into_generator().into_root_schema_for::<Document<'_, T>>();
    schema.insert("title".to_owned(), format!("fastpath {command} --json").into());
    schema.remove("description");
    schema
}

/// Returns the JSON Schema of one of [`COMMANDS`].
fn schema(document: &str) -> Schema {
    match document {
        "probe" => schema_of::<fastpath_measure::Probe>(document),
        "doctor" => schema_of::<fastpath_doctor::DoctorReport>(document),
        "trace" => schema_of::<fastpath_tools::trace::TraceReport>(document),
        "audit" => schema_of::<fastpath_tools::audit::AuditReport>(document),
        "audit-rescue" => schema_of::<crate::audit::rescue::RescueReport>("audit --rescue"),
        "bench" => schema_of::<crate::bench::BenchReport>(document),
        "guard" => schema_of::<fastpath_measure::guard::GuardReport>(document),
        "status" => schema_of::<crate::attach::status::Status>(document),
        _ => schema_of::<fastpath_report::data::FleetReport>("report"),
    }
}

/// Prints the JSON Schema of one of [`COMMANDS`]; returns the exit status.
pub fn print_schema(document: &str) -> i32 {
    output::print_json(&schema(document))
}

#[cfg(test)]
mod tests;
