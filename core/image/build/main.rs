//! Makes the images: compiles `vdso/` for each ISA, trims the ELF file, checks it, and records the offsets of what an
//! instance fills in for each process.
//!
//! The target's own image is made by the C compiler that cargo's other crates would use. The others need clang and lld,
//! which compile for every ISA, and are left out, with a warning, without these.

mod constants;
// The build uses the checker and what that needs.
#[allow(dead_code, unused_imports, unreachable_pub)]
#[path = "../src/elf/mod.rs"]
mod elf;
mod toolchain;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::elf::{Isa, check};
use crate::toolchain::{Audience, LINKER_VARIABLE, Toolchain};

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
    // A link in the repository: a package has only what is below its own folder.
    let source = Path::new(&env("CARGO_MANIFEST_DIR")?).join("vdso");
    println!("cargo:vdso={}", source.display());
    println!("cargo::rerun-if-changed={}", source.display());
    println!("cargo::rerun-if-env-changed={}", LINKER_VARIABLE);

    let arch = env("CARGO_CFG_TARGET_ARCH")?;
    let host = Isa::of_name(&arch)
        .ok_or_else(|| format!("fastpath has no vDSO image for {arch} yet (see docs/porting.md)"))?;

    let mut images = vec![String::from("None"); Isa::ALL.len()];
    let mut images_for_hosts = images.clone();
    let own = Toolchain::of_target()?;
    let text = image(&own, host, Audience::Native, &source, &out)?;
    let mut constants = format!("/// The target's own.\npub(crate) static HOST: Image = {text};\n");
    images[host as usize] = format!("Some({text})");
    let mut add_for_hosts = |toolchain: &Toolchain, isa: Isa| {
        if isa.facts().answered.is_some() {
            let text = image(toolchain, isa, Audience::Hosts, &source, &out)?;
            images_for_hosts[isa as usize] = format!("Some({text})");
        }
        Ok::<(), String>(())
    };
    add_for_hosts(&own, host)?;
    let foreign = Isa::ALL.into_iter().filter(|isa| *isa != host);
    if let Some(clang) = Toolchain::clang_and_lld() {
        for isa in foreign {
            let text = image(&clang, isa, Audience::Native, &source, &out)?;
            images[isa as usize] = format!("Some({text})");
            add_for_hosts(&clang, isa)?;
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
    for (name, list) in [("IMAGES", images), ("IMAGES_FOR_HOSTS", images_for_hosts)] {
        constants += &format!(
            "/// In the order of the ISAs.\npub(crate) static {name}: [Option<Image>; {}] = [{}];\n",
            list.len(),
            list.join(", ")
        );
    }
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
fn image(toolchain: &Toolchain, isa: Isa, audience: Audience, source: &Path, out: &Path) -> Result<String, String> {
    let linked = crate::toolchain::link(toolchain, isa, audience, source, out)?;
    let image = crate::toolchain::trim(&linked)?;
    let contract = match audience {
        Audience::Native => check::Contract::for_isa(isa, fastpath_page::layout::ABI),
        Audience::Hosts => check::Contract::for_hosts(isa, fastpath_page::layout::ABI),
    };
    let violations = check::check(&image, &contract);
    if !violations.is_empty() {
        let list: String = violations.iter().map(|violation| format!("\n  {violation}")).collect();
        return Err(format!(
            "{toolchain} made a vDSO image for {isa} that programs could not load:{list}"
        ));
    }
    constants::describe(out, &linked, &image, isa, audience)
}

fn env(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_| format!("{name} is not set: this is a build script, for cargo to run"))
}
