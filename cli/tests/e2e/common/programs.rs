//! The programs of tests/programs, and small programs of these tests.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

use super::skip::skip;

fn root() -> PathBuf {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    tree.canonicalize().expect("this tree")
}

/// Makes `directory` in the tree's folder `from`. Make knows no names with a space in them, so this tree is not part of it.
pub fn make(from: &str, directory: &Path) {
    let root = root();
    let out = match directory.strip_prefix(&root) {
        Ok(inside) => Path::new(if from.contains('/') { "../.." } else { ".." }).join(inside),
        Err(_) => directory.to_owned(),
    };
    let made = Command::new("make")
        .args(["-s", "-C"])
        .arg(root.join(from))
        .arg(format!("OUT={}", out.display()))
        .status();
    assert!(made.is_ok_and(|status| status.success()), "make -C {from}");
}

/// The directory of the test programs, which are built now if that was not done.
fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let given = std::env::var_os("FASTPATH_PROGRAMS").map(PathBuf::from);
        let directory = given.unwrap_or_else(|| root().join("target/programs"));
        if !directory.join("programs").exists() {
            make("tests/programs", &directory);
        }
        directory.canonicalize().expect("the programs' directory")
    })
}

/// The path of a test program. Returns `None`, and skips the test, if it could not be built here.
pub fn program(name: &str) -> Option<String> {
    let list = std::fs::read_to_string(directory().join("programs")).expect("the list of programs");
    let left_out = list
        .lines()
        .find_map(|l| l.strip_prefix("left-out ")?.strip_prefix(name)?.strip_prefix(": "));
    if let Some(reason) = left_out {
        skip(reason);
        return None;
    }
    assert!(list.lines().any(|l| l == format!("built {name}")), "{name} is unknown");
    Some(directory().join(name).to_str().expect("UTF-8").to_owned())
}

/// The path of a 32-bit test program. Returns `None` also if this kernel starts no such program, or has none: then
/// without a message.
pub fn program_32(name: &str) -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let bare = program("thirty-two-bit")?;
    let path = program(name)?;
    let starts = Command::new(bare)
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.code() == Some(32));
    if !starts {
        skip("this kernel runs no 32-bit program");
        return None;
    }
    Some(path)
}

/// Copies a program to a path, with this mode; returns the path.
#[track_caller]
pub fn install(from: impl AsRef<Path>, to: impl AsRef<Path>, mode: u32) -> String {
    let from = from.as_ref();
    install_from(
        File::open(from).unwrap_or_else(|e| panic!("{}: {e}", from.display())),
        to.as_ref(),
        mode,
    )
}

/// Writes a script that every user may execute; returns its path.
#[track_caller]
pub fn install_script(text: impl AsRef<[u8]>, to: impl AsRef<Path>) -> String {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(text.as_ref())
        .and_then(|()| file.rewind())
        .expect("write");
    install_from(file, to.as_ref(), 0o755)
}

/// The copy is made by another process: if the file were open for writing in this one, a child that another test forks
/// meanwhile would have it open too, until its exec, and executing the file would fail with ETXTBSY.
#[track_caller]
fn install_from(contents: File, to: &Path, mode: u32) -> String {
    let to = to.to_str().expect("UTF-8");
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat >\"$0\" && chmod \"$1\" \"$0\"", to, &format!("{mode:o}")]);
    let made = shell.stdin(contents).status();
    assert!(made.is_ok_and(|status| status.success()), "{to}");
    to.to_owned()
}

/// The path of `helpers/NAME.c`, or of `helpers/NAME.cc` for g++, compiled by `compiler`. Returns `None`, and skips the test, if the compiler is
/// missing.
pub fn helper_program(name: &str, compiler: &str, flags: &[&str]) -> Option<String> {
    // Each is compiled once: another test may be running it.
    static BUILT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut known = BUILT.lock().unwrap_or_else(|e| e.into_inner());
    super::tool(compiler)?;
    let (suffix, standard) = match compiler {
        "clang++" => ("cc", "-std=c++17"),
        _ => ("c", "-std=c11"),
    };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/e2e/helpers/{name}.{suffix}"));
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{compiler}{}", flags.concat()));
    let path = built.to_str().expect("UTF-8").to_owned();
    if known.contains(&built) {
        return Some(path);
    }
    let compiled = Command::new(compiler)
        .args([
            standard,
            "-D_GNU_SOURCE",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
        ])
        .args(flags)
        .arg("-o")
        .args([&built, &source])
        .status();
    assert!(
        compiled.is_ok_and(|status| status.success()),
        "{compiler} {name}.{suffix}"
    );
    known.insert(built);
    Some(path)
}

/// The path of `helpers/NAME.go`, built by `go`, which is the path of Go's command.
pub fn go_program(go: &str, name: &str) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/e2e/helpers/{name}.go"));
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-go"));
    let mut build = Command::new(go);
    build.args(["build", "-o"]).args([&built, &source]);
    build.envs([("CGO_ENABLED", "0"), ("GOTOOLCHAIN", "local"), ("GO111MODULE", "off")]);
    super::finish(build).expect_success();
    built.to_str().expect("UTF-8").to_owned()
}
