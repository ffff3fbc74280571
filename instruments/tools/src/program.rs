//! Facts about a program from its file: word size, libc, Go, and whether it asks for a vDSO.

use fastpath_image::Isa;
use memchr::memmem;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, ReadCache, ReadRef};
use std::borrow::Cow;
use std::io::{self, Read, Seek, SeekFrom};

/// A libc and its version.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Library {
    /// `glibc` or `musl`.
    pub name: Cow<'static, str>,
    /// The version, such as `2.36`.
    pub version: Option<String>,
    /// The file; nothing if the library is part of the program.
    pub path: Option<String>,
}

/// Facts about a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Word size: 32 or 64.
    pub word_bits: u8,
    /// The ISA: `x86_64`, `i386`, `aarch64`, `arm`.
    pub isa: String,
    /// Whether it is static: it has no interpreter (ld.so).
    pub is_static: bool,
    /// Version of Go that built it.
    pub go: Option<String>,
    /// The libc of a static program.
    pub libc: Option<Library>,
    /// Whether a static program contains the name of a vDSO's function.
    pub asks_for_vdso: Option<bool>,
}

/// Reads a program. Returns `None` if it is not an ELF file.
pub fn read(mut file: impl Read + Seek) -> Option<Program> {
    let mut ident = [0; 16];
    file.read_exact(&mut ident).ok()?;
    let cache = ReadCache::new(&mut file);
    let mut program = match ident[4] {
        elf::ELFCLASS64 => of_elf::<elf::FileHeader64<Endianness>, _>(&cache, 64),
        elf::ELFCLASS32 => of_elf::<elf::FileHeader32<Endianness>, _>(&cache, 32),
        _ => None,
    }?;
    if program.is_static {
        let found = search(&mut file, &[VDSO_X86_AND_ARM, VDSO_AARCH64, GLIBC]).ok()?;
        program.asks_for_vdso = Some(found[0] || found[1]);
        // The version is not in a static program: only the shared library contains the banner.
        program.libc = found[2].then_some(Library {
            name: "glibc".into(),
            version: None,
            path: None,
        });
    }
    Some(program)
}

const VDSO_X86_AND_ARM: &[u8] = b"__vdso_clock_gettime";
const VDSO_AARCH64: &[u8] = b"__kernel_clock_gettime";
/// Text that every static glibc since 2.26 contains.
const GLIBC: &[u8] = b"GLIBC_TUNABLES";

fn of_elf<'a, Elf, R>(data: R, word_bits: u8) -> Option<Program>
where
    Elf: FileHeader<Endian = Endianness>,
    R: ReadRef<'a>,
{
    let header = Elf::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, data).ok()?;
    let is_static = !segments.iter().any(|segment| segment.p_type(endian) == elf::PT_INTERP);
    Some(Program {
        word_bits,
        isa: isa(header.e_machine(endian)),
        is_static,
        go: go_version::<Elf, R>(header, endian, data),
        ..Program::default()
    })
}

fn isa(machine: u16) -> String {
    let known = Isa::ALL.into_iter().find(|isa| isa.elf_machine() == machine);
    known.map_or_else(|| format!("ELF machine {machine}"), |isa| isa.name().to_owned())
}

fn go_version<'a, Elf, R>(header: &Elf, endian: Endianness, data: R) -> Option<String>
where
    Elf: FileHeader<Endian = Endianness>,
    R: ReadRef<'a>,
{
    let sections = header.sections(endian, data).ok()?;
    let (_, section) = sections.section_by_name(endian, b".go.buildinfo")?;
    fastpath_image::go_version(section.data(endian, data).ok()?)
}

/// Bytes of a program that are searched: more would take longer than the rest of the examination.
const SEARCHED: u64 = 256 << 20;

/// Returns which of some words are in a file.
fn search(file: &mut (impl Read + Seek), words: &[&[u8]]) -> io::Result<Vec<bool>> {
    const CHUNK: usize = 1 << 20;
    let overlap = words.iter().map(|word| word.len()).max().unwrap_or(0);
    let mut found = vec![false; words.len()];
    let mut buffer = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    let mut rest = file.take(SEARCHED);
    loop {
        let kept = buffer.len().min(overlap);
        buffer.drain(..buffer.len() - kept);
        if rest.by_ref().take(CHUNK as u64).read_to_end(&mut buffer)? == 0 {
            return Ok(found);
        }
        for (found, word) in found.iter_mut().zip(words) {
            *found = *found || memmem::find(&buffer, word).is_some();
        }
    }
}

/// Parses glibc's banner: `GNU C Library (Debian GLIBC 2.36-9+deb12u9) stable release version 2.36.`
pub fn glibc_version(library: &[u8]) -> Option<String> {
    const BEFORE: &[u8] = b"release version ";
    let banner = &library[memmem::find(library, b"GNU C Library")?..];
    let version = &banner[memmem::find(banner, BEFORE)? + BEFORE.len()..];
    let end = version
        .iter()
        .position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
    let version = std::str::from_utf8(&version[..end]).ok()?.trim_end_matches('.');
    (!version.is_empty()).then(|| version.to_owned())
}

/// Returns the version of musl's shared library; other files contain none.
pub fn musl_version(library: &[u8]) -> Option<String> {
    memmem::find(library, b"musl libc")?;
    fastpath_image::musl_version(library)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    fn of_bytes(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        file
    }

    #[test]
    fn this_test_is_a_dynamic_program_of_this_isa_or_says_that_it_is_static() {
        let program = read(File::open("/proc/self/exe").unwrap()).unwrap();
        assert_eq!(program.word_bits as usize, usize::BITS as usize);
        assert_eq!(program.isa, std::env::consts::ARCH);
        assert_eq!(program.go, None);
        assert_eq!(program.asks_for_vdso.is_some(), program.is_static);
    }

    #[test]
    fn what_is_no_elf_file_is_nothing() {
        for text in ["#!/bin/sh\nexit 0\n", "x"] {
            assert_eq!(read(of_bytes(text.as_bytes())), None, "{text}");
        }
    }

    #[test]
    fn libraries_state_their_versions() {
        let glibc = b"\0GNU C Library (Ubuntu GLIBC 2.35-0ubuntu3.8) stable release version 2.35.\nCopyright";
        assert_eq!(glibc_version(glibc).as_deref(), Some("2.35"));
        assert_eq!(glibc_version(b"nothing"), None);
        let musl = b"\x001.22.333x\0musl libc (x86_64)\nVersion %s\n\x001.2.5\0";
        assert_eq!(musl_version(musl).as_deref(), Some("1.2.5"));
        assert_eq!(musl_version(b"\x001.2.5\0"), None);
    }

    #[test]
    fn a_word_across_two_chunks_is_found() {
        let mut bytes = vec![b'x'; (1 << 20) - 5];
        bytes.extend_from_slice(b"needle");
        let mut file = of_bytes(&bytes);
        assert_eq!(search(&mut file, &[b"needle", b"other"]).unwrap(), [true, false]);
    }
}
