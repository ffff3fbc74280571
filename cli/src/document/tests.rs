use serde_json::Value;

use super::{COMMANDS, schema};

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
    let page = include_str!("../../../docs/json.md");
    let mut undescribed = Vec::new();
    for document in COMMANDS {
        assert!(page.contains(&format!("`fastpath schema {document}`")), "{document}");
        let schema = schema(document).to_value();
        let title = format!("fastpath {} --json", document.replace('-', " --"));
        assert_eq!(schema["title"], title);
        add_undescribed(document, &schema, &schema["$defs"], &mut undescribed);
    }
    assert!(undescribed.is_empty(), "without a description: {undescribed:#?}");
}
