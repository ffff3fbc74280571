//! Compiles hook/ into flat, position-independent bytes, and checks that both sides have the same mailbox layout.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use object::{Object, ObjectSection, ObjectSymbol};

#[path = "src/plan/mailbox_layout.rs"]
mod mailbox_layout;

fn main() {
    if let Err(message) = build() {
        eprintln!("fastpath-inject: {message}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    let out = PathBuf::from(env::var("OUT_DIR").map_err(|e| format!("OUT_DIR: {e}"))?);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").map_err(|e| format!("CARGO_CFG_TARGET_ARCH: {e}"))?;
    let hook = root.join("hook");
    println!("cargo:rerun-if-changed={}", hook.display());
    let vdso = PathBuf::from(env::var("DEP_FASTPATH_IMAGE_VDSO").map_err(|e| format!("DEP_FASTPATH_IMAGE_VDSO: {e}"))?);
    println!("cargo:rerun-if-changed={}", vdso.join("page.h").display());

    let asserts = out.join("mailbox_asserts.c");
    let mut source = format!("#include \"{}\"\n", hook.join("mailbox.h").display());
    for (of, field, offset) in mailbox_layout::fields() {
        source += &format!(
            "_Static_assert(__builtin_offsetof(struct {of}, {field}) == {offset}, \"{of}.{field} lies elsewhere in Rust\");\n"
        );
    }
    for (of, size) in mailbox_layout::sizes() {
        source += &format!("_Static_assert(sizeof(struct {of}) == {size}, \"{of} has another size in Rust\");\n");
    }
    fs::write(&asserts, source).map_err(|e| format!("{}: {e}", asserts.display()))?;

    for (i, isa) in isas(&arch)?.iter().enumerate() {
        let compiled = compile(isa, &hook, &vdso, &asserts, &out);
        let expression = match compiled {
            Ok(expression) => expression,
            Err(message) if i > 0 => {
                println!("cargo:warning=programs for {} are left out: {message}", isa.name);
                "None".to_owned()
            }
            Err(message) => return Err(message),
        };
        fs::write(out.join(format!("hook_{}.rs", isa.name)), expression).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Compiler settings for one instruction set.
struct Isa {
    name: &'static str,
    /// Compiler, if it is not that of the host's own programs.
    compiler: Option<&'static str>,
    flags: &'static [&'static str],
}

/// Returns the instruction sets of the programs that a kernel for `arch` starts and fastpath serves: first its own,
/// which must compile.
fn isas(arch: &str) -> Result<&'static [Isa], String> {
    match arch {
        "x86_64" => Ok(&[
            Isa {
                name: "x86_64",
                compiler: None,
                flags: &["-fcf-protection=none", "-mgeneral-regs-only", "-mno-red-zone"],
            },
            Isa {
                name: "i386",
                compiler: None,
                flags: &["-m32", "-march=i686", "-fcf-protection=none", "-mgeneral-regs-only"],
            },
        ]),
        // x18 is reserved for the platform; x28 is Go's goroutine (core/isa/src/aarch64.rs). No jump tables: they would be data.
        "aarch64" => Ok(&[
            Isa {
                name: "aarch64",
                compiler: None,
                flags: &[
                    "-mgeneral-regs-only",
                    "-ffixed-x18",
                    "-ffixed-x28",
                    "-fno-jump-tables",
                    "-mno-outline-atomics",
                ],
            },
            Isa {
                name: "arm",
                compiler: Some("clang"),
                flags: &[
                    "--target=arm-linux-gnueabi",
                    "-march=armv7-a",
                    "-marm",
                    "-mfloat-abi=soft",
                    "-fno-unwind-tables",
                    "-fno-jump-tables",
                    "-fuse-ld=lld",
                    "-Wno-unused-command-line-argument",
                ],
            },
        ]),
        _ => Err(format!("no hook for {arch}")),
    }
}

/// Leaves the code in `out` and returns an expression of type `Option<Hook>`.
fn compile(isa: &Isa, hook: &Path, vdso: &Path, asserts: &Path, out: &Path) -> Result<String, String> {
    // Only its path: the flags of an ordinary build (debug, profiling) do not suit code in another process.
    let compiler = match isa.compiler {
        Some(compiler) => PathBuf::from(compiler),
        None => cc::Build::new().get_compiler().path().to_owned(),
    };
    let folder = hook.join(isa.name);
    let constants = out.join(isa.name);
    let of_isa = fastpath_isa::Isa::of_name(isa.name).ok_or(format!("there are no facts about {}", isa.name))?;
    fs::create_dir_all(&constants)
        .and_then(|()| fs::write(constants.join("isa.h"), fastpath_isa::c::header(of_isa)))
        .map_err(|e| format!("{}: {e}", constants.display()))?;
    let flags = [
        "-std=gnu11",
        // Not hot, and copied to every program.
        "-Os",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-ffreestanding",
        "-fPIE",
        "-fvisibility=hidden",
        "-fno-stack-protector",
        "-fno-asynchronous-unwind-tables",
        "-U_FORTIFY_SOURCE",
    ];
    let mut objects = Vec::new();
    let rescue = folder.join("rescue.S");
    let inputs = [hook.join("hook.c"), folder.join("hook.S"), asserts.to_owned()];
    for input in inputs.iter().chain(rescue.exists().then_some(&rescue)) {
        let name = input.file_name().unwrap_or_default().to_string_lossy();
        let object = out.join(format!("{name}.{}.o", isa.name));
        run(Command::new(&compiler)
            .args(flags)
            .args(isa.flags)
            .args([&folder, vdso, &constants].map(|path| format!("-I{}", path.display())))
            .arg("-c")
            .arg(input)
            .arg("-o")
            .arg(&object))?;
        objects.push(object);
    }
    let elf = out.join(format!("hook_{}.elf", isa.name));
    run(Command::new(&compiler)
        .args(isa.flags)
        .args([
            "-nostdlib",
            "-static",
            "-no-pie",
            "-Wl,--build-id=none",
            "-Wl,-e,0",
            "-Wl,-T",
        ])
        .arg(hook.join("hook.lds"))
        .arg(format!("-Wl,--defsym=largest_page={}", of_isa.facts().largest_page))
        .args(&objects)
        .arg("-o")
        .arg(&elf))?;

    let bytes = fs::read(&elf).map_err(|e| format!("{}: {e}", elf.display()))?;
    let file = object::File::parse(&*bytes).map_err(|e| format!("{}: {e}", elf.display()))?;
    let text = file.section_by_name(".text").ok_or("the hook has no .text")?;
    let code = text.data().map_err(|e| e.to_string())?;
    let offset = |name: &str| {
        let mut symbols = file.symbols();
        let symbol = symbols.find(|s| s.name() == Ok(name))?;
        Some(symbol.address() - text.address())
    };
    let before_syscall = offset("fp_hook_before_syscall").ok_or("the hook has no door")?;
    let flat = out.join(format!("hook_{}.bin", isa.name));
    fs::write(&flat, code).map_err(|e| e.to_string())?;
    Ok(format!(
        "Some(Hook {{ code: include_bytes!({flat:?}), before_syscall: {before_syscall}, \
         before_syscall_go: {:?}, entry: {:?}, linker: {:?}, rescue: &{:?} }})",
        offset("fp_hook_before_syscall_go"),
        offset("fp_hook_entry"),
        offset("fp_hook_linker"),
        rescue_offsets(offset)?,
    ))
}

/// Returns the calls that have a routine: their names, the offsets of the routines, and those of the words for the
/// addresses of the functions that answer.
fn rescue_offsets(offset: impl Fn(&str) -> Option<u64>) -> Result<Vec<(&'static str, u64, u64)>, String> {
    // Where a thunk cannot have all, it has the first ones.
    let names = ["clock_gettime", "gettimeofday", "time", "getcpu", "clock_getres"];
    let known = names
        .into_iter()
        .filter_map(|name| Some((name, offset(&format!("fp_rescue_{name}"))?)));
    known
        .map(|(name, routine)| {
            let answers = offset(&format!("fp_rescue_image_{name}"));
            Ok((
                name,
                routine,
                answers.ok_or(format!("the routine for {name} has no word for its function"))?,
            ))
        })
        .collect()
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .map_err(|e| format!("{program}: {e} (install gcc and binutils)"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!(
            "{program} {:?}: {status}",
            command.get_args().collect::<Vec<_>>()
        ))
    }
}
