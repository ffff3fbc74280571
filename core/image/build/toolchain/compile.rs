//! Runs the system's C compiler and linker.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use fastpath_isa::{HOSTS_VERSION, Isa};

use super::generated;

/// Variable with the linker for the image, as in `-fuse-ld=`; without it, the compiler's own choice.
pub const LINKER_VARIABLE: &str = "FASTPATH_VDSO_LD";

const INSTALL_HINT: &str = "The vDSO image is made by a C compiler and a linker: install gcc and binutils (Debian, Ubuntu: \
                                apt-get install gcc), or clang and lld with CC=clang FASTPATH_VDSO_LD=lld";

/// Files of every image. The linker keeps their order: the two hot functions are neighbours, and so are those that they call
/// (surgery/inject/src/plan/redirection/entry_body.rs).
const COMMON: &[&str] = &[
    "gettimeofday.c",
    "clock_gettime.c",
    "latch.c",
    "clock_getres.c",
    "note.S",
    "slots.c",
];
/// Files of the images that export a function of this name.
const OPTIONAL: &[(&str, &str)] = &[
    ("clock_gettime64", "clock_gettime64.c"),
    ("time", "time.c"),
    ("getcpu", "getcpu.c"),
];

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

/// The same for gcc, whose padding makes the two hot functions larger than Linux 6.1's gettimeofday
/// (surgery/inject/src/plan/redirection/entry_body.rs).
const GCC_FLAGS: &[&str] = &["-falign-labels=1", "-falign-jumps=1", "-falign-loops=1"];

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
    ///
    /// # Errors
    /// A message, if there is no compiler.
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

    /// Returns a command of the compiler for an ISA.
    fn command(&self, isa: Isa) -> Command {
        let mut command = Command::new(&self.compiler);
        if self.is_clang {
            command.arg(format!("--target={}", isa.facts().clang_target));
        }
        command
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

/// Who runs the programs that an image is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The kernel: native programs.
    Native,
    /// A host of guests: the image answers more calls (`vdso/hosts`), and takes two pages.
    Hosts,
}

/// Compiles and links an image of one ISA from the folder `vdso/`. `out` gets what is generated for it, and the linked
/// file, `ISA.so` or `ISA-hosts.so`. Returns the ELF file with its symbols.
///
/// # Errors
/// A message with the compiler's, and what to install.
pub fn link(toolchain: &Toolchain, isa: Isa, audience: Audience, source: &Path, out: &Path) -> Result<Vec<u8>, String> {
    let facts = isa.facts();
    let folder = source.join(isa.name());
    let mut versions: Vec<_> = facts.vdso.iter().collect();
    let (mut further, mut further_includes) = (Vec::new(), Vec::new());
    let mut name = isa.to_string();
    if audience == Audience::Hosts {
        versions.push(&HOSTS_VERSION);
        for folder in [source.join("hosts"), source.join("hosts").join(isa.name())] {
            further.extend(sources(&folder)?);
            further_includes.push(folder);
        }
        name += "-hosts";
    }
    let linked = out.join(format!("{name}.so"));
    let features = facts.property.as_ref().map_or(0, |property| match audience {
        Audience::Native => property.features,
        Audience::Hosts => property.features_for_hosts,
    });
    let generated = generated::write(isa, &versions, features, &out.join(name))?;
    let mut command = toolchain.command(isa);
    let of_gcc = GCC_FLAGS.iter().filter(|_| !toolchain.is_clang);
    command
        .args(COMPILE_FLAGS)
        .args(of_gcc)
        .args(facts.machine_flags)
        .args(facts.image_flags);
    let shared = facts.shared_folder.map(|shared| source.join(shared));
    let includes = [folder.as_path(), source, &generated.folder];
    let further_includes = further_includes.iter().map(PathBuf::as_path);
    for include in includes.into_iter().chain(shared.as_deref()).chain(further_includes) {
        command.arg("-I").arg(include);
    }
    let optional = OPTIONAL.iter().filter(|(function, _)| facts.exports(function));
    let functions = COMMON.iter().chain(optional.map(|(_, file)| file));
    command
        .args(functions.map(|file| source.join(file)))
        .args(sources(&folder)?)
        .args(further)
        .arg(&generated.page_layout);
    command.args(LINK_FLAGS);
    if let Some(linker) = &toolchain.linker {
        command.arg(format!("-fuse-ld={linker}"));
    }
    // GNU's linker leaves room for five entries of the dynamic section, which an image has not. Others leave none.
    let is_gnu = match toolchain.linker.as_deref() {
        Some(linker) => linker == "bfd",
        None => !toolchain.is_clang,
    };
    if is_gnu {
        command.arg("-Wl,--spare-dynamic-tags=0");
    }
    let script = generated.folder.join("vdso.lds");
    let mut preprocessor = toolchain.command(isa);
    preprocessor.args(["-E", "-P", "-x", "c", "-std=c11", "-I"]);
    preprocessor.args([&generated.folder, &source.join("vdso.lds"), Path::new("-o"), &script]);
    execute(preprocessor, toolchain)?;
    command.arg(joined("-Wl,-T,", &script));
    command.arg(joined("-Wl,--version-script=", &generated.version_script));
    command.arg("-o").arg(&linked);

    execute(command, toolchain)?;
    std::fs::read(&linked).map_err(|error| format!("cannot read {}: {error}", linked.display()))
}

fn execute(mut command: Command, toolchain: &Toolchain) -> Result<(), String> {
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
    Ok(())
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
