//! What a program gets that depends on this crate.

use std::process::Command;

#[test]
fn a_program_that_reads_a_clock_builds_at_most_eight_crates() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "tree",
        "--offline",
        "--package=libfastpath-clock",
        "--edges=normal,build",
        "--prefix=none",
        "--no-dedupe",
    ]);
    let done = cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo tree");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let listed = String::from_utf8_lossy(&done.stdout).into_owned();
    let crates: std::collections::HashSet<&str> = listed.lines().filter(|line| !line.is_empty()).collect();
    assert!((1..=8).contains(&crates.len()), "{listed}");
}
