//! Removes from the linked ELF file what no process needs: the image is its loaded segment and the section headers by
//! which debuggers find symbols and unwind information. It then fits one page.

use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{FileKind, LittleEndian};

const LE: LittleEndian = LittleEndian;

/// Sections whose headers are kept. gdb reads symbols by the first two, readelf needs the third, and unwinders find
/// their tables by name; .text contains the symbols. All else has a program header.
const KEPT: &[&str] = &[".dynsym", ".dynstr", ".dynamic", ".eh_frame", ".ARM.exidx", ".text"];

/// A section header of either class.
#[derive(Clone, Copy, Default)]
struct Section {
    name: u32,
    kind: u32,
    flags: u64,
    address: u64,
    offset: u64,
    size: u64,
    link: u32,
    info: u32,
    alignment: u64,
    entry_size: u64,
}

/// Returns the image in a linked file.
///
/// # Errors
/// A message, if the file cannot be read, or has data to be written.
pub fn trim(linked: &[u8]) -> Result<Vec<u8>, String> {
    match FileKind::parse(linked).map_err(unreadable)? {
        FileKind::Elf64 => trim_class::<FileHeader64<LittleEndian>>(linked),
        FileKind::Elf32 => trim_class::<FileHeader32<LittleEndian>>(linked),
        kind => Err(format!("the linker made no ELF file, but {kind:?}")),
    }
}

fn trim_class<H: FileHeader<Endian = LittleEndian>>(linked: &[u8]) -> Result<Vec<u8>, String> {
    let header = H::parse(linked).map_err(unreadable)?;
    let load_end = header
        .program_headers(LE, linked)
        .map_err(unreadable)?
        .iter()
        .filter(|segment| segment.p_type(LE) == elf::PT_LOAD)
        .map(|segment| segment.p_offset(LE).into().saturating_add(segment.p_filesz(LE).into()))
        .max()
        .unwrap_or(0);

    let kept = kept_sections::<H>(header, linked)?;
    let mut image = linked.get(..load_end as usize).unwrap_or(linked).to_vec();
    let mut headers = kept.headers;
    headers.push(Section {
        // Without a name, which no tool looks for (e_shstrndx identifies the section) and for which there is no room.
        kind: elf::SHT_STRTAB,
        offset: image.len() as u64,
        size: kept.names.len() as u64,
        alignment: 1,
        ..Section::default()
    });
    image.extend_from_slice(&kept.names);
    image.resize(
        image.len().next_multiple_of(if header.is_class_64() { 8 } else { 4 }),
        0,
    );
    let headers_at = image.len();
    for section in &headers {
        section.write(header.is_class_64(), &mut image);
    }
    put_file_header(&mut image, header.is_class_64(), headers_at, headers.len());
    renumber_symbols::<H>(header, linked, &mut image, &kept.indices)?;
    Ok(image)
}

struct Kept {
    /// Indices in the linked file. Index 0 is the empty section.
    indices: Vec<usize>,
    headers: Vec<Section>,
    names: Vec<u8>,
}

fn kept_sections<H: FileHeader<Endian = LittleEndian>>(header: &H, linked: &[u8]) -> Result<Kept, String> {
    let sections = header.sections(LE, linked).map_err(unreadable)?;
    let mut kept = Kept {
        indices: vec![0],
        headers: vec![Section::default()],
        names: vec![0],
    };
    for (index, section) in sections.enumerate() {
        let name = sections.section_name(LE, section).map_err(unreadable)?;
        let flags: u64 = section.sh_flags(LE).into();
        let size: u64 = section.sh_size(LE).into();
        let writable = u64::from(elf::SHF_WRITE);
        let loaded = u64::from(elf::SHF_ALLOC);
        if flags & writable != 0 && flags & loaded != 0 && size > 0 && name != b".dynamic" {
            let name = String::from_utf8_lossy(name);
            return Err(format!(
                "the vDSO image has data to be written, in {name}: it is mapped read-only"
            ));
        }
        if !KEPT.iter().any(|kept| kept.as_bytes() == name) {
            continue;
        }
        kept.indices.push(index.0);
        kept.headers.push(Section {
            name: kept.names.len() as u32,
            kind: section.sh_type(LE),
            // Linkers expect a loader to write to .dynamic; no loader does so in a vDSO, which is not writable.
            flags: flags & !writable,
            address: section.sh_addr(LE).into(),
            offset: section.sh_offset(LE).into(),
            size,
            link: section.sh_link(LE),
            info: section.sh_info(LE),
            alignment: section.sh_addralign(LE).into(),
            entry_size: section.sh_entsize(LE).into(),
        });
        kept.names.extend_from_slice(name);
        kept.names.push(0);
    }
    for section in &mut kept.headers {
        section.link = new_index(&kept.indices, section.link as usize) as u32;
    }
    Ok(kept)
}

/// Returns the index of a section of the linked file among the kept ones; 0 if it is not kept.
fn new_index(indices: &[usize], old: usize) -> usize {
    indices.iter().position(|&index| index == old).unwrap_or(0)
}

impl Section {
    fn write(&self, is_64: bool, image: &mut Vec<u8>) {
        let half = |image: &mut Vec<u8>, value: u32| image.extend_from_slice(&value.to_le_bytes());
        let word = |image: &mut Vec<u8>, value: u64| {
            let size = if is_64 { 8 } else { 4 };
            image.extend_from_slice(&value.to_le_bytes()[..size]);
        };
        half(image, self.name);
        half(image, self.kind);
        word(image, self.flags);
        word(image, self.address);
        word(image, self.offset);
        word(image, self.size);
        half(image, self.link);
        half(image, self.info);
        word(image, self.alignment);
        word(image, self.entry_size);
    }
}

fn put_file_header(image: &mut [u8], is_64: bool, headers_at: usize, count: usize) {
    // Offsets of e_shoff and of e_shnum, which e_shstrndx follows.
    let (offset_at, size, count_at) = if is_64 { (40, 8, 60) } else { (32, 4, 48) };
    image[offset_at..offset_at + size].copy_from_slice(&headers_at.to_le_bytes()[..size]);
    image[count_at..count_at + 2].copy_from_slice(&(count as u16).to_le_bytes());
    image[count_at + 2..count_at + 4].copy_from_slice(&(count as u16 - 1).to_le_bytes());
}

fn unreadable(error: object::Error) -> String {
    format!("cannot read the linked vDSO image: {error}")
}

/// Updates the symbols' section indices.
fn renumber_symbols<H: FileHeader<Endian = LittleEndian>>(
    header: &H,
    linked: &[u8],
    image: &mut [u8],
    indices: &[usize],
) -> Result<(), String> {
    let sections = header.sections(LE, linked).map_err(unreadable)?;
    let Some((_, table)) = sections.section_by_name(LE, b".dynsym") else {
        return Ok(());
    };
    let at = table.sh_offset(LE).into() as usize;
    let symbols = table.data_as_array::<H::Sym, _>(LE, linked).map_err(unreadable)?;
    // Offset of st_shndx.
    let field = if header.is_class_64() { 6 } else { 14 };
    for (index, symbol) in symbols.iter().enumerate() {
        let section = symbol.st_shndx(LE);
        if section == elf::SHN_UNDEF || section >= elf::SHN_LORESERVE {
            continue;
        }
        let at = at + index * size_of::<H::Sym>() + field;
        if let Some(bytes) = image.get_mut(at..at + 2) {
            bytes.copy_from_slice(&(new_index(indices, section.into()) as u16).to_le_bytes());
        }
    }
    Ok(())
}
