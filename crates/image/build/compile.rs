//! Runs the system's C compiler and linker.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::recipe::{COMMON, Recipe};

/// Variable with the linker for the image, as in `-fuse-ld=`; without it, the compiler's own choice.
pub const LINKER_VARIABLE: &str = "FASTPATH_VDSO_LD";

pub const INSTALL_HINT: &str = "The vDSO image is made by a C compiler and a linker: install gcc and binutils (Debian, Ubuntu: \
                                apt-get install gcc), or clang and lld with CC=clang FASTPATH_VDSO_LD=lld";

const COMPILE_FLAGS: &[&str] = &[
    "-std=c11",
    "-O2",
    "-g0",
    "-fPIC",
    "-ffreestanding",
    "-fno-stack-protector",
    "-fno-strict-aliasing",
    "-fomit-frame-pointer",
    // Tables of addresses would have to be relocated.
    "-fno-jump-tables",
    // Profilers unwind from any instruction.
    "-fasynchronous-unwind-tables",
    "-fvisibility=hidden",
    "-fno-lto",
    // Eight bytes are enough except for the hot function, whose source demands more: the image must fit a page.
    "-falign-functions=8",
    "-Wall",
    "-Wextra",
    "-Werror",
];

const LINK_FLAGS: &[&str] = &[
    "-shared",
    "-nostdlib",
    "-Wl,-Bsymbolic",
    "-Wl,--no-undefined",
    "-Wl,--hash-style=both",
    "-Wl,--build-id=sha1",
    "-Wl,--eh-frame-hdr",
    "-Wl,-soname,linux-vdso.so.1",
    "-Wl,-z,max-page-size=4096",
    "-Wl,-z,common-page-size=4096",
    "-Wl,-z,noexecstack",
    "-Wl,-z,norelro",
];

/// A compiler, and the linker that it calls.
pub struct Toolchain {
    pub compiler: PathBuf,
    /// As in `-fuse-ld=`; `None`: the compiler's own choice.
    pub linker: Option<String>,
    /// Whether the ISA must be given, because it compiles for all of them.
    pub is_clang: bool,
}

impl std::fmt::Display for Toolchain {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.compiler.display())?;
        if let Some(linker) = &self.linker {
            write!(formatter, " with -fuse-ld={linker}")?;
        }
        Ok(())
    }
}

impl Toolchain {
    /// Returns the toolchain of this build's target: CC and its relatives, and FASTPATH_VDSO_LD.
    pub fn of_target() -> Result<Toolchain, String> {
        let compiler = cc::Build::new()
            .no_default_flags(true)
            .try_get_compiler()
            .map_err(|error| format!("{error}\n{INSTALL_HINT}"))?;
        Ok(Toolchain {
            compiler: compiler.path().to_owned(),
            linker: std::env::var(LINKER_VARIABLE).ok(),
            is_clang: compiler.is_like_clang(),
        })
    }

    /// Returns the toolchain that makes images for every ISA, if it is installed.
    pub fn clang_and_lld() -> Option<Toolchain> {
        let runs = |program: &str| {
            let output = Command::new(program).arg("--version").output();
            output.is_ok_and(|output| output.status.success())
        };
        (runs("clang") && runs("ld.lld")).then(|| Toolchain {
            compiler: "clang".into(),
            linker: Some("lld".into()),
            is_clang: true,
        })
    }
}

/// Compiles and links an image. Returns the ELF file with its symbols.
pub fn link(toolchain: &Toolchain, recipe: &Recipe, source: &Path, out: &Path) -> Result<Vec<u8>, String> {
    let folder = source.join(recipe.isa.name());
    let linked = out.join(format!("{}.so", recipe.isa));
    let mut command = Command::new(&toolchain.compiler);
    if toolchain.is_clang {
        command.arg(format!("--target={}", recipe.target));
    }
    command.args(COMPILE_FLAGS).args(recipe.flags);
    let shared = recipe.shared.map(|shared| source.join(shared));
    for include in [folder.as_path(), source, out].into_iter().chain(shared.as_deref()) {
        command.arg("-I").arg(include);
    }
    command
        .args(COMMON.iter().chain(recipe.functions).map(|file| source.join(file)))
        .args(sources(&folder)?)
        .arg(out.join("page_layout.c"));
    command.args(LINK_FLAGS);
    if let Some(linker) = &toolchain.linker {
        command.arg(format!("-fuse-ld={linker}"));
    }
    let script = Some(folder.join("vdso.lds")).filter(|own| own.exists());
    command.arg(joined("-Wl,-T,", &script.unwrap_or_else(|| source.join("vdso.lds"))));
    command.arg(joined("-Wl,--version-script=", &folder.join("versions.lds")));
    command.arg("-o").arg(&linked);

    let output = command
        .output()
        .map_err(|error| format!("cannot run {}: {error}\n{INSTALL_HINT}", toolchain.compiler.display()))?;
    if !output.status.success() {
        return Err(format!(
            "{command:?} failed ({}):\n{}\n{INSTALL_HINT}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        ));
    }
    std::fs::read(&linked).map_err(|error| format!("cannot read {}: {error}", linked.display()))
}

fn joined(flag: &str, path: &Path) -> OsString {
    let mut flag = OsString::from(flag);
    flag.push(path);
    flag
}

/// Returns the C and assembler files of a folder, in the same order on every machine.
fn sources(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("cannot list {}: {error}", folder.display());
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "c" || extension == "S")
        {
            sources.push(path);
        }
    }
    sources.sort();
    Ok(sources)
}
