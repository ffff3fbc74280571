//! Makes the image: compiles `vdso/` for the target's ISA, trims the ELF file, checks it, and writes down where in it are the
//! things that have to be filled in for each process.

#[path = "../src/check.rs"]
#[allow(dead_code)]
mod check;
mod compile;
mod constants;
#[path = "../src/elf.rs"]
#[allow(dead_code)]
mod elf;
mod isa;
mod layout;
mod trim;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            for line in message.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    let out = PathBuf::from(env("OUT_DIR")?);
    let manifest = env("CARGO_MANIFEST_DIR")?;
    let root = Path::new(&manifest)
        .ancestors()
        .nth(2)
        .ok_or("crates/image is not in its workspace")?;
    let source = root.join("vdso");
    println!("cargo::rerun-if-changed={}", source.display());
    println!("cargo::rerun-if-env-changed={}", compile::LINKER_VARIABLE);

    let isa = isa::of_target(&env("CARGO_CFG_TARGET_ARCH")?)?;
    layout::write(&out)?;
    let compiler = cc::Build::new()
        .no_default_flags(true)
        .try_get_compiler()
        .map_err(|error| format!("{error}\n{}", compile::INSTALL_HINT))?;
    let linked = compile::link(
        compiler.path(),
        std::env::var(compile::LINKER_VARIABLE).ok().as_deref(),
        &isa,
        &source,
        &out,
    )?;
    let image = trim::trim(&linked)?;

    let contract = (isa.contract)(fastpath_page::layout::ABI);
    let violations = check::check(&image, &contract);
    if !violations.is_empty() {
        let list: String = violations.iter().map(|violation| format!("\n  {violation}")).collect();
        return Err(format!(
            "{} made a vDSO image that programs could not load:{list}",
            compiler.path().display()
        ));
    }
    constants::write(&out, &linked, &image, &isa)
}

fn env(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_| format!("{name} is not set: this is a build script, for cargo to run"))
}
