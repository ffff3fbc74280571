//! A reader of an ELF file in memory that does not trust its contents.
//!
//! A vDSO is one loadable segment, so an address in it is an offset into its bytes after the load bias is subtracted.
//! Every access is checked: a vDSO comes from another process, which may have written anything there.

pub const ET_DYN: u16 = 3;

pub const PT_LOAD: u32 = 1;
pub const PT_DYNAMIC: u32 = 2;
pub const PT_NOTE: u32 = 4;
pub const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
pub const PT_ARM_EXIDX: u32 = 0x7000_0001;

pub const NT_GNU_BUILD_ID: u32 = 3;

pub const PF_X: u32 = 1;
pub const PF_R: u32 = 4;

pub const DT_HASH: u64 = 4;
pub const DT_STRTAB: u64 = 5;
pub const DT_SYMTAB: u64 = 6;
pub const DT_STRSZ: u64 = 10;
pub const DT_SYMENT: u64 = 11;
pub const DT_SONAME: u64 = 14;
pub const DT_GNU_HASH: u64 = 0x6fff_fef5;
pub const DT_VERSYM: u64 = 0x6fff_fff0;
pub const DT_VERDEF: u64 = 0x6fff_fffc;
pub const DT_VERDEFNUM: u64 = 0x6fff_fffd;

pub const SHN_UNDEF: u16 = 0;
pub const SHN_ABS: u16 = 0xfff1;

pub const STB_GLOBAL: u8 = 1;
pub const STB_WEAK: u8 = 2;
pub const STT_NOTYPE: u8 = 0;
pub const STT_FUNC: u8 = 2;

pub const VER_FLG_BASE: u16 = 1;
/// Mask of the version in a DT_VERSYM entry; the highest bit means "hidden".
pub const VERSION_MASK: u16 = 0x7fff;

const IDENT_SIZE: usize = 16;
/// Most program headers that are read, more than any vDSO has.
const MAX_SEGMENTS: u16 = 64;
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
    /// The file header reaches beyond the bytes.
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
    pub info: u8,
    pub section: u16,
    /// The entry of DT_VERSYM, where there is one.
    pub version: Option<u16>,
}

impl Symbol<'_> {
    pub fn kind(&self) -> u8 {
        self.info & 0xf
    }

    pub fn binding(&self) -> u8 {
        self.info >> 4
    }
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
    dynamic: Vec<(u64, u64)>,
    load: Segment,
}

