//! ARCHITECTURE.md lists every crate of the workspace with its dependencies, and the code of each uses all of them.

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

/// Returns the code in a folder, without comments and tests.
fn code(folder: &Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            all += &code(&path);
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
            let text = std::fs::read_to_string(&path).expect("source");
            let product = text.split("\n#[cfg(test)]\nmod ").next().expect("text");
            let lines = product.lines().filter(|line| !line.trim_start().starts_with("//"));
            lines.for_each(|line| all += &format!("{line}\n"));
        }
    }
    all
}

/// Returns the dependencies by the manifests, and those of them that the code names.
fn by_the_manifests_and_the_code() -> [Dependencies; 2] {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata");
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).expect("JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    let mut found = [Dependencies::new(), Dependencies::new()];
    for package in metadata["packages"].as_array().expect("packages") {
        let all = package["dependencies"].as_array().expect("dependencies");
        let of_the_workspace = all
            .iter()
            .filter(|dependency| dependency["kind"].is_null() && dependency["path"].is_string());
        let names: Vec<String> = of_the_workspace.map(|dependency| text(&dependency["name"])).collect();
        let manifest = text(&package["manifest_path"]);
        let code = code(&Path::new(&manifest).with_file_name("src"));
        let is_named = |name: &&String| {
            let name = name.replace('-', "_");
            code.contains(&format!("{name}::")) || code.contains(&format!("use {name} as "))
        };
        let used = names.iter().filter(is_named).map(|name| short(name)).collect();
        let package = short(&text(&package["name"]));
        found[0].insert(package.clone(), names.iter().map(|name| short(name)).collect());
        found[1].insert(package, used);
    }
    found
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
fn the_list_of_crates_has_every_crate_with_the_dependencies_that_its_code_uses() {
    let (list, [manifests, code]) = (by_the_list(), by_the_manifests_and_the_code());
    assert!(manifests.len() > 10, "{manifests:?}");
    assert_eq!(manifests, code, "the manifests name crates that the code does not");
    assert_eq!(list, manifests);
}
