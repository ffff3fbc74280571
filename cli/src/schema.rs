//! `fastpath schema`: the JSON Schema of each result, made from its type.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

use crate::args;
use crate::document::Document;
use crate::output;

/// Returns the JSON Schema of a command's result.
fn schema_of<T: JsonSchema>(command: &str) -> Schema {
    root_schema::<Document<'_, T>>(format!("fastpath {command} --json"))
}

fn root_schema<T: JsonSchema>(title: String) -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.insert("title".to_owned(), title.into());
    schema.remove("description");
    schema
}

fn schema(document: args::Document) -> Schema {
    match document {
        args::Document::Probe => schema_of::<fastpath_measure::Probe>("probe"),
        args::Document::Doctor => schema_of::<fastpath_doctor::DoctorReport>("doctor"),
        args::Document::Trace => schema_of::<fastpath_tools::trace::TraceReport>("trace"),
        args::Document::Audit => schema_of::<fastpath_tools::audit::AuditReport>("audit"),
        args::Document::AuditRescue => schema_of::<crate::audit::rescue::RescueReport>("audit --rescue"),
        args::Document::Bench => schema_of::<crate::bench::BenchReport>("bench"),
        args::Document::Guard => schema_of::<fastpath_measure::guard::GuardReport>("guard"),
        args::Document::Status => schema_of::<crate::attach::served::ServedStatus>("status"),
        args::Document::Report => schema_of::<fastpath_report::data::FleetReport>("report"),
        args::Document::Record => root_schema::<fastpath_daemon::record::Record>("fastpath record".to_owned()),
    }
}

/// Prints the JSON Schema of a document; returns the exit status.
pub fn print(document: args::Document) -> i32 {
    output::print_json(&schema(document))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use serde_json::Value;

    use super::*;

    /// Adds the paths of fields that have no description, neither of their own nor of their type.
    fn add_undescribed(path: &str, schema: &Value, definitions: &Value, undescribed: &mut Vec<String>) {
        let is_described = |field: &Value| {
            let either = field["anyOf"].as_array();
            let mut all = either.into_iter().flatten().chain([field]);
            all.any(|one| {
                let name = one["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/"));
                one["description"].is_string() || name.is_some_and(|name| definitions[name]["description"].is_string())
            })
        };
        match schema {
            Value::Object(members) => {
                for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                    if !is_described(field) && !field["const"].is_string() {
                        undescribed.push(format!("{path}.{name}"));
                    }
                }
                for (name, member) in members {
                    add_undescribed(&format!("{path}.{name}"), member, definitions, undescribed);
                }
            }
            Value::Array(items) => items
                .iter()
                .for_each(|item| add_undescribed(path, item, definitions, undescribed)),
            _ => {}
        }
    }

    #[test]
    fn schemas_describe_every_field() {
        let page = include_str!("../../docs/json.md");
        let mut undescribed = Vec::new();
        for document in args::Document::value_variants() {
            let name = document.to_possible_value().expect("a name").get_name().to_owned();
            assert!(page.contains(&format!("`fastpath schema {name}`")), "{name}");
            let schema = schema(*document).to_value();
            let title = match document {
                args::Document::Record => format!("fastpath {name}"),
                _ => format!("fastpath {} --json", name.replace('-', " --")),
            };
            assert_eq!(schema["title"], title);
            add_undescribed(&name, &schema, &schema["$defs"], &mut undescribed);
        }
        assert!(undescribed.is_empty(), "without a description: {undescribed:#?}");
    }
}
