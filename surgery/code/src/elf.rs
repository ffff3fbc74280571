//! The parts of an ELF file that an audit needs. The file's statements are checked: tables are read up to a total of
//! `MOST_TABLES`, and the code that headers describe must be in the file.

use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use fastpath_image::Isa;
use memchr::memmem;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader, SectionTable};
use object::{Endianness, ReadCache, ReadRef};

use crate::bytes::Bytes;

/// Most bytes of headers and tables, so that many threads at once stay within the memory limit of an audit. It is the
/// most that an ELF file can state without extensions that no linker uses: 65,535 headers of each kind.
const MOST_TABLES: u64 = 9 << 20;
/// Most bytes of symbol names. They matter only in parts of glibc, which have a tenth of this.
const MOST_NAMES: u64 = 1 << 20;
/// Most sections with code. Linkers make some ten.
const MOST_CODE_SECTIONS: usize = 1000;
/// Most bytes of code: more than any program has, and read in some seconds.
const MOST_CODE: u64 = 2 << 30;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A program that names no interpreter.
    StaticProgram,
    /// A program that names an interpreter.
    DynamicProgram,
    /// A shared library, an interpreter, a plug-in, a kernel's vDSO.
    Library,
}

/// A part of a file that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub offset: u64,
    pub size: u64,
    /// Address at which it is mapped, before relocation.
    pub address: u64,
}

/// Result of reading an ELF file.
#[derive(Debug)]
pub struct Elf {
    pub isa: Isa,
    pub kind: Kind,
    /// Parts with code. No byte of the file is in two of them.
    pub code: Vec<Part>,
    /// Addresses of the sections with code. Empty if the file has no section headers: an executable part may contain data
    /// as well.
    pub code_sections: Vec<Range<u64>>,
    /// All mapped parts, code included. No byte of the file is in two of them.
    pub mapped: Vec<Part>,
    /// Go's version.
    pub go: Option<String>,
    /// Whether it is a part of a shared glibc. These parts get the vDSO's functions from its loader.
    pub is_of_shared_glibc: bool,
}

/// Returns whether a file begins as ELF files do.
pub fn is_elf(first: &[u8]) -> bool {
    first.starts_with(&elf::ELFMAG)
}

/// Reads an ELF file. `None` for another machine and for files that are never run as they are (object files, core
/// dumps, debug information).
///
/// # Errors
/// Fails with a message if the file is broken.
pub fn read<B: Bytes + ?Sized>(bytes: &B) -> Result<Option<Elf>, String> {
    let mut ident = [0; 16];
    if bytes.read_exact_at(0, &mut ident).is_err() {
        return Err("it ends within the ELF header".to_owned());
    }
    if ident[5] != elf::ELFDATA2LSB {
        return Ok(None);
    }
    let cache = ReadCache::new(Cursor { bytes, at: 0 });
    let read = Cell::new(0);
    let tables = Tables {
        cache: &cache,
        read: &read,
    };
    let result = match ident[4] {
        elf::ELFCLASS64 => of_class::<elf::FileHeader64<Endianness>, _>(tables, bytes.length(), true),
        elf::ELFCLASS32 => of_class::<elf::FileHeader32<Endianness>, _>(tables, bytes.length(), false),
        _ => return Ok(None),
    };
    if read.get() > MOST_TABLES {
        return Err(format!(
            "its headers and tables are larger than {} MiB",
            MOST_TABLES >> 20
        ));
    }
    result
}

