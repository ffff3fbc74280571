//! The files that are generated for an ISA: its constants, and assertions in C of the page's layout in Rust.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use fastpath_isa::{Isa, Version, c};
use fastpath_page::{answers, clock, layout};

/// The paths of the files.
pub(crate) struct Generated {
    /// The folder of the headers.
    pub folder: PathBuf,
    pub page_layout: PathBuf,
    pub version_script: PathBuf,
}

/// Writes the files to a folder.
pub(crate) fn write(isa: Isa, versions: &[&Version], features: u32, folder: &Path) -> Result<Generated, String> {
    let save = |name: &str, text: String| {
        let path = folder.join(name);
        let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text));
        written.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok::<PathBuf, String>(path)
    };
    save("isa.h", c::header(isa))?;
    // For the assembler, which cannot include C.
    let note = format!("#define FP_PAGE_ABI {}\n#define FP_FEATURES {features}\n", layout::ABI);
    save("note.h", note)?;
    Ok(Generated {
        folder: folder.to_owned(),
        page_layout: save("page_layout.c", assertions())?,
        version_script: save("versions.lds", c::version_script(versions))?,
    })
}

fn assertions() -> String {
    let mut text = String::from("#include \"hosts/answers.h\"\n\n");
    let mut assert = |expression: String, value: usize| {
        let _ = writeln!(
            text,
            "_Static_assert({expression} == {value}, \"core/page and vdso/page.h disagree: {expression} is {value} in Rust\");"
        );
    };
    for layout::Struct { name, size } in layout::structs().into_iter().chain(answers::structs()) {
        assert(format!("sizeof(struct {name})"), size);
    }
    for layout::Field {
        struct_name,
        field,
        offset,
        size,
    } in layout::fields().into_iter().chain(answers::fields())
    {
        assert(format!("__builtin_offsetof(struct {struct_name}, {field})"), offset);
        assert(format!("sizeof(((struct {struct_name} *)0)->{field})"), size);
    }
    assert("FP_ANSWERS".into(), answers::Identity::ALL.len());
    assert("FP_DESCRIPTORS".into(), answers::DESCRIPTORS as usize);
    assert("FP_PAGE_MAGIC".into(), layout::MAGIC as usize);
    assert("FP_PAGE_ABI".into(), layout::ABI as usize);
    assert("FP_PAGE_SIZE".into(), layout::PAGE_SIZE);
    assert("FP_PAGE_CPU_SEGMENT".into(), layout::FLAG_CPU_SEGMENT as usize);
    assert("FP_PAGE_ONE_CPU".into(), layout::FLAG_ONE_CPU as usize);
    assert("FP_PAGE_OFFSETS".into(), layout::FLAG_OFFSETS as usize);
    assert("FP_OFFSETS".into(), layout::OFFSETS);
    assert("FP_NO_OFFSET".into(), layout::NO_OFFSET as usize);
    assert("FP_BASES + FP_RAW_BASES".into(), clock::SERVED.len());
    for clock in clock::SERVED {
        assert(format!("FP_CLOCK_{}", clock.name), clock.id as usize);
        if clock.latch == clock::ClockLatch::Hres {
            assert(format!("FP_BASE_{}", clock.name), clock.base);
        }
    }
    assert("FP_FLOOR_LIMIT_NS".into(), layout::FLOOR_LIMIT_NS as usize);
    text
}
