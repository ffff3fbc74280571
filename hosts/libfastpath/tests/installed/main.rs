//! libfastpath as `make install` installs it, in a temporary DESTDIR.

mod abi;
mod programs;
#[path = "../../../../tests/skip.rs"]
mod skip;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

fn source() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns where it is installed, with the prefix /usr. Built once.
fn destination() -> &'static Path {
    static DESTINATION: OnceLock<PathBuf> = OnceLock::new();
    DESTINATION.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("installed-{}", std::process::id()));
        let script = source().join("../../scripts/lib");
        run(&mut Command::new(&script));
        run(Command::new(script)
            .arg("install")
            .env("DESTDIR", &directory)
            .env("PREFIX", "/usr"));
        directory
    })
}

fn libraries() -> PathBuf {
    destination().join("usr/lib")
}

/// Returns the output of pkg-config for it.
fn pkg_config(arguments: &[&str]) -> Vec<String> {
    if Command::new("pkg-config").arg("--version").output().is_err() {
        skip::give_up("no pkg-config on this machine");
    }
    let output = run(Command::new("pkg-config")
        .args(arguments)
        .arg("libfastpath")
        .env("PKG_CONFIG_LIBDIR", libraries().join("pkgconfig"))
        .env("PKG_CONFIG_SYSROOT_DIR", destination()));
    text(&output).split_whitespace().map(str::to_owned).collect()
}

/// Runs a command that must succeed.
fn run(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the symbols of the version script, each with its version.
fn versioned() -> Vec<(String, String)> {
    let map = std::fs::read_to_string(source().join("libfastpath.map")).expect("the version script");
    let mut version = String::new();
    let mut symbols = Vec::new();
    for line in map.lines() {
        if let Some(node) = line.strip_suffix(" {") {
            version = node.to_owned();
        } else if let Some(name) = line
            .trim()
            .strip_suffix(';')
            .filter(|name| name.starts_with("fastpath_"))
        {
            symbols.push((name.to_owned(), version.clone()));
        }
    }
    symbols.sort();
    symbols
}
