//! A reader of an ELF file in memory that does not trust its contents.
//!
//! A vDSO is one loadable segment, so an address in it is an offset into its bytes after the load bias is subtracted.
//! Every access is checked, by the crate `object`: a vDSO comes from another process, which may have written anything
//! there. Unlike `object`'s own files, this reads by the program headers alone, as loaders do.

pub mod check;

use object::elf::{FileHeader32, FileHeader64, Verdaux, Verdef, Versym};
use object::read::elf::{Dyn, FileHeader, GnuHashTable, HashTable, ProgramHeader, SectionHeader, Sym};
use object::{LittleEndian, ReadRef, StringTable};

pub use fastpath_isa::{Isa, Property, Unwind};
pub use object::elf::{
    DT_GNU_HASH, DT_HASH, DT_SONAME, DT_STRSZ, DT_STRTAB, DT_SYMENT, DT_SYMTAB, DT_VERDEF, DT_VERDEFNUM, DT_VERSYM,
    ET_DYN, NT_GNU_BUILD_ID, PF_R, PF_W, PF_X, PT_ARM_EXIDX, PT_DYNAMIC, PT_GNU_EH_FRAME, PT_GNU_PROPERTY,
    PT_GNU_STACK, PT_LOAD, PT_NOTE, SHN_ABS, SHN_UNDEF, STB_GLOBAL, STB_WEAK, STT_FUNC, STT_NOTYPE, VER_FLG_BASE,
    VERSYM_VERSION,
};

const LE: LittleEndian = LittleEndian;
/// Size of e_ident, and the indices of the class and the byte order in it (elf(5)).
const IDENT_SIZE: usize = 16;
const CLASS: usize = 4;
const BYTE_ORDER: usize = 5;
/// Most entries that are read of the dynamic section and of a chain of version definitions.
const MAX_ENTRIES: usize = 256;

/// Reason why bytes cannot be read as an ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// The magic number is missing.
    #[error("not an ELF file: the magic number is missing")]
    Magic,
    /// Neither 32 nor 64 bits.
    #[error("unknown ELF class {0}")]
    Class(u8),
    /// A big-endian file.
    #[error("unknown ELF byte order {0}: only little-endian files can be read")]
    ByteOrder(u8),
    /// The file header reaches beyond the bytes, or is of another version.
    #[error("the ELF file header is cut off")]
    Header,
    /// The program headers reach beyond the bytes.
    #[error("the program headers are cut off")]
    ProgramHeaders,
    /// There is no loadable segment.
    #[error("no loadable segment")]
    NoLoad,
}

/// One program header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub kind: u32,
    pub flags: u32,
    pub offset: u64,
    pub vaddr: u64,
    pub file_size: u64,
    pub memory_size: u64,
    pub alignment: u64,
}

/// One section header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub name: String,
    pub flags: u64,
}

/// One entry of the dynamic symbol table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    pub name: &'a [u8],
    pub value: u64,
    pub size: u64,
    pub kind: u8,
    pub binding: u8,
    pub section: u16,
    /// The entry of DT_VERSYM, where there is one.
    pub version: Option<u16>,
}

/// One note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note<'a> {
    pub name: &'a [u8],
    pub kind: u32,
    pub description: &'a [u8],
}

/// An ELF file of either class.
pub struct Elf<'a> {
    bytes: &'a [u8],
    is_64: bool,
    pub kind: u16,
    pub machine: u16,
    pub segments: Vec<Segment>,
    /// The dynamic section's tags and values, up to DT_NULL.
    pub dynamic: Vec<(u32, u64)>,
    pub notes: Vec<Note<'a>>,
    load: Segment,
    strings: StringTable<'a>,
    symbol_count: u32,
    /// By index, as far as they lie in the bytes; `None`: a symbol without a readable name.
    symbols: Vec<Option<Symbol<'a>>>,
}

pub(crate) fn bytes_at(bytes: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    bytes.read_bytes_at(offset, size).ok()
}

fn array_at<const N: usize>(bytes: &[u8], offset: u64) -> Option<[u8; N]> {
    bytes_at(bytes, offset, N as u64)?.try_into().ok()
}

pub fn u16_at(bytes: &[u8], offset: u64) -> Option<u16> {
    array_at(bytes, offset).map(u16::from_le_bytes)
}

pub fn u32_at(bytes: &[u8], offset: u64) -> Option<u32> {
    array_at(bytes, offset).map(u32::from_le_bytes)
}

pub fn u64_at(bytes: &[u8], offset: u64) -> Option<u64> {
    array_at(bytes, offset).map(u64::from_le_bytes)
}

