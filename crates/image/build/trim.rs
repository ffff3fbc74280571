//! Takes out of the linked ELF file what no process needs: the image is its loaded segment and the headers of the sections by
//! which debuggers find symbols and unwind information. One page is then enough for all of it.

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{LittleEndian, U32, U64, pod};

type Header = elf::FileHeader64<LittleEndian>;

/// Sections whose headers stay. gdb reads symbols by the first two and unwinds by the third; .text is where the symbols are.
const KEPT: &[&str] = &[".dynsym", ".dynstr", ".dynamic", ".note", ".eh_frame", ".text"];

const LE: LittleEndian = LittleEndian;

fn empty_section() -> elf::SectionHeader64<LittleEndian> {
    elf::SectionHeader64 {
        sh_name: U32::new(LE, 0),
        sh_type: U32::new(LE, elf::SHT_NULL),
        sh_flags: U64::new(LE, 0),
        sh_addr: U64::new(LE, 0),
        sh_offset: U64::new(LE, 0),
        sh_size: U64::new(LE, 0),
        sh_link: U32::new(LE, 0),
        sh_info: U32::new(LE, 0),
        sh_addralign: U64::new(LE, 0),
        sh_entsize: U64::new(LE, 0),
    }
}

pub fn trim(linked: &[u8]) -> Result<Vec<u8>, String> {
    let mut header = *Header::parse(linked).map_err(unreadable)?;
    let load_end = header
        .program_headers(LE, linked)
        .map_err(unreadable)?
        .iter()
        .filter(|segment| segment.p_type(LE) == elf::PT_LOAD)
        .map(|segment| segment.p_offset(LE).saturating_add(segment.p_filesz(LE)))
        .max()
        .unwrap_or(0);
    let sections = header.sections(LE, linked).map_err(unreadable)?;

    // The kept sections: index in the linked file, and header. Index 0 is the empty section.
    let mut indices = vec![0];
    let mut headers = vec![empty_section()];
    let mut names = vec![0_u8];
    for (index, section) in sections.enumerate() {
        let name = sections.section_name(LE, section).map_err(unreadable)?;
        let writable = section.sh_flags(LE) & u64::from(elf::SHF_WRITE) != 0;
        if writable && section.sh_size(LE) > 0 && name != b".dynamic" {
            let name = String::from_utf8_lossy(name);
            return Err(format!(
                "the vDSO image has data to be written, in {name}: it is mapped read-only"
            ));
        }
        if !KEPT.iter().any(|kept| kept.as_bytes() == name) {
            continue;
        }
        let mut section = *section;
        section.sh_name.set(LE, names.len() as u32);
        names.extend_from_slice(name);
        names.push(0);
        // Linkers expect a loader to write to .dynamic; in a vDSO nobody does, or can.
        let flags = section.sh_flags.get(LE) & !u64::from(elf::SHF_WRITE);
        section.sh_flags.set(LE, flags);
        indices.push(index.0);
        headers.push(section);
    }
    let new_index = |old: u32| indices.iter().position(|&index| index == old as usize).unwrap_or(0) as u32;
    for section in &mut headers {
        let link = new_index(section.sh_link.get(LE));
        section.sh_link.set(LE, link);
    }

    let mut image = linked.get(..load_end as usize).unwrap_or(linked).to_vec();
    let names_at = image.len();
    let mut names_header = empty_section();
    names_header.sh_name.set(LE, names.len() as u32);
    names.extend_from_slice(b".shstrtab\0");
    names_header.sh_type.set(LE, elf::SHT_STRTAB);
    names_header.sh_offset.set(LE, names_at as u64);
    names_header.sh_size.set(LE, names.len() as u64);
    names_header.sh_addralign.set(LE, 1);
    headers.push(names_header);

    image.extend_from_slice(&names);
    image.resize(image.len().next_multiple_of(8), 0);
    header.e_shoff.set(LE, image.len() as u64);
    header.e_shnum.set(LE, headers.len() as u16);
    header.e_shstrndx.set(LE, headers.len() as u16 - 1);
    for section in &headers {
        image.extend_from_slice(pod::bytes_of(section));
    }
    let header = pod::bytes_of(&header);
    image[..header.len()].copy_from_slice(header);
    renumber_symbols(&mut image, linked, &new_index).map_err(unreadable)?;
    Ok(image)
}

fn unreadable(error: object::Error) -> String {
    format!("cannot read the linked vDSO image: {error}")
}

/// Dynamic symbols name their section by its index.
fn renumber_symbols(image: &mut [u8], linked: &[u8], new_index: &dyn Fn(u32) -> u32) -> object::Result<()> {
    let sections = Header::parse(linked)?.sections(LE, linked)?;
    let Some((_, table)) = sections.section_by_name(LE, b".dynsym") else {
        return Ok(());
    };
    let at = table.sh_offset(LE) as usize;
    let symbols = table.data_as_array::<elf::Sym64<LittleEndian>, _>(LE, linked)?;
    for (index, symbol) in symbols.iter().enumerate() {
        let section = symbol.st_shndx.get(LE);
        if section == elf::SHN_UNDEF || section >= elf::SHN_LORESERVE {
            continue;
        }
        let mut symbol = *symbol;
        symbol.st_shndx.set(LE, new_index(u32::from(section)) as u16);
        let size = size_of_val(&symbol);
        let bytes = image.get_mut(at + index * size..at + (index + 1) * size);
        if let Some(bytes) = bytes {
            bytes.copy_from_slice(pod::bytes_of(&symbol));
        }
    }
    Ok(())
}
