//! Running the system's C compiler and linker.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::isa::Isa;

/// Names the linker for the image, as in `-fuse-ld=`; the compiler's own choice where it is not set.
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
    // There is no one to save vector registers for, and nothing to use them on.
    "-mgeneral-regs-only",
    // Profilers unwind from any instruction.
    "-fasynchronous-unwind-tables",
    "-fvisibility=hidden",
    "-fno-lto",
    // Sixteen bytes are enough but for the hot function, which says so: the image is to fit a page.
    "-falign-functions=16",
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

/// Compiles and links the image. Returns the ELF file, symbols and all.
pub fn link(compiler: &Path, linker: Option<&str>, isa: &Isa, source: &Path, out: &Path) -> Result<Vec<u8>, String> {
    let folder = source.join(isa.folder);
    let linked = out.join("vdso.so");
    let mut command = Command::new(compiler);
    command.args(COMPILE_FLAGS).args(isa.flags);
    for include in [source, &folder, out] {
        command.arg("-I").arg(include);
    }
    command
        .args(sources(source)?)
        .args(sources(&folder)?)
        .arg(out.join("page_layout.c"));
    command.args(LINK_FLAGS);
    if let Some(linker) = linker {
        command.arg(format!("-fuse-ld={linker}"));
    }
    command.arg(joined("-Wl,-T,", &folder.join("vdso.lds")));
    command.arg(joined("-Wl,--version-script=", &folder.join("versions.lds")));
    command.arg("-o").arg(&linked);

    let output = command
        .output()
        .map_err(|error| format!("cannot run {}: {error}\n{INSTALL_HINT}", compiler.display()))?;
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

/// The C and assembler files of a folder, in one order on every machine.
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
