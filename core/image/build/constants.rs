//! Offsets in the image of what an instance fills in for each process.

use std::fmt::Write;
use std::path::Path;

use object::{Object, ObjectSection, ObjectSymbol};

use crate::elf::{Elf, Isa, STT_FUNC};
use crate::toolchain::Audience;

/// Writes the image to `out`, and returns an expression of type `Image` for it.
pub fn describe(out: &Path, linked: &[u8], image: &[u8], isa: Isa, audience: Audience) -> Result<String, String> {
    let unreadable = |error: object::Error| format!("cannot read the linked vDSO image for {isa}: {error}");
    let file = object::File::parse(linked).map_err(unreadable)?;
    let slots = file.symbols().find(|symbol| symbol.name() == Ok("fp_slots"));
    let slots = slots.ok_or_else(|| format!("the linked vDSO image for {isa} has no symbol fp_slots"))?;

    let counter_reads = recorded(&file, "counter_reads", isa.is_64()).map_err(unreadable)?;
    for &at in &counter_reads {
        let code = image.get(at as usize..).unwrap_or_default();
        let pattern = isa.facts().counter.read;
        let is_read = code.len() >= pattern.len()
            && pattern
                .iter()
                .zip(code)
                .all(|((byte, mask), found)| found & mask == *byte);
        if !is_read {
            return Err(format!(
                "there is no ordered counter read at {at:#x} of the vDSO image for {isa}"
            ));
        }
    }
    let page_references = recorded(&file, "page_references", isa.is_64()).map_err(unreadable)?;
    let page_addresses = recorded(&file, "page_addresses", isa.is_64()).map_err(unreadable)?;
    let system_calls = recorded(&file, "system_calls", isa.is_64()).map_err(unreadable)?;
    for (what, places) in [("reads no counter", &counter_reads), ("has no page", &page_references)] {
        if places.is_empty() {
            return Err(format!("the vDSO image for {isa} {what}"));
        }
    }

    let calls = file.symbols();
    let calls = calls.filter_map(|symbol| Some((symbol.name().ok()?.strip_prefix("fp_call_")?, symbol.address())));
    let calls: Vec<_> = calls.collect();
    if calls.is_empty() {
        return Err(format!(
            "the vDSO image for {isa} makes no system call in the place of the kernel's functions"
        ));
    }

    let name = match audience {
        Audience::Native => format!("{isa}.img"),
        Audience::Hosts => format!("{isa}-hosts.img"),
    };
    let image_path = out.join(name);
    std::fs::write(&image_path, image).map_err(|error| format!("cannot write {}: {error}", image_path.display()))?;
    let functions = functions(image)?;
    Ok(format!(
        "Image {{\n    isa: Isa::{isa:?},\n    bytes: include_bytes!({image_path:?}),\n    functions: &[{functions}],\n    \
         slots_at: {:#x},\n    calls: &{calls:?},\n    counter_reads: &{counter_reads:?},\n    page_references: &{page_references:?},\n    \
         page_addresses: &{page_addresses:?},\n    \
         system_calls: &{system_calls:?},\n}}",
        slots.address()
    ))
}

/// Returns the addresses that the code recorded in one of its sections (`vdso/record.h`).
fn recorded(file: &object::File<'_>, name: &str, is_64: bool) -> object::Result<Vec<u64>> {
    let Some(section) = file.section_by_name(&format!(".fastpath.{name}")) else {
        return Ok(Vec::new());
    };
    let bytes = section.data()?;
    let mut places: Vec<u64> = if is_64 {
        let words = bytes.as_chunks().0.iter();
        words.map(|word| u64::from_le_bytes(*word)).collect()
    } else {
        let words = bytes.as_chunks().0.iter();
        words.map(|word| u32::from_le_bytes(*word).into()).collect()
    };
    places.sort_unstable();
    Ok(places)
}

fn functions(image: &[u8]) -> Result<String, String> {
    let elf = Elf::parse(image).map_err(|error| error.to_string())?;
    let mut text = String::new();
    for (index, symbol) in elf.symbols().filter(|(_, symbol)| symbol.kind == STT_FUNC) {
        let name = String::from_utf8_lossy(symbol.name);
        let entry = elf.symbol_offset(index).unwrap_or(0);
        let _ = write!(
            text,
            "\n        Function {{ name: {name:?}, offset: {:#x}, size: {}, symbol_at: {entry:#x} }},",
            symbol.value, symbol.size
        );
    }
    Ok(text)
}
