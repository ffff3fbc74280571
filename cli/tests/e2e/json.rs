//! Every command's JSON document begins with the same fields, and has no field that its schema does not list.

use serde_json::Value;

use crate::common::{fastpath, finish};

/// Adds the paths of fields that a schema does not list.
fn add_unlisted(path: &str, value: &Value, schema: &Value, definitions: &Value, unlisted: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let path = format!("{path}.{name}");
                let lists =
                    |one: &&Value| !one["properties"][name].is_null() || one["additionalProperties"].is_object();
                let Some(variant) = variants(schema, definitions).into_iter().find(lists) else {
                    unlisted.push(path);
                    continue;
                };
                let field = &variant["properties"][name];
                let field = if field.is_null() {
                    &variant["additionalProperties"]
                } else {
                    field
                };
                add_unlisted(&path, member, field, definitions, unlisted);
            }
        }
        Value::Array(items) => {
            let lists = |one: &&Value| !one["items"].is_null();
            let of = variants(schema, definitions).into_iter().find(lists);
            let of = of.map_or(&Value::Null, |array| &array["items"]);
            for item in items {
                add_unlisted(&format!("{path}[]"), item, of, definitions, unlisted);
            }
        }
        _ => {}
    }
}

/// Returns a schema and all to which it refers or that it allows.
fn variants<'a>(schema: &'a Value, definitions: &'a Value) -> Vec<&'a Value> {
    let name = schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/"));
    let either = ["anyOf", "oneOf"]
        .into_iter()
        .flat_map(|key| schema[key].as_array().into_iter().flatten());
    let inner = either.chain(name.map(|name| &definitions[name]));
    let inner = inner.flat_map(|one| variants(one, definitions));
    [schema].into_iter().chain(inner).collect()
}

#[track_caller]
fn is_as_its_schema_lists(arguments: &[&str], codes: &[i32]) {
    let command = arguments[0];
    let outcome = finish(fastpath(arguments));
    assert!(
        outcome.status.code().is_some_and(|code| codes.contains(&code)),
        "{outcome:?}"
    );
    // A traced program has its own output.
    let text = if outcome.out.is_empty() {
        outcome.err
    } else {
        outcome.out
    };
    assert_eq!(text.lines().count(), 1, "{text}");
    let mut document: Value = serde_json::from_str(&text).expect("JSON");
    let own = document.as_object_mut().expect("an object");
    assert_eq!(own.remove("schema"), Some(1.into()), "{command}");
    assert_eq!(
        own.remove("fastpath"),
        Some(env!("CARGO_PKG_VERSION").into()),
        "{command}"
    );
    assert_eq!(own.remove("command"), Some(command.into()));
    let written = own.remove("time_unix").and_then(|time| time.as_u64()).expect("a time");
    let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
    assert!(
        (written..=written + 600).contains(&now),
        "{command}: {written}, now {now}"
    );
    assert!(!own.is_empty(), "{command}");
    let schema = finish(fastpath(&["schema", command])).expect_success().out;
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    let mut unlisted = Vec::new();
    add_unlisted(command, &document, &schema, &schema["$defs"], &mut unlisted);
    assert!(unlisted.is_empty(), "{unlisted:?}");
}

#[test]
fn every_document_begins_with_the_same_fields_and_its_schema_lists_all() {
    let reads = format!("{} probe >/dev/null", env!("CARGO_BIN_EXE_fastpath"));
    let own_pid = std::process::id().to_string();
    is_as_its_schema_lists(&["probe", "--json"], &[0]);
    is_as_its_schema_lists(&["doctor", "--json", &own_pid], &[0, 1, 69]);
    is_as_its_schema_lists(&["status", "--json"], &[0]);
    is_as_its_schema_lists(&["guard", "--json"], &[0, 1, 69]);
    is_as_its_schema_lists(&["audit", "--json", "/bin/true"], &[0, 1]);
    is_as_its_schema_lists(&["bench", "--json", "--rounds", "3"], &[0]);
    is_as_its_schema_lists(&["report", "--json", "--trace", "0"], &[0]);
    is_as_its_schema_lists(&["trace", "--json", "--by", "ptrace", "--", "sh", "-c", &reads], &[0]);
}