fn of_class<'a, Elf64, R>(data: R, length: u64, is_64: bool) -> Result<Option<Elf>, String>
where
    Elf64: FileHeader<Endian = Endianness>,
    R: ReadRef<'a>,
{
    let broken = |what: &str| format!("its {what} cannot be read (truncated, or not what the header says)");
    let header = Elf64::parse(data).map_err(|_| broken("ELF header"))?;
    let endian = header.endian().map_err(|_| broken("ELF header"))?;
    let Some(isa) = Isa::of_elf(header.e_machine(endian), is_64) else {
        return Ok(None);
    };
    let file_type = header.e_type(endian);
    if file_type != elf::ET_EXEC && file_type != elf::ET_DYN {
        return Ok(None);
    }
    let segments = header
        .program_headers(endian, data)
        .map_err(|_| broken("program headers"))?;
    // Section headers are optional, as they are for the kernel.
    let sections = header.sections(endian, data).ok();
    if sections
        .as_ref()
        .is_some_and(|sections| has_debug_information_only(endian, sections))
    {
        return Ok(None);
    }

    let loaded = |wanted: u32| {
        let parts = segments
            .iter()
            .filter(|segment| segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian) & wanted == wanted)
            .map(|segment| Part {
                offset: segment.p_offset(endian).into(),
                size: segment.p_filesz(endian).into(),
                address: segment.p_vaddr(endian).into(),
            });
        apart(parts.collect(), length)
    };
    let (code, mapped) = (loaded(elf::PF_X)?, loaded(0)?);

    let stated = dynamic::<Elf64, R>(data, endian, segments, &mapped, length);
    let has_interpreter = segments.iter().any(|segment| segment.p_type(endian) == elf::PT_INTERP);
    let kind = if stated.soname.is_none() && has_interpreter {
        Kind::DynamicProgram
    } else if !has_interpreter && (file_type == elf::ET_EXEC || stated.is_position_independent) {
        Kind::StaticProgram
    } else {
        Kind::Library
    };
    let go = sections.as_ref().and_then(|sections| {
        let (_, section) = sections.section_by_name(endian, b".go.buildinfo")?;
        let size = section.sh_size(endian).into().min(4096);
        fastpath_image::go_version(data.read_bytes_at(section.sh_offset(endian).into(), size).ok()?)
    });
    let code_sections = sections.iter().flat_map(|sections| {
        let with_code = |flags: u64| flags & u64::from(elf::SHF_EXECINSTR) != 0;
        let of_code = sections
            .iter()
            .filter(move |section| with_code(section.sh_flags(endian).into()));
        of_code.map(|section| (section.sh_addr(endian).into(), section.sh_size(endian).into()))
    });
    let code_sections = code_sections.map(|(start, size): (u64, u64)| start..start.saturating_add(size));
    let code_sections = code_sections.take(MOST_CODE_SECTIONS).collect();
    let is_of_shared_glibc = is_of_glibc(stated.soname.as_deref(), stated.names);
    Ok(Some(Elf {
        isa,
        kind,
        code,
        code_sections,
        mapped,
        go,
        is_of_shared_glibc,
    }))
}

/// What the dynamic section of a file states.
struct Dynamic<'a> {
    /// Its strings.
    names: &'a [u8],
    soname: Option<String>,
    is_position_independent: bool,
}

fn dynamic<'a, Elf64, R>(
    data: R,
    endian: Endianness,
    segments: &[Elf64::ProgramHeader],
    mapped: &[Part],
    length: u64,
) -> Dynamic<'a>
where
    Elf64: FileHeader<Endian = Endianness>,
    R: ReadRef<'a>,
{
    let mut dynamic = segments
        .iter()
        .filter_map(|segment| segment.dynamic(endian, data).ok()?);
    let entries = dynamic.next().unwrap_or(&[]);
    let value_of = |tag: u32| {
        let entry = entries.iter().find(|entry| entry.tag32(endian) == Some(tag))?;
        Some(entry.d_val(endian).into())
    };
    let names_at = value_of(elf::DT_STRTAB).and_then(|address| {
        let part = mapped
            .iter()
            .find(|part| (part.address..part.address + part.size).contains(&address))?;
        Some(part.offset + (address - part.address))
    });
    let names = names_at
        .zip(value_of(elf::DT_STRSZ).filter(|size| *size <= MOST_NAMES))
        .and_then(|(at, size)| data.read_bytes_at(at, size).ok())
        .unwrap_or(&[]);
    let soname = value_of(elf::DT_SONAME).zip(names_at).and_then(|(name, names)| {
        let at = names.checked_add(name)?;
        let name = data.read_bytes_at_until(at..length, 0).ok()?;
        Some(String::from_utf8_lossy(name).into_owned())
    });
    Dynamic {
        names,
        soname,
        is_position_independent: value_of(elf::DT_FLAGS_1).unwrap_or(0) & u64::from(elf::DF_1_PIE) != 0,
    }
}

/// Returns whether a file's code was taken out of it.
fn has_debug_information_only<'a, H, R>(endian: Endianness, sections: &SectionTable<'a, H, R>) -> bool
where
    H: FileHeader<Endian = Endianness>,
    R: ReadRef<'a>,
{
    let executable = u64::from(elf::SHF_ALLOC | elf::SHF_EXECINSTR);
    let has_code_of = |kind: u32| {
        sections.iter().any(|section| {
            section.sh_type(endian) == kind && section.sh_flags(endian).into() & executable == executable
        })
    };
    has_code_of(elf::SHT_NOBITS) && !has_code_of(elf::SHT_PROGBITS)
}

