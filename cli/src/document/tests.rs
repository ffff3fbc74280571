//! Set FASTPATH_WRITE_DOCS=1 to write docs/schema and docs/json.md anew.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};

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
        ("trace", schema_of::<fastpath_trace::Report>("trace")),
        ("audit", schema_of::<fastpath_audit::Report>("audit")),
        (
            "audit --rescue",
            schema_of::<crate::audit::rescue::Report>("audit --rescue"),
        ),
        ("bench", schema_of::<crate::bench::Report>("bench")),
        ("guard", schema_of::<fastpath_guard::Report>("guard")),
        ("status", schema_of::<crate::attach::status::Status>("status")),
        ("report", schema_of::<fastpath_report::data::Report>("report")),
    ]
}

/// Rows of a table from a schema's fields, each followed by those of its contents.
struct Rows<'a> {
    definitions: &'a Map<String, Value>,
    text: String,
    undescribed: Vec<String>,
}

impl Rows<'_> {
    /// Resolves a schema; returns it with the description at the reference, and whether it may be `null`.
    fn meant(&self, schema: &Value) -> (Value, Option<String>, bool) {
        let mut described = schema["description"].as_str().map(str::to_owned);
        let mut schema = schema.clone();
        let mut may_be_null = false;
        loop {
            if let Some(name) = schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/")) {
                schema = self.definitions[name].clone();
            } else if let Some(either) = schema["anyOf"].as_array() {
                may_be_null = either.iter().any(|one| one["type"] == "null");
                let Some(other) = either.iter().find(|one| one["type"] != "null") else {
                    break;
                };
                schema = other.clone();
            } else {
                break;
            }
            described = described.or_else(|| schema["description"].as_str().map(str::to_owned));
        }
        if let Some(types) = schema["type"].as_array().cloned() {
            may_be_null |= types.iter().any(|one| one == "null");
            schema["type"] = types.into_iter().find(|one| one != "null").unwrap_or_default();
        }
        (schema, described, may_be_null)
    }

    fn add_fields(&mut self, prefix: &str, schema: &Value) {
        let none = Map::new();
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        for (name, field) in schema["properties"].as_object().unwrap_or(&none) {
            let is_always_there = required.iter().any(|one| one == name);
            self.add(&format!("{prefix}{name}"), field, is_always_there);
        }
        // An enum with data: one word names the variant, and the other fields exist for some variants.
        let mut words: Vec<String> = Vec::new();
        for one in schema["oneOf"].as_array().into_iter().flatten() {
            let mut one = one.clone();
            one["required"] = Value::Null;
            let Some(fields) = one["properties"].as_object_mut() else {
                continue;
            };
            fields.retain(|name, field| match field["const"].as_str() {
                Some(word) => {
                    words.push(format!("{prefix}{name}"));
                    words.push(format!("`{word}`"));
                    false
                }
                None => true,
            });
            self.add_fields(prefix, &one);
        }
        if let Some(tag) = words.first() {
            let words: Vec<&str> = words.iter().skip(1).step_by(2).map(String::as_str).collect();
            let _ = writeln!(self.text, "| `{tag}` | {} | The variant |", words.join(", "));
        }
    }

    fn add(&mut self, path: &str, field: &Value, is_always_there: bool) {
        let (schema, described, may_be_null) = self.meant(field);
        let Some(described) = described else {
            self.undescribed.push(path.to_owned());
            return;
        };
        let mut kind = kind(&schema);
        let mut inner = schema.clone();
        let mut path = path.to_owned();
        while inner["type"] == "array" {
            path += "[]";
            inner = self.meant(&inner["items"]).0;
            kind = self::kind(&inner);
        }
        if may_be_null {
            kind += " or null";
        }
        if !is_always_there {
            kind += ", may be missing";
        }
        let described = described.replace(['\n', '|'], " ");
        let described = described.trim_end_matches('.').replace("[`", "`").replace("`]", "`");
        let _ = writeln!(self.text, "| `{path}` | {kind} | {described} |");
        self.add_fields(&format!("{path}."), &inner);
        if inner["additionalProperties"].is_object() {
            let (of, ..) = self.meant(&inner["additionalProperties"]);
            self.add_fields(&format!("{path}.*."), &of);
        }
    }
}

/// Returns the kind of a value, in words.
fn kind(schema: &Value) -> String {
    let words: Vec<&str> = match (schema["enum"].as_array(), schema["oneOf"].as_array()) {
        (Some(words), _) => words.iter().filter_map(Value::as_str).collect(),
        (None, Some(each)) => each
            .iter()
            .flat_map(|one| {
                let several = one["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
                one["const"].as_str().into_iter().chain(several)
            })
            .collect(),
        (None, None) => Vec::new(),
    };
    if words.is_empty() {
        return schema["type"].as_str().unwrap_or("object").to_owned();
    }
    let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    words.join(", ")
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// Compares a file with the generated text, or writes it anew.
#[track_caller]
fn is_as_written(path: &Path, text: &str) {
    if std::env::var_os("FASTPATH_WRITE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("docs");
        return std::fs::write(path, text).expect("docs");
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == text,
        "{} differs from the types: FASTPATH_WRITE_DOCS=1 cargo test -p fastpath --bin fastpath document",
        path.display()
    );
}

/// The counter's features are those of the CPU that fastpath was built for: x86-64's are documented.
#[cfg(target_arch = "x86_64")]
#[test]
fn schemas_and_docs_match_the_types() {
    let mut page = include_str!("json.md").to_owned();
    let mut undescribed = Vec::new();
    for (command, schema) in documents() {
        let text = serde_json::to_string_pretty(&schema).expect("a schema") + "\n";
        let file = command.replace(" --", "-");
        is_as_written(&docs().join(format!("schema/{file}.json")), &text);
        let none = Map::new();
        let mut rows = Rows {
            definitions: schema["$defs"].as_object().unwrap_or(&none),
            text: String::new(),
            undescribed: Vec::new(),
        };
        let mut own = schema.clone();
        for common in ["schema", "fastpath", "command", "time_unix"] {
            assert!(own["properties"][common].is_object(), "{command}: {common}");
            own["properties"].as_object_mut().expect("fields").remove(common);
        }
        rows.add_fields("", &own);
        let _ = write!(
            page,
            "\n## `fastpath {command} --json`\n\nJSON Schema: [schema/{file}.json](schema/{file}.json)\n\n\
             | field | value | what it is |\n|---|---|---|\n{}",
            rows.text
        );
        undescribed.extend(rows.undescribed.into_iter().map(|path| format!("{command}: {path}")));
    }
    assert!(
        undescribed.is_empty(),
        "without a description:\n{}",
        undescribed.join("\n")
    );
    is_as_written(&docs().join("json.md"), &page);
}
