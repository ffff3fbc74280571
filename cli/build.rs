//! Finds the commit of the source for `--version`: FASTPATH_COMMIT, which scripts/make-packages sets, else that of
//! cargo's package, else git's HEAD if the source is a repository of its own, else none.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=FASTPATH_COMMIT");
    let commit = match std::env::var("FASTPATH_COMMIT") {
        Ok(commit) => Some(commit).filter(|commit| !commit.is_empty()),
        Err(_) => head(),
    };
    if let Some(commit) = commit {
        println!("cargo::rustc-env=FASTPATH_BUILT_COMMIT={commit}");
    }
}

fn head() -> Option<String> {
    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    // {"git": {"sha1": "COMMIT"}, ...}, which cargo adds to a package.
    if let Ok(package) = std::fs::read_to_string(manifest.join(".cargo_vcs_info.json")) {
        let commit = package.split_once("\"sha1\":")?.1.split('"').nth(1)?;
        return Some(commit.to_owned());
    }
    let root = manifest.parent()?.canonicalize().ok()?;
    // The source of a tarball may be inside another project's repository.
    if Path::new(&git(&root, &["--show-toplevel"])?).canonicalize().ok()? != root {
        return None;
    }
    // Every commit and checkout adds a line to the log; HEAD itself only names a branch.
    for name in ["logs/HEAD", "HEAD"] {
        let file = root.join(git(&root, &["--git-path", name])?);
        if file.exists() {
            println!("cargo::rerun-if-changed={}", file.display());
            break;
        }
    }
    git(&root, &["--verify", "HEAD"])
}

fn git(directory: &Path, words: &[&str]) -> Option<String> {
    let done = Command::new("git")
        .arg("rev-parse")
        .args(words)
        .current_dir(directory)
        .output()
        .ok()?;
    let answer = String::from_utf8(done.stdout).ok()?;
    done.status.success().then(|| answer.trim_end().to_owned())
}
