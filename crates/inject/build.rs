//! Compiles hook/ into flat, position-independent bytes, and checks that both sides lay the mailbox out alike.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use object::{Object, ObjectSection, ObjectSymbol};

#[path = "src/mailbox_layout.rs"]
mod mailbox_layout;

fn main() {
    if let Err(message) = build() {
        eprintln!("fastpath-inject: {message}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    let out = PathBuf::from(env::var("OUT_DIR").map_err(|e| format!("OUT_DIR: {e}"))?);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").map_err(|e| format!("CARGO_CFG_TARGET_ARCH: {e}"))?;
    let hook = root.join("hook");
    let isa = hook.join(&arch);
    if !isa.is_dir() {
        return Err(format!("no hook for {arch}: hook/{arch} does not exist"));
    }
    println!("cargo:rerun-if-changed={}", hook.display());
    println!("cargo:rerun-if-changed={}", root.join("vdso/page.h").display());

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

    // Only its path: the flags of an ordinary build (debug, profiling) are not for code in somebody else's process.
    let compiler = cc::Build::new().get_compiler().path().to_owned();
    let flags = [
        "-std=gnu11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-ffreestanding",
        "-fPIE",
        "-fvisibility=hidden",
        "-fno-stack-protector",
        "-fno-asynchronous-unwind-tables",
        "-fcf-protection=none",
        "-mgeneral-regs-only",
        "-mno-red-zone",
        "-U_FORTIFY_SOURCE",
    ];
    let mut objects = Vec::new();
    for input in [hook.join("hook.c"), isa.join("hook.S"), asserts] {
        let name = input.file_name().unwrap_or_default().to_string_lossy();
        let object = out.join(format!("{name}.o"));
        run(Command::new(&compiler)
            .args(flags)
            .arg("-I")
            .arg(&isa)
            .arg("-c")
            .arg(&input)
            .arg("-o")
            .arg(&object))?;
        objects.push(object);
    }
    let elf = out.join("hook.elf");
    run(Command::new(&compiler)
        .args([
            "-nostdlib",
            "-static",
            "-no-pie",
            "-Wl,--build-id=none",
            "-Wl,-e,0",
            "-Wl,--no-warn-rwx-segments",
            "-Wl,-T",
        ])
        .arg(hook.join("hook.lds"))
        .args(&objects)
        .arg("-o")
        .arg(&elf))?;

    let bytes = fs::read(&elf).map_err(|e| format!("{}: {e}", elf.display()))?;
    let file = object::File::parse(&*bytes).map_err(|e| format!("{}: {e}", elf.display()))?;
    let text = file.section_by_name(".text").ok_or("the hook has no .text")?;
    let code = text.data().map_err(|e| e.to_string())?;
    let offset = |name: &str| {
        file.symbols()
            .find(|s| s.name() == Ok(name))
            .map(|s| s.address() - text.address())
            .ok_or_else(|| format!("the hook does not define {name}"))
    };
    fs::write(out.join("hook.bin"), code).map_err(|e| e.to_string())?;
    fs::write(
        out.join("hook_symbols.rs"),
        format!(
            "/// Offset of the code that a thunk calls before a system call.\npub const BEFORE_SYSCALL: u64 = {};\n\
             /// The same for Go, whose stacks have no room.\npub const BEFORE_SYSCALL_GO: u64 = {};\n\
             /// Offset of the code that stands in for the program's entry point.\npub const ENTRY: u64 = {};\n",
            offset("fp_hook_before_syscall")?,
            offset("fp_hook_before_syscall_go")?,
            offset("fp_hook_entry")?
        ),
    )
    .map_err(|e| e.to_string())
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