impl<'a> Elf<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Elf<'a>, ElfError> {
        if !bytes.starts_with(b"\x7fELF") {
            return Err(ElfError::Magic);
        }
        let ident = bytes.get(..IDENT_SIZE).ok_or(ElfError::Header)?;
        match (ident[CLASS], ident[BYTE_ORDER]) {
            (1, 1) => Elf::of_class::<FileHeader32<LittleEndian>>(bytes),
            (2, 1) => Elf::of_class::<FileHeader64<LittleEndian>>(bytes),
            (1 | 2, order) => Err(ElfError::ByteOrder(order)),
            (class, _) => Err(ElfError::Class(class)),
        }
    }

    fn of_class<H: FileHeader<Endian = LittleEndian>>(bytes: &'a [u8]) -> Result<Elf<'a>, ElfError> {
        let header = H::parse(bytes).map_err(|_| ElfError::Header)?;
        let headers = header.program_headers(LE, bytes);
        let headers = headers.map_err(|_| ElfError::ProgramHeaders)?;
        let segments: Vec<Segment> = headers.iter().map(segment).collect();
        let load = segments.iter().find(|segment| segment.kind == PT_LOAD);
        let mut elf = Elf {
            bytes,
            is_64: header.is_class_64(),
            kind: header.e_type(LE),
            machine: header.e_machine(LE),
            load: *load.ok_or(ElfError::NoLoad)?,
            segments,
            dynamic: Vec::new(),
            notes: Vec::new(),
            strings: StringTable::default(),
            symbol_count: 0,
            symbols: Vec::new(),
        };
        elf.dynamic = elf.read_dynamic::<H::Dyn>();
        if let (Some(start), Some(size)) = (elf.dynamic_offset(DT_STRTAB), elf.dynamic_value(DT_STRSZ)) {
            elf.strings = StringTable::new(bytes, start, start.saturating_add(size));
        }
        elf.symbol_count = elf.count_symbols::<H>().unwrap_or(0);
        elf.symbols = (0..elf.symbol_count)
            .map_while(|index| Some(elf.read_symbol(index, bytes.read_at::<H::Sym>(elf.symbol_offset(index)?).ok()?)))
            .collect();
        for notes in headers.iter().filter_map(|header| header.notes(LE, bytes).ok()?) {
            elf.notes.extend(notes.map_while(Result::ok).map(|note| Note {
                name: note.name(),
                kind: note.n_type(LE),
                description: note.desc(),
            }));
        }
        Ok(elf)
    }

    pub fn is_64(&self) -> bool {
        self.is_64
    }

    /// Returns the difference between an address in the file and the offset into its bytes. Kernels before 3.16 link
    /// their vDSO to a high address.
    pub fn bias(&self) -> u64 {
        self.load.vaddr.wrapping_sub(self.load.offset)
    }

    pub fn offset_of(&self, vaddr: u64) -> u64 {
        vaddr.wrapping_sub(self.bias())
    }

    /// Returns whether the bytes from this offset are in the loaded segment and in the file.
    pub(crate) fn is_loaded(&self, offset: u64, size: u64) -> bool {
        let end = self.load.offset.saturating_add(self.load.file_size);
        offset >= self.load.offset
            && offset.checked_add(size).is_some_and(|last| last <= end)
            && bytes_at(self.bytes, offset, size).is_some()
    }

    pub fn segments_of(&self, kind: u32) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(move |segment| segment.kind == kind)
    }

    /// Returns the value of a dynamic tag.
    pub(crate) fn dynamic_value(&self, tag: u32) -> Option<u64> {
        self.dynamic.iter().find(|entry| entry.0 == tag).map(|entry| entry.1)
    }

    /// Returns the value of a dynamic tag that is an address, as an offset into the bytes.
    pub fn dynamic_offset(&self, tag: u32) -> Option<u64> {
        self.dynamic_value(tag).map(|vaddr| self.offset_of(vaddr))
    }

    fn read_dynamic<D: Dyn<Endian = LittleEndian>>(&self) -> Vec<(u32, u64)> {
        let size = size_of::<D>() as u64;
        let section = self.segments_of(PT_DYNAMIC).next().map(|dynamic| {
            let at = self.offset_of(dynamic.vaddr);
            (0..(dynamic.memory_size / size).min(MAX_ENTRIES as u64))
                .map_while(move |index| self.bytes.read_at::<D>(at.checked_add(index * size)?).ok())
        });
        let entries = section.into_iter().flatten();
        let entries = entries.map(|entry| (entry.tag32(LE).unwrap_or(u32::MAX), entry.d_val(LE).into()));
        entries.take_while(|&(tag, _)| tag != 0).collect()
    }

    /// Returns a string of DT_STRTAB.
    pub fn string(&self, index: u64) -> Option<&'a [u8]> {
        self.strings.get(u32::try_from(index).ok()?).ok()
    }

    pub fn soname(&self) -> Option<&'a [u8]> {
        self.string(self.dynamic_value(DT_SONAME)?)
    }

    /// Returns the size of an entry of the dynamic symbol table.
    pub(crate) fn symbol_size(&self) -> u64 {
        if self.is_64 { 24 } else { 16 }
    }

    /// Returns the offset of a dynamic symbol's entry.
    pub fn symbol_offset(&self, index: u32) -> Option<u64> {
        let table = self.dynamic_offset(DT_SYMTAB)?;
        table.checked_add(u64::from(index) * self.symbol_size())
    }

    pub fn symbol(&self, index: u32) -> Option<Symbol<'a>> {
        *self.symbols.get(index as usize)?
    }

    /// Returns the dynamic symbols, without the empty one at index 0. Those that cannot be read are left out.
    pub fn symbols(&self) -> impl Iterator<Item = (u32, Symbol<'a>)> {
        let symbols = (0..).zip(&self.symbols).skip(1);
        symbols.filter_map(|(index, symbol)| Some((index, (*symbol)?)))
    }

    /// Returns the number of dynamic symbols, by the hash tables: the symbol table has no length of its own.
    pub(crate) fn symbol_count(&self) -> u32 {
        self.symbol_count
    }

    fn count_symbols<H: FileHeader<Endian = LittleEndian>>(&self) -> Option<u32> {
        let from = |tag| self.bytes.get(usize::try_from(self.dynamic_offset(tag)?).ok()?..);
        let hash = from(DT_HASH).and_then(|table| HashTable::<H>::parse(LE, table).ok());
        hash.map(|hash| hash.symbol_table_length()).or_else(|| {
            GnuHashTable::<H>::parse(LE, from(DT_GNU_HASH)?)
                .ok()?
                .symbol_table_length(LE)
        })
    }

    fn read_symbol<S: Sym<Endian = LittleEndian>>(&self, index: u32, symbol: &S) -> Option<Symbol<'a>> {
        let version = || {
            let at = self.dynamic_offset(DT_VERSYM)?.checked_add(2 * u64::from(index))?;
            Some(self.bytes.read_at::<Versym<LittleEndian>>(at).ok()?.0.get(LE))
        };
        Some(Symbol {
            name: self.string(symbol.st_name(LE).into())?,
            value: symbol.st_value(LE).into(),
            size: symbol.st_size(LE).into(),
            kind: symbol.st_type(),
            binding: symbol.st_bind(),
            section: symbol.st_shndx(LE),
            version: version(),
        })
    }

    /// Returns the version definitions: index, flags, name.
    pub fn versions(&self) -> Vec<(u16, u16, &'a [u8])> {
        let mut versions = Vec::new();
        let mut at = self.dynamic_offset(DT_VERDEF);
        while let Some(here) = at {
            let definition = || {
                let definition = self.bytes.read_at::<Verdef<LittleEndian>>(here).ok()?;
                let aux = here.checked_add(definition.vd_aux.get(LE).into())?;
                let aux = self.bytes.read_at::<Verdaux<LittleEndian>>(aux).ok()?;
                let name = self.string(aux.vda_name.get(LE).into())?;
                let version = (definition.vd_ndx.get(LE), definition.vd_flags.get(LE), name);
                Some((version, u64::from(definition.vd_next.get(LE))))
            };
            let Some((version, next)) = definition() else { break };
            versions.push(version);
            if next == 0 || versions.len() == MAX_ENTRIES {
                break;
            }
            at = here.checked_add(next);
        }
        versions
    }

    /// Returns the section headers, if any. `None`: the file header promises headers that are missing.
    pub fn sections(&self) -> Option<Vec<Section>> {
        if self.is_64 {
            self.sections_of::<FileHeader64<LittleEndian>>()
        } else {
            self.sections_of::<FileHeader32<LittleEndian>>()
        }
    }

    fn sections_of<H: FileHeader<Endian = LittleEndian>>(&self) -> Option<Vec<Section>> {
        let sections = H::parse(self.bytes).ok()?.sections(LE, self.bytes).ok()?;
        let section = |section: &H::SectionHeader| {
            let name = sections.section_name(LE, section).ok()?;
            Some(Section {
                name: String::from_utf8_lossy(name).into_owned(),
                flags: section.sh_flags(LE).into(),
            })
        };
        sections.iter().map(section).collect()
    }
}

fn segment<P: ProgramHeader<Endian = LittleEndian>>(header: &P) -> Segment {
    Segment {
        kind: header.p_type(LE),
        flags: header.p_flags(LE),
        offset: header.p_offset(LE).into(),
        vaddr: header.p_vaddr(LE).into(),
        file_size: header.p_filesz(LE).into(),
        memory_size: header.p_memsz(LE).into(),
        alignment: header.p_align(LE).into(),
    }
}