pub fn bytes_at(bytes: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    bytes.get(start..end)
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

/// Returns `base + index * size` without overflow.
fn entry(base: u64, index: u64, size: u64) -> Option<u64> {
    base.checked_add(index.checked_mul(size)?)
}

impl<'a> Elf<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Elf<'a>, ElfError> {
        if bytes.get(..4) != Some(b"\x7fELF") {
            return Err(ElfError::Magic);
        }
        if bytes.len() < IDENT_SIZE {
            return Err(ElfError::Header);
        }
        let is_64 = match bytes[4] {
            1 => false,
            2 => true,
            class => return Err(ElfError::Class(class)),
        };
        if bytes[5] != 1 {
            return Err(ElfError::ByteOrder(bytes[5]));
        }
        let header = || {
            let kind = u16_at(bytes, 16)?;
            let machine = u16_at(bytes, 18)?;
            let (offset, size, count) = if is_64 {
                (u64_at(bytes, 32)?, u16_at(bytes, 54)?, u16_at(bytes, 56)?)
            } else {
                (u64::from(u32_at(bytes, 28)?), u16_at(bytes, 42)?, u16_at(bytes, 44)?)
            };
            Some((kind, machine, offset, size, count))
        };
        let (kind, machine, offset, size, count) = header().ok_or(ElfError::Header)?;
        let segments = (0..count.min(MAX_SEGMENTS))
            .map(|index| segment(bytes, is_64, entry(offset, u64::from(index), u64::from(size))?))
            .collect::<Option<Vec<_>>>()
            .ok_or(ElfError::ProgramHeaders)?;
        let load = *segments
            .iter()
            .find(|segment| segment.kind == PT_LOAD)
            .ok_or(ElfError::NoLoad)?;
        let mut elf = Elf {
            bytes,
            is_64,
            kind,
            machine,
            segments,
            dynamic: Vec::new(),
            load,
        };
        elf.dynamic = elf.read_dynamic();
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
    pub fn is_loaded(&self, offset: u64, size: u64) -> bool {
        let end = self.load.offset.saturating_add(self.load.file_size);
        offset >= self.load.offset
            && offset.checked_add(size).is_some_and(|last| last <= end)
            && bytes_at(self.bytes, offset, size).is_some()
    }

    pub fn segments_of(&self, kind: u32) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(move |segment| segment.kind == kind)
    }

    /// Returns the dynamic section's entries, up to DT_NULL.
    pub fn dynamic(&self) -> &[(u64, u64)] {
        &self.dynamic
    }

    /// Returns the value of a dynamic tag.
    pub fn dynamic_value(&self, tag: u64) -> Option<u64> {
        self.dynamic.iter().find(|entry| entry.0 == tag).map(|entry| entry.1)
    }

    /// Returns the value of a dynamic tag that is an address, as an offset into the bytes.
    pub fn dynamic_offset(&self, tag: u64) -> Option<u64> {
        self.dynamic_value(tag).map(|vaddr| self.offset_of(vaddr))
    }

    fn read_dynamic(&self) -> Vec<(u64, u64)> {
        let Some(dynamic) = self.segments_of(PT_DYNAMIC).next() else {
            return Vec::new();
        };
        let size = if self.is_64 { 16 } else { 8 };
        let at = self.offset_of(dynamic.vaddr);
        let count = (dynamic.memory_size / size).min(MAX_ENTRIES as u64);
        (0..count)
            .map_while(|index| {
                let at = entry(at, index, size)?;
                Some((self.word(at)?, self.word(at.checked_add(size / 2)?)?))
            })
            .take_while(|&(tag, _)| tag != 0)
            .collect()
    }

    /// Returns a pointer-sized number.
    fn word(&self, offset: u64) -> Option<u64> {
        if self.is_64 {
            u64_at(self.bytes, offset)
        } else {
            u32_at(self.bytes, offset).map(u64::from)
        }
    }

    /// Returns a string of DT_STRTAB.
    pub fn string(&self, index: u64) -> Option<&'a [u8]> {
        let size = self.dynamic_value(DT_STRSZ)?;
        let table = bytes_at(self.bytes, self.dynamic_offset(DT_STRTAB)?, size)?;
        let rest = table.get(usize::try_from(index).ok()?..)?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        Some(&rest[..end])
    }

    pub fn soname(&self) -> Option<&'a [u8]> {
        self.string(self.dynamic_value(DT_SONAME)?)
    }

    /// Returns the size of an entry of the dynamic symbol table.
    pub fn symbol_size(&self) -> u64 {
        if self.is_64 { 24 } else { 16 }
    }

    /// Returns the offset of a dynamic symbol's entry.
    pub fn symbol_offset(&self, index: u32) -> Option<u64> {
        entry(self.dynamic_offset(DT_SYMTAB)?, u64::from(index), self.symbol_size())
    }

    pub fn symbol(&self, index: u32) -> Option<Symbol<'a>> {
        let at = self.symbol_offset(index)?;
        let raw = bytes_at(self.bytes, at, self.symbol_size())?;
        let name = self.string(u64::from(u32_at(raw, 0)?))?;
        let version = self
            .dynamic_offset(DT_VERSYM)
            .and_then(|table| u16_at(self.bytes, entry(table, u64::from(index), 2)?));
        Some(if self.is_64 {
            Symbol {
                name,
                info: raw[4],
                section: u16_at(raw, 6)?,
                value: u64_at(raw, 8)?,
                size: u64_at(raw, 16)?,
                version,
            }
        } else {
            Symbol {
                name,
                value: u64::from(u32_at(raw, 4)?),
                size: u64::from(u32_at(raw, 8)?),
                info: raw[12],
                section: u16_at(raw, 14)?,
                version,
            }
        })
    }

    /// Returns the dynamic symbols, without the empty one at index 0. Those that cannot be read are left out.
    pub fn symbols(&self) -> impl Iterator<Item = (u32, Symbol<'a>)> {
        // An entry beyond the bytes ends the table, whatever its count says.
        (1..self.symbol_count())
            .take_while(|&index| self.symbol_offset(index).is_some_and(|at| at < self.bytes.len() as u64))
            .filter_map(|index| Some((index, self.symbol(index)?)))
    }

    /// Returns the number of dynamic symbols, by the hash tables: the symbol table has no length of its own.
    pub fn symbol_count(&self) -> u32 {
        self.dynamic_offset(DT_HASH)
            .and_then(|table| u32_at(self.bytes, table.checked_add(4)?))
            .or_else(|| self.symbol_count_by_gnu_hash())
            .unwrap_or(0)
    }

    fn symbol_count_by_gnu_hash(&self) -> Option<u32> {
        let table = self.dynamic_offset(DT_GNU_HASH)?;
        let buckets = u32_at(self.bytes, table)?;
        let first = u32_at(self.bytes, table.checked_add(4)?)?;
        let bloom_words = u64::from(u32_at(self.bytes, table.checked_add(8)?)?);
        let bloom_size = bloom_words * if self.is_64 { 8 } else { 4 };
        let bucket_table = table.checked_add(16)?.checked_add(bloom_size)?;
        let chain_table = entry(bucket_table, u64::from(buckets), 4)?;
        let mut last = (0..u64::from(buckets))
            .map_while(|bucket| u32_at(self.bytes, entry(bucket_table, bucket, 4)?))
            .max()?;
        if last < first {
            return Some(first);
        }
        // The lowest bit ends a chain.
        while u32_at(self.bytes, entry(chain_table, u64::from(last - first), 4)?)? & 1 == 0 {
            last = last.checked_add(1)?;
        }
        last.checked_add(1)
    }

    /// Returns the version definitions: index, flags, name.
    pub fn versions(&self) -> Vec<(u16, u16, &'a [u8])> {
        let mut versions = Vec::new();
        let mut at = self.dynamic_offset(DT_VERDEF);
        while let Some(here) = at {
            let definition = || {
                let flags = u16_at(self.bytes, here.checked_add(2)?)?;
                let index = u16_at(self.bytes, here.checked_add(4)?)?;
                let aux = here.checked_add(u64::from(u32_at(self.bytes, here.checked_add(12)?)?))?;
                let name = self.string(u64::from(u32_at(self.bytes, aux)?))?;
                let next = u64::from(u32_at(self.bytes, here.checked_add(16)?)?);
                Some(((index, flags, name), next))
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

    /// Returns the notes of all note segments.
    pub fn notes(&self) -> Vec<Note<'a>> {
        let mut notes = Vec::new();
        for segment in self.segments_of(PT_NOTE) {
            let Some(mut rest) = bytes_at(self.bytes, segment.offset, segment.file_size) else {
                continue;
            };
            while let Some((note, size)) = note(rest) {
                notes.push(note);
                rest = rest.get(size..).unwrap_or_default();
            }
        }
        notes
    }

    /// Returns the section headers, if any. `None`: the file header promises headers that are missing.
    pub fn sections(&self) -> Option<Vec<Section>> {
        let (offset, size, count, names) = if self.is_64 {
            (
                u64_at(self.bytes, 40)?,
                u16_at(self.bytes, 58)?,
                u16_at(self.bytes, 60)?,
                u16_at(self.bytes, 62)?,
            )
        } else {
            (
                u64::from(u32_at(self.bytes, 32)?),
                u16_at(self.bytes, 46)?,
                u16_at(self.bytes, 48)?,
                u16_at(self.bytes, 50)?,
            )
        };
        let header = |index: u16| {
            let at = entry(offset, u64::from(index), u64::from(size))?;
            bytes_at(self.bytes, at, u64::from(size))
        };
        let names = if count == 0 {
            &[][..]
        } else {
            let header = header(names)?;
            let (at, size) = if self.is_64 {
                (u64_at(header, 24)?, u64_at(header, 32)?)
            } else {
                (u64::from(u32_at(header, 16)?), u64::from(u32_at(header, 20)?))
            };
            bytes_at(self.bytes, at, size)?
        };
        (0..count)
            .map(|index| {
                let header = header(index)?;
                let name = names.get(u32_at(header, 0)? as usize..)?;
                let end = name.iter().position(|&byte| byte == 0)?;
                Some(Section {
                    name: String::from_utf8_lossy(&name[..end]).into_owned(),
                    flags: if self.is_64 {
                        u64_at(header, 8)?
                    } else {
                        u64::from(u32_at(header, 8)?)
                    },
                })
            })
            .collect()
    }
}

fn segment(bytes: &[u8], is_64: bool, at: u64) -> Option<Segment> {
    if is_64 {
        let raw = bytes_at(bytes, at, 56)?;
        Some(Segment {
            kind: u32_at(raw, 0)?,
            flags: u32_at(raw, 4)?,
            offset: u64_at(raw, 8)?,
            vaddr: u64_at(raw, 16)?,
            file_size: u64_at(raw, 32)?,
            memory_size: u64_at(raw, 40)?,
        })
    } else {
        let raw = bytes_at(bytes, at, 32)?;
        let word = |offset| u32_at(raw, offset).map(u64::from);
        Some(Segment {
            kind: u32_at(raw, 0)?,
            offset: word(4)?,
            vaddr: word(8)?,
            file_size: word(16)?,
            memory_size: word(20)?,
            flags: u32_at(raw, 24)?,
        })
    }
}

/// Returns the first note, and its size in bytes.
fn note(bytes: &[u8]) -> Option<(Note<'_>, usize)> {
    let name_size = u64::from(u32_at(bytes, 0)?);
    let description_size = u64::from(u32_at(bytes, 4)?);
    let description_at = 12 + name_size.next_multiple_of(4);
    let name = bytes_at(bytes, 12, name_size)?;
    let note = Note {
        name: name.strip_suffix(b"\0").unwrap_or(name),
        kind: u32_at(bytes, 8)?,
        description: bytes_at(bytes, description_at, description_size)?,
    };
    let size = description_at + description_size.next_multiple_of(4);
    Some((note, usize::try_from(size).ok()?))
}
