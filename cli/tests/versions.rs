//! The version is the same everywhere, the changelog begins with it, the build finds the commit of its source,
//! and every crate can be packaged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the repository")
        .to_owned()
}

/// Returns the files below a folder of the repository, without binaries.
fn files(folder: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                found.push((path, text));
            }
        }
    }
    found
}

/// Returns the version at the start of a text: `0.1.0` of `0.1.0, for x86-64`.
fn version_at(text: &str) -> Option<&str> {
    let text = text.trim_start_matches([' ', '"', '\'', 'v', '[']);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let version = text[..end].trim_end_matches('.');
    let is_version = version.split('.').count() == 3 && version.split('.').all(|part| !part.is_empty());
    is_version.then_some(version)
}

#[test]
fn every_file_that_states_the_version_states_the_same() {
    let mut stated = Vec::new();
    let marks = [
        "fastpath:",
        "fastpath-",
        "fastpath-chart-",
        "libfastpath.so.",
        "appVersion:",
    ];
    for folder in ["deploy", "docs", "packaging", "scripts"] {
        for (path, text) in files(folder) {
            let is_chart = path.ends_with("Chart.yaml");
            let marks = marks.iter().chain(is_chart.then_some(&"\nversion:"));
            for mark in marks {
                let versions = text.split(mark).skip(1).filter_map(version_at);
                stated.extend(versions.map(|version| (path.clone(), version.to_owned())));
            }
        }
    }
    let header = std::fs::read_to_string(root().join("hosts/libfastpath/include/fastpath.h")).expect("the header");
    let number = |name: &str| {
        let define = format!("#define FASTPATH_VERSION_{name} ");
        let rest = header.split_once(&define).expect("a version").1;
        rest.lines().next().expect("a line").trim().to_owned()
    };
    let of_header = ["MAJOR", "MINOR", "PATCH"].map(number).join(".");
    stated.push((PathBuf::from("fastpath.h"), of_header));
    let count = |name: &str| stated.iter().filter(|(path, _)| path.ends_with(name)).count();
    assert!(count("docs/libfastpath.md") > 0, "{stated:?}");
    // A chart has its own version, and that of the program.
    let charts = files("deploy")
        .into_iter()
        .filter(|(path, _)| path.ends_with("Chart.yaml"));
    assert_eq!(count("Chart.yaml"), 2 * charts.count(), "{stated:?}");
    stated.retain(|(_, version)| version != VERSION);
    assert!(stated.is_empty(), "these are not {VERSION}: {stated:#?}");
}

/// Returns the commit that `cli/build.rs` finds for a source in this directory.
fn commit_found(source: &Path, variable: Option<&str>) -> Option<String> {
    let mut command = Command::new(source.join("build-script"));
    command
        .env("CARGO_MANIFEST_DIR", source.join("cli"))
        .env_remove("FASTPATH_COMMIT");
    command.envs(variable.map(|commit| ("FASTPATH_COMMIT", commit)));
    let done = command.output().expect("the build script");
    assert!(done.status.success(), "{done:?}");
    let said = String::from_utf8(done.stdout).expect("UTF-8");
    let commit = said
        .lines()
        .find_map(|line| line.strip_prefix("cargo::rustc-env=FASTPATH_BUILT_COMMIT="));
    commit.map(str::to_owned)
}

#[test]
fn the_commit_is_never_that_of_another_repository() {
    let directory = tempfile::tempdir().expect("a directory");
    let outer = directory.path();
    let source = outer.join("fastpath-0.1.0");
    std::fs::create_dir_all(source.join("cli")).expect("a directory");
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2024", "-o"]).arg(source.join("build-script"));
    rustc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("build.rs"));
    assert!(rustc.status().expect("rustc").success());
    let git = |place: &Path, words: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=a", "-c", "user.email=a@b", "-C"])
            .arg(place)
            .args(words);
        let done = git.output().expect("git");
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).expect("UTF-8").trim_end().to_owned()
    };
    assert_eq!(commit_found(&source, None), None);
    assert_eq!(commit_found(&source, Some("abc")), Some("abc".to_owned()));
    for place in [outer, source.as_path()] {
        git(place, &["init", "-q"]);
        git(place, &["commit", "-q", "--allow-empty", "-m", "a commit"]);
        let head = git(place, &["rev-parse", "HEAD"]);
        let expected = (place == source).then_some(head);
        assert_eq!(commit_found(&source, None), expected);
    }
    assert_eq!(commit_found(&source, Some("")), None);
    let package = "{\n  \"git\": {\n    \"sha1\": \"def\"\n  },\n  \"path_in_vcs\": \"cli\"\n}";
    std::fs::write(source.join("cli/.cargo_vcs_info.json"), package).expect("write");
    assert_eq!(commit_found(&source, None), Some("def".to_owned()));
}

/// Returns the files in each package that `cargo package` makes of the workspace, by crate. One crate is used from a
/// checkout only: it compiles sources of others.
fn packages() -> BTreeMap<String, Vec<String>> {
    let target = tempfile::tempdir().expect("a directory");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "package",
        "--workspace",
        "--exclude=libfastpath-clock",
        "--no-verify",
        "--offline",
        "--quiet",
        "--allow-dirty",
    ]);
    cargo.current_dir(root()).env("CARGO_TARGET_DIR", target.path());
    let done = cargo.output().expect("cargo package");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let made = std::fs::read_dir(target.path().join("package"))
        .expect("a folder")
        .flatten();
    let crates = made
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "crate"));
    let files = |package: PathBuf| {
        let listed = Command::new("tar").arg("tzf").arg(&package).output().expect("tar");
        let name = package
            .file_stem()
            .and_then(|name| name.to_str())
            .expect("a name")
            .to_owned();
        let lines = String::from_utf8(listed.stdout).expect("UTF-8");
        let files = lines
            .lines()
            .map(|line| line.trim_start_matches(&format!("{name}/")).to_owned());
        (
            name.trim_end_matches(&format!("-{VERSION}")).to_owned(),
            files.collect(),
        )
    };
    crates.map(files).collect()
}

#[test]
fn every_crate_can_be_packaged_with_what_its_build_reads() {
    let packages = packages();
    for (name, files) in [
        (
            "fastpath",
            &["build.rs", "src/main.rs", "src/bin/fastpathd.rs", "README.md"][..],
        ),
        ("fastpath-image", &["vdso/clock_gettime.c", "vdso/page.h"]),
        ("fastpath-inject", &["hook/hook.c"]),
    ] {
        let package = packages
            .get(name)
            .unwrap_or_else(|| panic!("no package {name}: {:?}", packages.keys()));
        for file in files {
            assert!(
                package.iter().any(|path| path == file),
                "{name} has no {file}: {package:#?}"
            );
        }
    }
}

#[test]
fn workflows_name_actions_by_their_hash() {
    let mut count = 0;
    for file in std::fs::read_dir(root().join(".github/workflows"))
        .expect("workflows")
        .flatten()
    {
        let text = std::fs::read_to_string(file.path()).expect("a workflow");
        for action in text.lines().filter_map(|line| line.split_once("uses: ")) {
            let hash = action.1.split_once('@').map_or("", |(_, version)| version);
            let hash = hash.split(' ').next().unwrap_or_default();
            assert!(
                hash.len() == 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()),
                "{}: {}",
                file.path().display(),
                action.1
            );
            count += 1;
        }
    }
    assert!(count > 0, "no workflow uses an action");
}
