//! What people look at a process with accepts the image.

mod common;

use std::process::Command;

use common::*;
use fastpath_image::Image;

fn installed(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("SKIPPED: {program} is not installed");
    }
    found
}

#[test]
fn readelf_has_nothing_to_complain_about() {
    if !installed("readelf") {
        return;
    }
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("vdso.img");
    std::fs::write(&path, Image::bytes()).unwrap();
    let output = Command::new("readelf")
        .args(["--wide", "--all", "--lint"])
        .arg(&path)
        .output()
        .unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{complaints}");
}

/// gdb reads a vDSO from memory, section headers included, when it attaches to a process.
#[test]
fn gdb_reads_symbols_and_unwind_information_from_memory() {
    if !installed("gdb") {
        return;
    }
    let mapped = Mapped::with_kernel();
    let function = mapped.address("__vdso_clock_gettime").unwrap();
    let image = function & !(4096 - 1);
    let output = Command::new("gdb")
        .args(["--batch", "-nx", "-iex", "set debuginfod enabled off", "-p"])
        .arg(std::process::id().to_string())
        .args(["-ex", &format!("add-symbol-file-from-memory {image:#x}")])
        .args(["-ex", &format!("info symbol {function:#x}")])
        .args(["-ex", &format!("maintenance print dwarf-cfi {function:#x}")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    if said.contains("ptrace: Operation not permitted") || String::from_utf8_lossy(&output.stderr).contains("ptrace:") {
        eprintln!("SKIPPED: gdb may not attach to this process");
        return;
    }
    assert!(
        said.contains("clock_gettime") && said.contains("in section .text"),
        "{output:?}"
    );
}
