//! Set FASTPATH_WRITE_DOCS=1 to write docs/schema anew.

use std::path::Path;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::Value;

use super::Document;

fn schema_of<T: JsonSchema>(command: &str) -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema: Schema = settings.into_generator().into_root_schema_for::<Document<'_, T>>();
    schema.insert("title".to_owned(), format!("fastpath {command} --json").into());
    schema.remove("description");
    schema.to_value()
}

fn documents() -> Vec<(&'static str, Value)> {
    vec![
        ("probe", schema_of::<fastpath_measure::Probe>("probe")),
        ("doctor", schema_of::<fastpath_doctor::Report>("doctor")),
        ("trace", schema_of::<fastpath_tools::trace::Report>("trace")),
        ("audit", schema_of::<fastpath_tools::audit::Report>("audit")),
        (
            "audit --rescue",
            schema_of::<crate::audit::rescue::Report>("audit --rescue"),
        ),
        ("bench", schema_of::<crate::bench::Report>("bench")),
        ("guard", schema_of::<fastpath_measure::guard::Report>("guard")),
        ("status", schema_of::<crate::attach::status::Status>("status")),
        ("report", schema_of::<fastpath_report::data::Report>("report")),
    ]
}

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

/// Returns JSON in which a value has a line of its own, or several if it is too long for one.
fn as_text(value: &Value, indentation: &str) -> String {
    let line = value.to_string();
    if indentation.len() + line.len() < 150 {
        return line;
    }
    let deeper = format!("{indentation}  ");
    let (brackets, parts): (_, Vec<String>) = match value {
        Value::Array(items) => (["[", "]"], items.iter().map(|item| as_text(item, &deeper)).collect()),
        Value::Object(members) => {
            let member = |(name, member): (&String, &Value)| {
                format!("{}: {}", Value::from(name.as_str()), as_text(member, &deeper))
            };
            (["{", "}"], members.iter().map(member).collect())
        }
        _ => return line,
    };
    let parts = parts.join(&format!(",\n{deeper}"));
    format!("{}\n{deeper}{parts}\n{indentation}{}", brackets[0], brackets[1])
}

/// The counter's features are those of the CPU that fastpath was built for: x86-64's are documented.
#[cfg(target_arch = "x86_64")]
#[test]
fn schemas_match_the_types_and_describe_every_field() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let page = std::fs::read_to_string(docs.join("json.md")).expect("docs");
    let mut undescribed = Vec::new();
    for (command, schema) in documents() {
        let file = format!("schema/{}.json", command.replace(" --", "-"));
        assert!(page.contains(&file), "docs/json.md does not name {file}");
        let text = as_text(&schema, "") + "\n";
        let path = docs.join(&file);
        if std::env::var_os("FASTPATH_WRITE_DOCS").is_some() {
            std::fs::write(&path, &text).expect("docs");
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            written == text,
            "docs/{file} differs from the types: FASTPATH_WRITE_DOCS=1 cargo test -p fastpath --bin fastpath document"
        );
        add_undescribed(command, &schema, &schema["$defs"], &mut undescribed);
    }
    assert!(undescribed.is_empty(), "without a description: {undescribed:#?}");
}
