//! Assertions in C of the page's layout in Rust.

use std::fmt::Write;
use std::path::Path;

use fastpath_page::layout;

pub fn write(out: &Path) -> Result<(), String> {
    let save = |name: &str, text: String| {
        std::fs::write(out.join(name), text)
            .map_err(|error| format!("cannot write {name} to {}: {error}", out.display()))
    };
    save("page_layout.c", assertions())?;
    // For the assembler, which cannot include C.
    save("page_abi.h", format!("#define FP_PAGE_ABI {}\n", layout::ABI))
}

fn assertions() -> String {
    let mut text = String::from("#include \"page.h\"\n\n");
    let mut assert = |expression: String, value: usize| {
        let _ = writeln!(
            text,
            "_Static_assert({expression} == {value}, \"crates/page and vdso/page.h disagree: {expression} is {value} in Rust\");"
        );
    };
    for layout::Struct { name, size } in layout::structs() {
        assert(format!("sizeof(struct {name})"), size);
    }
    for layout::Field {
        struct_name,
        field,
        offset,
        size,
    } in layout::fields()
    {
        assert(format!("__builtin_offsetof(struct {struct_name}, {field})"), offset);
        assert(format!("sizeof(((struct {struct_name} *)0)->{field})"), size);
    }
    assert("FP_PAGE_SIZE".into(), layout::PAGE_SIZE);
    assert("FP_PAGE_CPU_SEGMENT".into(), layout::FLAG_CPU_SEGMENT as usize);
    assert("FP_PAGE_ONE_CPU".into(), layout::FLAG_ONE_CPU as usize);
    assert("FP_BASES".into(), layout::BASES);
    assert("FP_FLOOR_LIMIT_NS".into(), layout::FLOOR_LIMIT_NS as usize);
    text
}
