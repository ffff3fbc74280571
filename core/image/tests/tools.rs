//! Debuggers and binary tools accept the image.

mod common;
#[path = "../../../tests/skip.rs"]
mod skip;

use std::process::Command;

use common::*;
use fastpath_image::{Image, Isa};

fn installed(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        skip::skip(format_args!("no {program} on this machine"));
    }
    found
}

#[test]
fn readelf_has_nothing_to_complain_about() {
    if !installed("readelf") {
        return;
    }
    for image in Isa::ALL.into_iter().filter_map(Image::for_isa) {
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.img", image.isa()));
        std::fs::write(&path, image.bytes()).unwrap();
        let output = Command::new("readelf")
            .args(["--wide", "--all", "--lint"])
            .arg(&path)
            .output()
            .unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && complaints.is_empty(),
            "{}: {complaints}",
            image.isa()
        );
    }
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
        skip::skip("gdb may not attach to this process");
        return;
    }
    assert!(
        said.contains("clock_gettime") && said.contains("in section .text"),
        "{output:?}"
    );
}

/// Unwinding by the unwind information, because gdb does not recognize these bytes.
#[test]
fn gdb_sees_through_the_signal_return_of_i386() {
    if !["gdb", "clang", "ld.lld"].into_iter().all(installed) {
        return;
    }
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let temporary = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = temporary.join("signals-i386");
    std::fs::write(temporary.join("isa.h"), fastpath_isa::c::header(Isa::I386)).unwrap();
    let output = Command::new("clang")
        .args([
            "--target=i386-linux-gnu",
            "-O1",
            "-ffreestanding",
            "-fno-stack-protector",
            "-fno-pic",
        ])
        .args([
            "-fno-omit-frame-pointer",
            "-fasynchronous-unwind-tables",
            "-static",
            "-nostdlib",
        ])
        .args(["-fuse-ld=lld", "-Wl,--eh-frame-hdr"])
        .arg("-I")
        .arg(temporary)
        .arg(here.join("tests/guest/signals.c"))
        .arg(here.join("vdso/i386/sigreturn.S"))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new("gdb")
        .args(["--batch", "-nx", "-iex", "set debuginfod enabled off"])
        .args([
            "-ex",
            "handle SIGUSR1 nostop noprint pass",
            "-ex",
            "break handler",
            "-ex",
            "run",
        ])
        .args(["-ex", "bt", "-ex", "continue", "-ex", "bt"])
        .arg(&program)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    if String::from_utf8_lossy(&output.stderr).contains("Operation not permitted") {
        skip::skip("gdb may not trace a program");
        return;
    }
    let frames: Vec<&str> = said.lines().filter(|line| line.starts_with('#')).collect();
    let function = |line: &str| line.split_once(" in ").map_or(line, |(_, name)| name).to_owned();
    for (first, line) in frames
        .iter()
        .enumerate()
        .filter(|(_, line)| line.contains("signal handler called"))
    {
        assert!(line.starts_with("#1"), "{frames:#?}");
        assert!(function(frames[first + 1]).starts_with("interrupted"), "{frames:#?}");
        assert!(function(frames[first + 2]).starts_with("run"), "{frames:#?}");
    }
    let signals = frames
        .iter()
        .filter(|line| line.contains("signal handler called"))
        .count();
    assert_eq!(signals, 2, "{said}");
}
