//! Where in the image are the things that have to be filled in for each process.

use std::path::Path;

use object::{Object, ObjectSection, ObjectSymbol};

use crate::elf::Elf;
use crate::isa::Isa;

/// Not loaded: a word for each ordered read of the counter, its address.
const COUNTER_READS: &str = ".fastpath.ordered_counter_reads";

pub fn write(out: &Path, linked: &[u8], image: &[u8], isa: &Isa) -> Result<(), String> {
    let unreadable = |error: object::Error| format!("cannot read the linked vDSO image: {error}");
    let file = object::File::parse(linked).map_err(unreadable)?;

    let address = |name: &str| {
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
        let symbol = symbol.ok_or_else(|| format!("the linked vDSO image has no symbol {name}"))?;
        Ok::<u64, String>(symbol.address())
    };
    let slots = address("fp_slots")?;
    // The code reaches the page by its distance from the code.
    let page = address("fp_page")?;
    if page != 0_u64.wrapping_sub(fastpath_page::PAGE_SIZE as u64) {
        return Err(format!(
            "the linked vDSO image expects its page at {page:#x} and not right below itself"
        ));
    }

    let section = file
        .section_by_name(COUNTER_READS)
        .ok_or_else(|| format!("the linked vDSO image has no section {COUNTER_READS}"))?;
    let counter_reads: Vec<usize> = section
        .data()
        .map_err(unreadable)?
        .as_chunks()
        .0
        .iter()
        .map(|address| u64::from_le_bytes(*address) as usize)
        .collect();
    for &at in &counter_reads {
        let code = image.get(at..at + isa.ordered_counter_read.len());
        if code != Some(isa.ordered_counter_read) {
            return Err(format!(
                "no ordered counter read at {at:#x} of the vDSO image, but {code:x?}"
            ));
        }
    }

    let elf = Elf::parse(image).map_err(|error| error.to_string())?;
    let forwarded: Vec<(usize, u64)> = isa
        .forwarded
        .iter()
        .map(|&(name, slot)| {
            let found = elf.symbols().find(|(_, symbol)| symbol.name == name.as_bytes());
            let entry = found.and_then(|(index, _)| elf.symbol_offset(index));
            Ok((
                slot,
                entry.ok_or_else(|| format!("the vDSO image does not export {name}"))?,
            ))
        })
        .collect::<Result<_, String>>()?;

    let image_path = out.join("vdso.img");
    let text = format!(
        "/// The image's ELF file.\n\
         pub const BYTES: &[u8] = include_bytes!({image_path:?});\n\
         /// Where the slots for the kernel's functions begin.\n\
         pub const SLOTS_OFFSET: usize = {slots:#x};\n\
         /// Where the counter is read.\n\
         pub const ORDERED_COUNTER_READS: &[usize] = &{counter_reads:?};\n\
         /// For each name of a function that is only passed on: its slot, and where its symbol's entry is.\n\
         pub const FORWARDED_SYMBOLS: &[(usize, usize)] = &{forwarded:?};\n"
    );
    let save = |path: &Path, bytes: &[u8]| {
        std::fs::write(path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()))
    };
    save(&image_path, image)?;
    save(&out.join("built.rs"), text.as_bytes())
}
