//! Every command's JSON document begins with the same fields, and has no field that docs/json.md does not list.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::common::{fastpath, finish};

const PAGE: &str = include_str!("../../../docs/json.md");

/// Returns the fields that the page lists for this command.
fn documented(command: &str) -> BTreeSet<String> {
    let title = format!("\n## `fastpath {command} --json`\n");
    let (_, rest) = PAGE.split_once(&title).expect("a section");
    let section = rest.split("\n## ").next().expect("its text");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next())
        .map(str::to_owned)
        .collect()
}

/// Adds the fields of a document, by their paths.
fn add_fields(prefix: &str, value: &Value, fields: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let path = if prefix.is_empty() {
                    name.clone()
                } else {
                    format!("{prefix}.{name}")
                };
                add_fields(&path, member, fields);
            }
        }
        Value::Array(items) => {
            items
                .iter()
                .for_each(|item| add_fields(&format!("{prefix}[]"), item, fields));
        }
        Value::Null => {}
        _ => {
            fields.insert(prefix.to_owned());
        }
    }
}

#[track_caller]
fn is_as_documented(arguments: &[&str], codes: &[i32]) {
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
    let mut fields = BTreeSet::new();
    add_fields("", &document, &mut fields);
    assert!(!fields.is_empty(), "{command}");
    let undocumented: Vec<_> = fields.difference(&documented(command)).cloned().collect();
    assert!(undocumented.is_empty(), "{command}: {undocumented:?}");
}

#[test]
fn every_document_begins_with_the_same_fields_and_all_are_documented() {
    let reads = format!("{} probe >/dev/null", env!("CARGO_BIN_EXE_fastpath"));
    let own_pid = std::process::id().to_string();
    is_as_documented(&["probe", "--json"], &[0]);
    is_as_documented(&["doctor", "--json", &own_pid], &[0, 1, 69]);
    is_as_documented(&["status", "--json"], &[0]);
    is_as_documented(&["guard", "--json"], &[0, 1, 69]);
    is_as_documented(&["audit", "--json", "/bin/true"], &[0, 1]);
    is_as_documented(&["bench", "--json", "--rounds", "3"], &[0]);
    is_as_documented(&["report", "--json", "--trace", "0"], &[0]);
    is_as_documented(&["trace", "--json", "--by", "ptrace", "--", "sh", "-c", &reads], &[0]);
}
