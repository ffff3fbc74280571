//! ARCHITECTURE.md lists every crate of the workspace with its dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

type Dependencies = BTreeMap<String, BTreeSet<String>>;

/// The name of a package as the list shortens it.
fn short(name: &str) -> String {
    match name {
        "fastpath" => "cli",
        _ => name.strip_prefix("fastpath-").unwrap_or(name),
    }
    .to_owned()
}

fn by_the_manifests() -> Dependencies {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata");
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).expect("JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    let packages = metadata["packages"].as_array().expect("packages");
    let entry = |package: &serde_json::Value| {
        let all = package["dependencies"].as_array().expect("dependencies");
        let of_the_workspace = all
            .iter()
            .filter(|dependency| dependency["kind"].is_null() && dependency["path"].is_string());
        let names = of_the_workspace.map(|dependency| short(&text(&dependency["name"])));
        (short(&text(&package["name"])), names.collect())
    };
    packages.iter().map(entry).collect()
}

/// The lines of the list: a crate, an arrow and the dependencies, each a space apart; a remark follows after two
/// spaces.
fn by_the_list() -> Dependencies {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md");
    let text = std::fs::read_to_string(path).expect("ARCHITECTURE.md");
    let list = text.split_once("depends on\n").expect("the list's head").1;
    let lines = list.lines().map(|line| line.strip_prefix("    "));
    let lines = lines.skip_while(Option::is_none).map_while(|line| line);
    let entry = |line: &str| {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        let dependencies = rest.trim_start().strip_prefix("──> ").unwrap_or_default();
        let dependencies = dependencies.split("  ").next().unwrap_or_default();
        (
            name.to_owned(),
            dependencies.split_whitespace().map(str::to_owned).collect(),
        )
    };
    lines.map(entry).collect()
}

#[test]
fn the_list_of_crates_has_every_crate_with_its_dependencies() {
    let (list, manifests) = (by_the_list(), by_the_manifests());
    assert!(manifests.len() > 10, "{manifests:?}");
    assert_eq!(list, manifests);
}
