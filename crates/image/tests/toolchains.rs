//! Every compiler and linker that is here makes an image that satisfies every rule, and the code that was asked for.

#[path = "../src/check.rs"]
#[allow(dead_code)]
mod check;
#[path = "../build/compile.rs"]
#[allow(dead_code)]
mod compile;
#[path = "../src/elf.rs"]
#[allow(dead_code)]
mod elf;
#[path = "../build/isa.rs"]
#[allow(dead_code)]
mod isa;
#[path = "../build/trim.rs"]
mod trim;

use std::path::{Path, PathBuf};
use std::process::Command;

const TOOLCHAINS: [(&str, &str); 4] = [("gcc", "bfd"), ("gcc", "lld"), ("clang", "bfd"), ("clang", "lld")];

fn is_installed(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Says so where a tool is missing, for a test that then proves less than it could.
fn installed(program: &str) -> bool {
    let found = is_installed(program);
    if !found {
        eprintln!("SKIPPED: {program} is not installed");
    }
    found
}

fn vdso_sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vdso")
}

/// A folder of this test's own, with what the build generates for the compiler.
fn out(name: &str) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&out).unwrap();
    for generated in ["page_layout.c", "page_abi.h"] {
        std::fs::copy(Path::new(env!("OUT_DIR")).join(generated), out.join(generated)).unwrap();
    }
    out
}

/// Links an image. Returns the linked file and its path.
fn link(test: &str, compiler: &str, linker: &str) -> (Vec<u8>, PathBuf) {
    let out = out(&format!("{test}-{compiler}-{linker}"));
    let isa = isa::of_target("x86_64").unwrap();
    let linked = compile::link(Path::new(compiler), Some(linker), &isa, &vdso_sources(), &out);
    (linked.unwrap(), out.join("vdso.so"))
}

/// A copy of the sources, to be damaged.
fn copied_sources(name: &str) -> PathBuf {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let isa = isa::of_target("x86_64").unwrap();
    for folder in ["", isa.folder] {
        std::fs::create_dir_all(copy.join(folder)).unwrap();
        for entry in std::fs::read_dir(vdso_sources().join(folder)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), copy.join(folder).join(entry.file_name())).unwrap();
            }
        }
    }
    copy
}

fn available() -> Vec<(&'static str, &'static str)> {
    let lld = installed("ld.lld");
    let usable = |&(compiler, linker): &(&str, &str)| installed(compiler) && (linker != "lld" || lld);
    let available: Vec<_> = TOOLCHAINS.into_iter().filter(usable).collect();
    assert!(!available.is_empty(), "no compiler to test");
    available
}

#[test]
fn every_toolchain_makes_an_image_that_breaks_no_rule() {
    for (compiler, linker) in available() {
        let image = trim::trim(&link("rules", compiler, linker).0).unwrap();
        let contract = check::Contract::x86_64(fastpath_page::layout::ABI);
        assert_eq!(check::check(&image, &contract), [], "{compiler} with {linker}");
        println!("{compiler} with {linker}: {} bytes", image.len());
    }
}

/// The instructions of each function, as objdump names them.
fn disassemble(linked: &Path) -> Vec<(String, Vec<String>)> {
    let output = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn"])
        .arg(linked)
        .output()
        .unwrap();
    assert!(output.status.success());
    let mut functions: Vec<(String, Vec<String>)> = Vec::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        if let Some((_, name)) = line.strip_suffix(">:").and_then(|line| line.split_once(" <")) {
            functions.push((name.to_owned(), Vec::new()));
        } else if let (Some((_, instruction)), Some((_, instructions))) = (line.split_once(":\t"), functions.last_mut())
        {
            instructions.push(instruction.to_owned());
        }
    }
    functions
}

#[test]
fn no_toolchain_emits_a_division_or_a_vector_register() {
    if !installed("objdump") {
        return;
    }
    for (compiler, linker) in available() {
        for (name, instructions) in disassemble(&link("code", compiler, linker).1) {
            for instruction in instructions {
                let found =
                    instruction.starts_with("div") || instruction.starts_with("idiv") || instruction.contains("%xmm");
                assert!(!found, "{compiler} with {linker}: {instruction} in {name}");
            }
        }
    }
}

#[test]
fn the_hot_path_is_short_and_has_no_loop_and_no_call() {
    // What gcc 12 and clang 14 need, and a little more. It is below the kernel's 70.
    const MAX_INSTRUCTIONS: usize = 42;
    if !installed("objdump") {
        return;
    }
    for (compiler, linker) in available() {
        let functions = disassemble(&link("hot", compiler, linker).1);
        let (_, instructions) = functions
            .iter()
            .find(|(name, _)| name == "__vdso_clock_gettime")
            .unwrap();
        // Both compilers lay the path of a good answer out straight: from the first instruction to the first return.
        let hot: Vec<_> = instructions
            .iter()
            .take_while(|instruction| !instruction.starts_with("ret"))
            .collect();
        assert!(
            hot.iter().any(|instruction| instruction.starts_with("rdtsc")),
            "{compiler}: {hot:#?}"
        );
        assert!(
            !hot.iter().any(|instruction| instruction.starts_with("call")),
            "{compiler}: {hot:#?}"
        );
        assert!(
            !hot.iter().any(|instruction| instruction.starts_with("push")),
            "{compiler}: {hot:#?}"
        );
        assert!(
            hot.len() < MAX_INSTRUCTIONS,
            "{compiler}: {} instructions: {hot:#?}",
            hot.len() + 1
        );
        println!("{compiler} with {linker}: {} instructions", hot.len() + 1);
    }
}

#[test]
fn a_missing_compiler_is_reported_with_what_to_install() {
    let isa = isa::of_target("x86_64").unwrap();
    let nowhere = Path::new("/nonexistent/cc");
    let message = compile::link(nowhere, None, &isa, &vdso_sources(), Path::new(env!("OUT_DIR"))).unwrap_err();
    assert!(
        message.contains("/nonexistent/cc") && message.contains("apt-get install gcc"),
        "{message}"
    );
}

#[test]
fn an_isa_without_an_image_is_reported_with_what_it_takes() {
    let message = isa::of_target("riscv64").err().unwrap();
    assert!(message.contains("vdso/riscv64"), "{message}");
}

#[test]
fn a_variable_in_the_image_is_refused() {
    let isa = isa::of_target("x86_64").unwrap();
    let source = copied_sources("source-with-a-variable");
    std::fs::write(source.join("variable.c"), "unsigned fp_calls = 1;\n").unwrap();
    let linked = compile::link(Path::new("cc"), None, &isa, &source, &out("variable")).unwrap();
    let message = trim::trim(&linked).unwrap_err();
    assert!(message.contains(".data"), "{message}");
}

#[test]
fn a_page_that_differs_between_c_and_rust_is_refused() {
    let isa = isa::of_target("x86_64").unwrap();
    let source = copied_sources("source-with-another-page");
    let page = std::fs::read_to_string(source.join("page.h")).unwrap();
    let swapped = page
        .replace("mult;", "swap;")
        .replace("shift;", "mult;")
        .replace("swap;", "shift;");
    assert_ne!(page, swapped);
    std::fs::write(source.join("page.h"), swapped).unwrap();
    let message = compile::link(Path::new("cc"), None, &isa, &source, &out("page")).unwrap_err();
    assert!(message.contains("crates/page and vdso/page.h disagree"), "{message}");
}
