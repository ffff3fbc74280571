//! The constants of the C and assembler code, as text.

use std::fmt::Write;

use crate::{AnsweredCalls, Isa, Unwind, Version};

/// Returns the header `isa.h`. All its constants are for the assembler too.
pub fn header(isa: Isa) -> String {
    let facts = isa.facts();
    let mut text = format!(
        "/* Generated from core/isa/src/{isa}.rs. */\n\
         #ifndef FASTPATH_ISA_H\n\
         #define FASTPATH_ISA_H\n"
    );
    let mut define = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "#define {name} {value}");
    };
    for (name, number) in facts.calls.list() {
        define(&format!("FP_NR_{name}"), &number);
    }
    for (name, number) in facts.answered.iter().flat_map(AnsweredCalls::list) {
        define(&format!("FP_NR_{name}"), &number);
    }
    // Offsets in bytes of the slots in `fp_slots` (core/image/vdso/slots.h).
    let word = if facts.is_64 { 8 } else { 4 };
    for (index, name) in facts.slots().iter().enumerate() {
        define(&format!("FP_SLOT_{name}"), &(word * index));
    }
    define("FP_SLOT_COUNT", &facts.slots().len());
    // The machine number in an ELF header.
    define("FP_MACHINE", &facts.elf_machine);
    if let Some(reach) = facts.jump_reach {
        // How far from the vDSO a jump in it may lead.
        define("FP_REACH", &format!("{reach:#x}"));
    }
    define("FP_HOT_ALIGNMENT", &facts.hot_alignment);
    if let Some(property) = &facts.property {
        define("FP_PROPERTY", &format!("{:#x}", property.kind));
    }
    if facts.unwind == Unwind::ArmExidx {
        define("FP_UNWINDS_BY_EXIDX", &1);
    }
    if facts.has_cpu_number {
        define("FP_HAS_CPU_NUMBER", &1);
    }
    define("FP_LOAD_BARRIER", &format!("{:?}", facts.counter.load_barrier));
    // The definition of an exported function, and its second name without the prefix.
    const EXPORTED: &str = "visibility(\"default\")";
    let prefix = facts.prefix;
    define("FP_PREFIX", &format!("{prefix:?}"));
    define(
        "FP_NAME(function)",
        &format!("__attribute__(({EXPORTED})) {prefix}##function"),
    );
    let alias = if facts.has_second_names() {
        format!(
            "extern __typeof__({prefix}##function) function __attribute__((weak, {EXPORTED}, alias(\"{prefix}\" #function)));"
        )
    } else {
        String::new()
    };
    define("FP_ALIAS(function)", &alias);
    text += "#endif\n";
    text
}

/// Returns the linker's version script of an image that exports these functions.
pub fn version_script(versions: &[&Version]) -> String {
    let mut text = String::new();
    for (index, version) in versions.iter().enumerate() {
        let _ = writeln!(text, "{} {{\n\tglobal:", version.name);
        for name in version.functions.iter().chain(version.weak) {
            let _ = writeln!(text, "\t\t{name};");
        }
        if index + 1 == versions.len() {
            text += "\tlocal:\n\t\t*;\n";
        }
        text += "};\n\n";
    }
    text
}
