//! Makes the images: compiles `vdso/` for each ISA, trims the ELF file, checks it, and records the offsets of what an
//! instance fills in for each process.
//!
//! The target's own image is made by the C compiler that cargo's other crates would use. The others need clang and lld,
//! which compile for every ISA, and are left out, with a warning, without these.

mod constants;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fastpath_elf::{Isa, check};
use fastpath_toolchain::{LINKER_VARIABLE, Toolchain};

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
    println!("cargo::rerun-if-env-changed={}", LINKER_VARIABLE);

    let arch = env("CARGO_CFG_TARGET_ARCH")?;
    let host = Isa::of_name(&arch)
        .ok_or_else(|| format!("fastpath has no vDSO image for {arch} yet (see docs/porting.md)"))?;

    let mut images = vec![String::from("None"); Isa::ALL.len()];
    let own = Toolchain::of_target()?;
    let text = image(&own, host, &source, &out)?;
    let mut constants = format!("/// The target's own.\npub static HOST: Image = {text};\n");
    images[host as usize] = format!("Some({text})");
    let foreign = Isa::ALL.into_iter().filter(|isa| *isa != host);
    if let Some(clang) = Toolchain::clang_and_lld() {
        for isa in foreign {
            images[isa as usize] = format!("Some({})", image(&clang, isa, &source, &out)?);
        }
    } else {
        let names: Vec<_> = foreign.map(Isa::name).collect();
        watch_for_programs();
        println!(
            "cargo::warning=the vDSO images for {} are left out, and with them whatever serves such programs: they are made by clang \
             and lld (Debian, Ubuntu: apt-get install clang lld)",
            names.join(", ")
        );
    }
    constants += &format!(
        "/// In the order of the ISAs.\npub static IMAGES: [Option<Image>; {}] = [{}];\n",
        images.len(),
        images.join(", ")
    );
    let path = out.join("built.rs");
    std::fs::write(&path, constants).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Makes cargo run this script again when a program is installed: the modification time of its directory changes. For a
/// path that does not exist, cargo would run it at each build.
fn watch_for_programs() {
    println!("cargo::rerun-if-env-changed=PATH");
    let path = std::env::var_os("PATH").unwrap_or_default();
    for directory in std::env::split_paths(&path).filter(|directory| directory.is_dir()) {
        println!("cargo::rerun-if-changed={}", directory.display());
    }
}

/// Makes one image, and returns an expression for it.
fn image(toolchain: &Toolchain, isa: Isa, source: &Path, out: &Path) -> Result<String, String> {
    let linked = fastpath_toolchain::link(toolchain, isa, source, out)?;
    let image = fastpath_toolchain::trim(&linked)?;
    let contract = check::Contract::of(isa, fastpath_page::layout::ABI);
    let violations = check::check(&image, &contract);
    if !violations.is_empty() {
        let list: String = violations.iter().map(|violation| format!("\n  {violation}")).collect();
        return Err(format!(
            "{toolchain} made a vDSO image for {isa} that programs could not load:{list}"
        ));
    }
    constants::describe(out, &linked, &image, isa)
}

fn env(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_| format!("{name} is not set: this is a build script, for cargo to run"))
}
