//! What an ELF file states about its code.

use fastpath_isa::Isa;
use object::elf::{
    self, PF_X, PT_LOAD, SHF_ALLOC, SHF_EXECINSTR, SHT_REL, SHT_RELA, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE,
};
use object::read::elf::{FileHeader, ProgramHeader, Rela, SectionHeader, Sym};
use object::{Endianness, Object};

use crate::rescue::frames::{self, Elf64};

/// A loaded part of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'f> {
    pub address: u64,
    pub bytes: &'f [u8],
}

impl Part<'_> {
    /// Returns the offset of an address.
    pub(crate) fn offset(&self, address: u64) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.address)?).ok()?;
        (offset < self.bytes.len()).then_some(offset)
    }
}

/// A program or library.
#[derive(Debug)]
pub(crate) struct File<'f> {
    pub isa: Isa,
    /// Executable parts.
    pub code: Vec<Part<'f>>,
    /// The other loaded parts.
    pub data: Vec<Part<'f>>,
    /// Whether it is loaded at the addresses that it states, so that any word of it may be one of them. Otherwise each
    /// word that holds an address has a relocation.
    pub is_fixed: bool,
    /// Where functions are: those of symbols and call frames.
    pub functions: Vec<std::ops::Range<u64>>,
    /// Addresses that something other than a function's start names: symbols, relocations, landing pads.
    pub labels: Vec<u64>,
    /// Addresses of data, which may lie between functions.
    pub objects: Vec<u64>,
    /// Where sections without code are. A linker may put them beside code, and code may take their addresses.
    pub data_sections: Vec<std::ops::Range<u64>>,
    /// Addresses of words that relocations change.
    pub relocated: Vec<u64>,
    pub entry: u64,
}

/// SHT_RELR, System V ABI (gABI), "Sections"; object has no name for it.
const SHT_RELR: u32 = 19;

impl<'f> File<'f> {
    /// Returns the loaded parts of a program or library; `None` if it is of another ISA.
    pub(crate) fn parse(bytes: &'f [u8]) -> Option<File<'f>> {
        let elf = &Elf64::parse(bytes).ok()?;
        let endian = elf.endian();
        let header = elf.elf_header();
        let isa = Isa::of_elf(header.e_machine(endian), header.is_class_64())?;
        let kind = header.e_type(endian);
        if !matches!(isa, Isa::X86_64 | Isa::Aarch64) || (kind != elf::ET_EXEC && kind != elf::ET_DYN) {
            return None;
        }
        if endian != Endianness::Little {
            return None;
        }
        let (mut code, mut data) = (Vec::new(), Vec::new());
        for segment in elf.elf_program_headers() {
            if segment.p_type(endian) == PT_LOAD {
                let part = Part {
                    address: segment.p_vaddr(endian),
                    bytes: segment.data(endian, bytes).ok()?,
                };
                // No address may wrap.
                part.address.checked_add(part.bytes.len() as u64)?;
                let is_code = segment.p_flags(endian) & PF_X != 0;
                if is_code { &mut code } else { &mut data }.push(part);
            }
        }
        Some(File {
            isa,
            code,
            data,
            is_fixed: kind == elf::ET_EXEC,
            functions: Vec::new(),
            labels: Vec::new(),
            objects: Vec::new(),
            data_sections: data_sections(elf),
            relocated: Vec::new(),
            entry: elf.entry(),
        })
    }

    /// Adds symbols, relocations and call frames. `None` if there are no section headers, or a table is broken.
    pub(crate) fn add_tables(&mut self, bytes: &'f [u8]) -> Option<()> {
        let elf = &Elf64::parse(bytes).ok()?;
        if elf.elf_section_table().is_empty() {
            return None;
        }
        self.add_symbols(elf);
        self.add_relocations(elf, bytes)?;
        let frames = frames::read(elf);
        self.functions.extend(frames.functions);
        self.labels.extend(frames.landing_pads);
        Some(())
    }

    /// Returns the lowest address of its parts, at the start of its page.
    pub(crate) fn lowest(&self) -> u64 {
        let parts = self.code.iter().chain(&self.data);
        parts.map(|part| part.address).min().unwrap_or(0) & !4095
    }

    /// Returns the executable part that holds an address, and the offset in it.
    pub(crate) fn place(&self, address: u64) -> Option<(usize, usize)> {
        let places = self.code.iter().enumerate();
        places
            .filter_map(|(index, part)| Some((index, part.offset(address)?)))
            .next()
    }

    fn add_symbols(&mut self, elf: &Elf64<'f>) {
        let endian = elf.endian();
        for symbols in [elf.elf_symbol_table(), elf.elf_dynamic_symbol_table()] {
            for symbol in symbols.iter() {
                let at = symbol.st_value(endian);
                match symbol.st_type() {
                    STT_FUNC | STT_GNU_IFUNC => self.functions.push(at..at.saturating_add(symbol.st_size(endian))),
                    STT_NOTYPE => self.labels.push(at),
                    _ => self.objects.push(at),
                }
            }
        }
    }

    /// Adds the words that relocations change, and the addresses that they store. `None` if a table is broken.
    fn add_relocations(&mut self, elf: &Elf64<'f>, bytes: &'f [u8]) -> Option<()> {
        let endian = elf.endian();
        for section in elf.elf_section_table().iter() {
            match section.sh_type(endian) {
                SHT_RELA => {
                    let (relocations, _) = section.rela(endian, bytes).ok()??;
                    for relocation in relocations {
                        self.relocated.push(relocation.r_offset(endian));
                        self.labels.push(relocation.r_addend(endian) as u64);
                    }
                }
                // Not in the psABIs of x86-64 and AArch64, which have RELA.
                SHT_REL => return None,
                SHT_RELR => {
                    let words = section.data_as_array::<u64, _>(endian, bytes).ok()?;
                    self.add_packed(words);
                }
                _ => {}
            }
        }
        Some(())
    }

    /// Adds relative relocations in their packed form (gABI, "Relative Relocation Table"): an even word is an address,
    /// and an odd one a bitmap of the 63 words after it.
    fn add_packed(&mut self, words: &[u64]) {
        let mut next = 0_u64;
        for word in words.iter().map(|word| u64::from_le(*word)) {
            if word & 1 == 0 {
                self.add_relative(word);
                next = word.wrapping_add(8);
                continue;
            }
            (0..63)
                .filter(|bit| word >> (bit + 1) & 1 == 1)
                .for_each(|bit| self.add_relative(next.wrapping_add(8 * bit)));
            next = next.wrapping_add(63 * 8);
        }
    }

    /// Adds a relocation whose addend is the word itself.
    fn add_relative(&mut self, at: u64) {
        self.relocated.push(at);
        let mut parts = self.data.iter().chain(&self.code);
        let word = parts.find_map(|part| part.bytes.get(part.offset(at)?..)?.first_chunk());
        self.labels.extend(word.map(|bytes| u64::from_le_bytes(*bytes)));
    }
}

/// Returns where the loaded sections are that have no code.
fn data_sections(elf: &Elf64<'_>) -> Vec<std::ops::Range<u64>> {
    let endian = elf.endian();
    let flags = u64::from(SHF_ALLOC | SHF_EXECINSTR);
    let sections = elf.elf_section_table().iter();
    let data = sections.filter(|section| section.sh_flags(endian) & flags == u64::from(SHF_ALLOC));
    data.map(|section| {
        let start = section.sh_addr(endian);
        start..start.saturating_add(section.sh_size(endian))
    })
    .collect()
}