/// Returns whether a file is one of the parts of glibc that use the functions found by its loader: its name is one of
/// theirs, and it has private symbols.
fn is_of_glibc(soname: Option<&str>, names: &[u8]) -> bool {
    const LIBRARIES: [&str; 4] = ["libc.so.6", "libpthread.so.0", "librt.so.1", "ld-linux"];
    let has = |name: &[u8]| memmem::find(names, name).is_some();
    soname.is_some_and(|soname| LIBRARIES.iter().any(|library| soname.starts_with(library)))
        && has(b"\0GLIBC_PRIVATE\0")
}

/// Returns the parts without the bytes that two of them share, lowest offset first.
fn apart(mut parts: Vec<Part>, length: u64) -> Result<Vec<Part>, String> {
    parts.retain(|part| part.size > 0);
    parts.sort_unstable_by_key(|part| part.offset);
    let mut result: Vec<Part> = Vec::new();
    let mut total = 0;
    for mut part in parts {
        let end = part
            .offset
            .checked_add(part.size)
            .filter(|end| *end <= length)
            .ok_or_else(|| {
                format!("it is truncated: it has {length} bytes, and its mapped parts would end behind them")
            })?;
        let taken = result.last().map_or(0, |last| last.offset + last.size);
        if end <= taken {
            continue;
        }
        let shared = taken.saturating_sub(part.offset);
        part.offset += shared;
        part.size -= shared;
        part.address = part.address.wrapping_add(shared);
        // The addresses must not exceed the address space.
        part.address
            .checked_add(part.size)
            .ok_or("its mapped parts would not fit an address space")?;
        total += part.size;
        result.push(part);
    }
    if total > MOST_CODE {
        return Err(format!("it maps more than {} GiB", MOST_CODE >> 30));
    }
    Ok(result)
}

/// Reads for `object`, which needs references that stay valid: all bytes that were read are kept, so their total is
/// limited.
struct Tables<'a, B: Bytes + ?Sized> {
    cache: &'a ReadCache<Cursor<'a, B>>,
    read: &'a Cell<u64>,
}

impl<B: Bytes + ?Sized> Clone for Tables<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Bytes + ?Sized> Copy for Tables<'_, B> {}

impl<B: Bytes + ?Sized> Tables<'_, B> {
    fn take(&self, size: u64) -> Result<(), ()> {
        self.read.set(self.read.get().saturating_add(size));
        if self.read.get() > MOST_TABLES { Err(()) } else { Ok(()) }
    }
}

impl<'a, B: Bytes + ?Sized> ReadRef<'a> for Tables<'a, B> {
    fn len(self) -> Result<u64, ()> {
        self.cache.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.take(size)?;
        self.cache.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: std::ops::Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        // Longest name of a section that is read.
        const MOST_NAME: u64 = 4096;
        self.take(64)?;
        let end = range.end.min(range.start.saturating_add(MOST_NAME));
        self.cache.read_bytes_at_until(range.start..end, delimiter)
    }
}

/// The reader for `object`.
struct Cursor<'a, B: Bytes + ?Sized> {
    bytes: &'a B,
    at: u64,
}

impl<B: Bytes + ?Sized> Read for Cursor<'_, B> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = self.bytes.length().saturating_sub(self.at);
        let size = rest.min(buffer.len() as u64) as usize;
        self.bytes.read_exact_at(self.at, &mut buffer[..size])?;
        self.at += size as u64;
        Ok(size)
    }
}

impl<B: Bytes + ?Sized> Seek for Cursor<'_, B> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = match to {
            SeekFrom::Start(at) => at,
            SeekFrom::End(by) => self.bytes.length().saturating_add_signed(by),
            SeekFrom::Current(by) => self.at.saturating_add_signed(by),
        };
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: u64 = 1000;

    fn part(offset: u64, size: u64) -> Part {
        Part {
            offset,
            size,
            address: 0x1000_u64.wrapping_add(offset),
        }
    }

    #[test]
    fn no_byte_is_looked_at_twice_however_often_it_is_mapped() {
        let parts = vec![part(0, 100), part(50, 100), part(60, 10), part(0, 1000)];
        let parts = apart(parts, LENGTH).unwrap();
        assert_eq!(parts.iter().map(|part| part.size).sum::<u64>(), LENGTH);
        assert!(parts.windows(2).all(|two| two[0].offset + two[0].size == two[1].offset));
        assert!(parts.iter().all(|part| part.address == 0x1000 + part.offset));
    }

    #[test]
    fn mapped_parts_must_be_in_the_file() {
        assert!(apart(vec![part(1, LENGTH)], LENGTH).unwrap_err().contains("truncated"));
        assert!(apart(vec![part(u64::MAX - 5, 10)], LENGTH).is_err());
    }
}
