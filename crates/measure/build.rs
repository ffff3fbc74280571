//! Compiles the prober of 32-bit programs for kernels that run those beside 64-bit ones.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    if let Err(message) = build() {
        eprintln!("fastpath-measure: {message}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    let variable = |name: &str| env::var(name).map_err(|e| format!("{name}: {e}"));
    let out = PathBuf::from(variable("OUT_DIR")?);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("prober/prober.c");
    println!("cargo:rerun-if-changed={}", source.display());
    let binary = out.join("prober");
    let compiled = match variable("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "x86_64" => compile(&source, &binary),
        _ => Ok(false),
    };
    let expression = match compiled {
        Ok(true) => format!("Some(include_bytes!({binary:?}))"),
        Ok(false) => "None".to_owned(),
        Err(message) => {
            println!("cargo:warning=probe --isa i386 is left out: {message}");
            "None".to_owned()
        }
    };
    fs::write(out.join("prober.rs"), expression).map_err(|e| e.to_string())
}

fn compile(source: &Path, binary: &Path) -> Result<bool, String> {
    let compiler = cc::Build::new().get_compiler().path().to_owned();
    let status = Command::new(&compiler)
        .args([
            "-m32",
            "-march=i686",
            "-msse2",
            "-std=gnu11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-ffreestanding",
            "-fno-pie",
            "-fno-stack-protector",
            "-fno-asynchronous-unwind-tables",
            "-U_FORTIFY_SOURCE",
            "-nostdlib",
            "-static",
            "-no-pie",
            "-Wl,--build-id=none",
            "-Wl,--strip-all",
            "-o",
        ])
        .args([binary, source])
        .status()
        .map_err(|e| format!("{}: {e}", compiler.display()))?;
    if status.success() {
        Ok(true)
    } else {
        Err(format!("{} -m32 {}: {status}", compiler.display(), source.display()))
    }
}
