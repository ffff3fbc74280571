//! Every installed compiler and linker makes an image that satisfies every rule, and the expected code.

#[path = "../../../tests/skip.rs"]
mod skip;
#[allow(dead_code, unused_imports)]
#[path = "../build/toolchain/mod.rs"]
mod toolchain;

use std::path::{Path, PathBuf};
use std::process::Command;

use fastpath_image::elf::{Elf, Isa, check};
use toolchain::{Audience, Toolchain, link as link_image, trim};

/// Without gcc and lld: its code with lld's longer tables of symbols would take 48 bytes more than a page.
const TOOLCHAINS: [(&str, &str); 3] = [("gcc", "bfd"), ("clang", "bfd"), ("clang", "lld")];

fn is_installed(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Returns whether a tool is installed, and reports a missing one, without which a test proves less.
fn installed(program: &str) -> bool {
    let found = is_installed(program);
    if !found {
        skip::skip(format_args!("no {program} on this machine"));
    }
    found
}

fn vdso_sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vdso")
}

/// Returns a folder for this test.
fn out(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn toolchain(compiler: &str, linker: Option<&str>) -> Toolchain {
    Toolchain {
        compiler: compiler.into(),
        linker: linker.map(str::to_owned),
        is_clang: compiler == "clang",
    }
}

const HOST: Isa = Isa::X86_64;

/// Links an image. Returns the linked file and its path.
fn link(test: &str, isa: Isa, compiler: &str, linker: &str) -> (Vec<u8>, PathBuf) {
    let out = out(&format!("{test}-{compiler}-{linker}"));
    let toolchain = toolchain(compiler, Some(linker));
    let linked = link_image(&toolchain, isa, Audience::Native, &vdso_sources(), &out);
    (linked.unwrap(), out.join(format!("{isa}.so")))
}

/// Links an image for hosts, if the ISA has one.
fn link_for_hosts(test: &str, isa: Isa, compiler: &str, linker: &str) -> Option<(Vec<u8>, PathBuf)> {
    isa.facts().answered?;
    let out = out(&format!("{test}-{compiler}-{linker}"));
    let toolchain = toolchain(compiler, Some(linker));
    let linked = link_image(&toolchain, isa, Audience::Hosts, &vdso_sources(), &out);
    Some((linked.unwrap(), out.join(format!("{isa}-hosts.so"))))
}

/// Copies the sources, to be damaged.
fn copied_sources(name: &str) -> PathBuf {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // An earlier run may have copied files that the sources no longer have.
    let _ = std::fs::remove_dir_all(&copy);
    for folder in ["", "hosts", HOST.name(), HOST.facts().shared_folder.unwrap_or_default()] {
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

/// Returns the host's image with each installed toolchain, the others with the one that makes all of them.
fn available() -> Vec<(Isa, &'static str, &'static str)> {
    let toolchains = available_for_host();
    let every = toolchains.contains(&("clang", "lld"));
    let others = Isa::ALL.into_iter().filter(|&isa| every && isa != HOST);
    let host = toolchains
        .into_iter()
        .map(|(compiler, linker)| (HOST, compiler, linker));
    host.chain(others.map(|isa| (isa, "clang", "lld"))).collect()
}

fn available_for_host() -> Vec<(&'static str, &'static str)> {
    let lld = installed("ld.lld");
    let usable = |&(compiler, linker): &(&str, &str)| installed(compiler) && (linker != "lld" || lld);
    let available: Vec<_> = TOOLCHAINS.into_iter().filter(usable).collect();
    assert!(!available.is_empty(), "no compiler to test");
    available
}

#[test]
fn every_toolchain_makes_an_image_that_breaks_no_rule() {
    let mut beyond_a_page = Vec::new();
    for (isa, compiler, linker) in available() {
        let image = trim(&link("rules", isa, compiler, linker).0).unwrap();
        let contract = check::Contract::for_isa(isa, fastpath_page::layout::ABI);
        assert_eq!(check::check(&image, &contract), [], "{isa}: {compiler} with {linker}");
        println!("{isa}: {compiler} with {linker}: {} bytes", image.len());
        if image.len() > 4096 {
            beyond_a_page.push((isa, compiler, linker, image.len()));
        }
    }
    assert!(beyond_a_page.is_empty(), "more than a page: {beyond_a_page:?}");
}

#[test]
fn every_toolchain_makes_an_image_for_hosts_that_breaks_no_rule() {
    for (isa, compiler, linker) in available() {
        let Some((linked, _)) = link_for_hosts("rules", isa, compiler, linker) else {
            continue;
        };
        let image = trim(&linked).unwrap();
        let contract = check::Contract::for_hosts(isa, fastpath_page::layout::ABI);
        assert_eq!(check::check(&image, &contract), [], "{isa}: {compiler} with {linker}");
        println!("{isa}: {compiler} with {linker}: {} bytes", image.len());
    }
}

/// Returns the instructions of each function, as objdump names them.
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
    for (isa, compiler, linker) in available() {
        // The other ISAs have no instruction for it, or a separate test below.
        if !isa.is_x86() {
            continue;
        }
        let for_hosts = link_for_hosts("code", isa, compiler, linker).map(|(_, path)| disassemble(&path));
        let native = disassemble(&link("code", isa, compiler, linker).1);
        for (name, instructions) in native.into_iter().chain(for_hosts.into_iter().flatten()) {
            for instruction in instructions {
                let found =
                    instruction.starts_with("div") || instruction.starts_with("idiv") || instruction.contains("%xmm");
                assert!(!found, "{compiler} with {linker}: {instruction} in {name}");
            }
        }
    }
}

/// Every instruction of AArch64 takes four bytes, so no disassembler is needed.
#[test]
fn a_read_of_monotonic_executes_at_most_42_instructions_on_aarch64() {
    const MAX_INSTRUCTIONS: usize = 42;
    const RET: u32 = 0xd65f_03c0;
    const BTI_C: u32 = 0xd503_245f;
    if !available_for_host().contains(&("clang", "lld")) {
        return;
    }
    let image = trim(&link("hot", Isa::Aarch64, "clang", "lld").0).unwrap();
    let elf = Elf::parse(&image).unwrap();
    let function = |name: &[u8]| elf.symbols().find(|(_, symbol)| symbol.name == name).unwrap().1.value as usize;
    let words = image[function(b"__kernel_clock_gettime")..].as_chunks().0;
    let instructions: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    assert_eq!(instructions[0], BTI_C);
    // The path of a good answer is laid out straight: from the first instruction to the first return.
    let count = 1 + instructions.iter().position(|&instruction| instruction == RET).unwrap();
    println!("aarch64: {count} instructions");
    assert!(count <= MAX_INSTRUCTIONS, "{count} instructions");
    let hot = &instructions[..count];
    assert!(
        hot.iter().any(|instruction| instruction & !0x1f == 0xd53b_e040),
        "the counter is read on it"
    );
    let is_call = |instruction: &u32| instruction & 0xfc00_0000 == 0x9400_0000;
    let is_division = |instruction: &u32| instruction & 0x7fe0_f800 == 0x1ac0_0800;
    let is_jump = |instruction: &u32| instruction & 0xfc00_0000 == 0x1400_0000;
    assert!(
        !hot.iter()
            .any(|instruction| is_call(instruction) || is_jump(instruction))
    );
    assert!(!instructions.iter().any(is_division));
    // Nothing is kept on the stack: the only store is that of the answer.
    let stores = hot
        .iter()
        .filter(|&instruction| instruction & 0x3b40_0000 == 0x2900_0000);
    assert_eq!(stores.count(), 1, "one pair is stored: the timespec");
}

#[test]
fn a_missing_compiler_is_reported_with_what_to_install() {
    let nowhere = toolchain("/nonexistent/cc", None);
    let message = link_image(&nowhere, HOST, Audience::Native, &vdso_sources(), &out("nowhere")).unwrap_err();
    assert!(
        message.contains("/nonexistent/cc") && message.contains("apt-get install gcc"),
        "{message}"
    );
}

#[test]
fn a_variable_in_the_image_is_refused() {
    let source = copied_sources("source-with-a-variable");
    std::fs::write(source.join("x86_64/variable.c"), "unsigned fp_calls = 1;\n").unwrap();
    let linked = link_image(
        &toolchain("cc", None),
        HOST,
        Audience::Native,
        &source,
        &out("variable"),
    )
    .unwrap();
    let message = trim(&linked).expect_err("a refusal");
    assert!(message.contains(".data"), "{message}");
}

#[test]
fn a_page_that_differs_between_c_and_rust_is_refused() {
    let source = copied_sources("source-with-another-page");
    let page = std::fs::read_to_string(source.join("page.h")).unwrap();
    let swapped = page
        .replace("mult;", "swap;")
        .replace("shift;", "mult;")
        .replace("swap;", "shift;");
    assert_ne!(page, swapped);
    std::fs::write(source.join("page.h"), swapped).unwrap();
    let message = link_image(&toolchain("cc", None), HOST, Audience::Native, &source, &out("page")).unwrap_err();
    assert!(message.contains("core/page and vdso/page.h disagree"), "{message}");
}
