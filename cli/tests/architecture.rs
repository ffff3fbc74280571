//! ARCHITECTURE.md lists every crate of the workspace with its dependencies, and the code of each uses all of them; and the
//! groups, with what the crates of each may use. Text is
//! printed by the few modules that make it safe.

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
        let mut files = Vec::new();
        code(&Path::new(&manifest).with_file_name("src"), &mut files);
        let is_named = |name: &&String| {
            let name = match &***name {
                "libfastpath" => "fastpath".to_owned(),
                name => name.replace('-', "_"),
            };
            let [path, renamed] = [format!("{name}::"), format!("use {name} as ")];
            files
                .iter()
                .any(|(_, code)| code.contains(&path) || code.contains(&renamed))
        };
        let used = names.iter().filter(is_named).map(|name| short(name)).collect();
        let package = short(&text(&package["name"]));
        found[0].insert(package.clone(), names.iter().map(|name| short(name)).collect());
        found[1].insert(package, used);
    }
    found
}

/// The lines of the list under this head: a name, an arrow and what it depends on, each a space apart; a remark follows
/// after two spaces.
fn by_the_list(head: &str) -> Dependencies {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md");
    let text = std::fs::read_to_string(path).expect("ARCHITECTURE.md");
    let list = text.split_once(head).expect("the list's head").1;
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
    let (list, [manifests, code]) = (by_the_list("depends on\n"), by_the_manifests_and_the_code());
    assert!(manifests.len() > 10, "{manifests:?}");
    assert_eq!(manifests, code, "the manifests name crates that the code does not");
    assert_eq!(list, manifests);
}

#[test]
fn each_crate_uses_only_what_its_group_may_use() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (groups, crates) = (by_the_list("may use\n"), by_the_list("depends on\n"));
    let group_of = |name: &str| {
        groups
            .keys()
            .find(|group| root.join(group).join(name).join("Cargo.toml").exists())
    };
    let mut count = 0;
    for (name, dependencies) in &crates {
        let group = match name.as_str() {
            "cli" => "cli",
            name => match group_of(name) {
                Some(group) => group,
                // An example, or a part of the lab.
                None => continue,
            },
        };
        for used in dependencies {
            let of = group_of(used).expect("the group of a crate");
            let allowed = &groups[group];
            let is_allowed = group == of || allowed.contains(of) || allowed.contains(&format!("{of}/{used}"));
            assert!(is_allowed, "{group}/{name} uses {of}/{used}");
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
}

/// The modules that print. Each makes its text safe first, or prints text without foreign parts.
const PRINT: [&str; 5] = [
    "cli/src/bin/fastpath-nri.rs",
    "cli/src/bin/fastpathd.rs",
    "cli/src/output.rs",
    "service/daemon/src/log.rs",
    "service/nri/src/log.rs",
];
/// The module that makes text safe.
const SAFE: &str = "core/os/src/printable.rs";

/// Returns the Rust files below a directory, with their code before the tests, without comments.
fn code(directory: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !matches!(&*name, "tests" | "build" | "examples" | "simulation") {
            code(&path, found);
        } else if name.ends_with(".rs") && !matches!(&*name, "tests.rs" | "simulation.rs" | "build.rs") {
            let text = std::fs::read_to_string(&path).expect("a file");
            let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let code = lines.flat_map(|line| [line, "\n"]).collect();
            found.push((path.to_string_lossy().into_owned(), code));
        }
    }
}

/// The module that opens the files that other processes and users name.
const DOOR: &str = "core/os/src/foreign.rs";
/// The modules that map memory: that of this process, memory that is sealed, or registers of a device.
const MAP: [&str; 9] = [
    "instruments/measure/src/rate.rs",
    "service/helper/src/process.rs",
    "service/helper/src/trial/i386.rs",
    "service/helper/src/trial/mod.rs",
    "surgery/inject/src/in_process.rs",
    "surgery/inject/src/exec/mailbox.rs",
    "surgery/inject/src/plan/region.rs",
    "core/os/src/bpf/ring.rs",
    "core/publish/src/shared_page.rs",
];
/// The module that resolves paths as a thread does, with handles.
const VIEW: &str = "surgery/inject/src/target/view.rs";

#[test]
fn files_of_other_processes_are_opened_by_one_module_and_never_mapped() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = root.canonicalize().expect("the workspace");
    let mut files = Vec::new();
    for directory in ["cli/src", "core", "surgery", "service", "instruments", "hosts"] {
        code(&root.join(directory), &mut files);
    }
    let mut bypasses = Vec::new();
    for (path, code) in &files {
        let path = path
            .strip_prefix(&*root.to_string_lossy())
            .unwrap_or(path)
            .trim_start_matches('/');
        for line in code.lines().filter(|_| path != DOOR) {
            let opens = ["File::open", ".open(", "fs::read(", "read_to_string("];
            let is_opened = |name: &str| line.contains(name) && opens.iter().any(|open| line.contains(open));
            let names = ["map_files", "}/root{", "}/root/"]
                .iter()
                .any(|name| line.contains(name));
            let is_root = line.contains("}/root\"") && !(path == VIEW || line.contains("let root = "));
            if names || is_root || is_opened("/exe\"") {
                bypasses.push(format!("{path} opens a file of another process: {}", line.trim()));
            }
            if ["libc::mmap(", "mmap_anonymous(", "memmap"]
                .iter()
                .any(|map| line.contains(map))
                && !MAP.contains(&path)
            {
                bypasses.push(format!("{path} maps memory: {}", line.trim()));
            }
        }
    }
    assert!(bypasses.is_empty(), "{bypasses:#?}; see {DOOR}");
}

#[test]
fn text_is_printed_only_by_the_modules_that_make_it_safe_and_by_one_function() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = root.canonicalize().expect("the workspace");
    let mut files = Vec::new();
    for directory in ["cli/src", "core", "surgery", "service", "instruments", "hosts"] {
        code(&root.join(directory), &mut files);
    }
    assert!(files.len() > 200, "{}", files.len());
    let prints = [
        "println!(",
        "print!(",
        "stdout().write",
        "stdout().lock",
        "stderr().write",
        "stderr().lock",
    ];
    let also = [
        "(std::io::stdout()",
        "(std::io::stderr()",
        "(io::stdout()",
        "(io::stderr()",
    ];
    let escapes = ["is_control", "escape_default", "escape_debug", "escape_unicode"];
    let mut bypasses = Vec::new();
    for (path, code) in &files {
        let path = path
            .strip_prefix(&*root.to_string_lossy())
            .unwrap_or(path)
            .trim_start_matches('/');
        for line in code.lines() {
            let is_print = prints.iter().chain(&also).any(|print| line.contains(print));
            if is_print && !PRINT.contains(&path) {
                bypasses.push(format!("{path} prints by itself: {}", line.trim()));
            }
            if escapes.iter().any(|escape| line.contains(escape)) && path != SAFE {
                bypasses.push(format!("{path} makes text safe by itself: {}", line.trim()));
            }
        }
    }
    assert!(bypasses.is_empty(), "{bypasses:#?}; see {SAFE}");
}
