//! What a core dump says of fastpath: a note in the memory of each served process, and its reader.
//!
//! The note lies behind the hook's state. By default a core dump has, of private memory, only the pages that were
//! written (core(5), coredump_filter), so the note is written there and not mapped.

use std::fmt::Write;
use std::io::{self, Read, Seek, SeekFrom};

use fastpath_image::elf::{Elf, ElfError, PT_LOAD, u32_at, u64_at};
use fastpath_page::{MAPPED_NAME, PAGE_SIZE};

use crate::maps::Mapping;
use crate::redirection::{self, Journal, Purpose, RegionPlan};
use crate::region;

/// Owner of the note, as in the image.
const OWNER: &[u8; 12] = b"fastpath\0\0\0\0";
const OWNER_BYTES: u32 = 9;
/// Type of the note: text, a line for each fact. The image's own note is of type 1.
const KIND: u32 = 2;

/// The note's contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreNote {
    /// fastpath's version.
    pub version: String,
    /// `run`, `attach` or `preload`; `detached`.
    pub by: String,
    /// Functions of the kernel's vDSO that are redirected; `all`: the image is the program's vDSO.
    pub functions: Vec<String>,
    /// System calls in the program's code that are reported first, such as execve.
    pub hooked: usize,
    /// System calls for time in the program's code that are redirected.
    pub rescued: usize,
}

impl CoreNote {
    /// Returns the note for a process that gets a region by this plan: by `run`, `attach` or `preload`.
    pub fn from_plan(plan: &RegionPlan, by: &str) -> CoreNote {
        let mut functions: Vec<String> = plan.patches.iter().map(|patch| patch.function.to_owned()).collect();
        functions.sort_unstable();
        functions.dedup();
        if !plan.vdso.is_empty() {
            functions = vec!["all".to_owned()];
        }
        let mut note = CoreNote {
            functions,
            ..CoreNote::new(by)
        };
        note.count(&plan.journal);
        note
    }

    /// Returns the note for a process that was detached, if its region stays.
    pub(crate) fn detached() -> CoreNote {
        CoreNote::new("detached")
    }

    fn new(by: &str) -> CoreNote {
        CoreNote {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            by: by.to_owned(),
            ..CoreNote::default()
        }
    }

    /// Counts the redirected system calls of a journal.
    pub(crate) fn count(&mut self, journal: &Journal) {
        (self.hooked, self.rescued) = (journal.count(Purpose::Hook), journal.count(Purpose::Rescue));
    }

    /// Returns the ELF note as it lies in memory: at most [`region::NOTE_ROOM`] bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut text = format!("version {}\nby {}\nfunctions", self.version, self.by);
        self.functions.iter().for_each(|name| _ = write!(text, " {name}"));
        _ = write!(text, "\nhooked {}\nrescued {}\n", self.hooked, self.rescued);
        let mut bytes = Vec::new();
        bytes.extend(OWNER_BYTES.to_le_bytes());
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(KIND.to_le_bytes());
        bytes.extend(OWNER);
        bytes.extend(text.into_bytes());
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// Parses the note; `None` if this is none. Words that a later version adds are ignored.
    pub fn parse(bytes: &[u8]) -> Option<CoreNote> {
        let is_ours = u32_at(bytes, 0)? == OWNER_BYTES && u32_at(bytes, 8)? == KIND;
        let (owner, text) = bytes.get(12..)?.split_at_checked(OWNER.len())?;
        let text = text.get(..u32_at(bytes, 4)? as usize)?;
        if !is_ours || owner != OWNER {
            return None;
        }
        let text = String::from_utf8_lossy(text);
        let value = |name: &str| {
            let mut lines = text
                .lines()
                .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            lines.next().unwrap_or_default()
        };
        Some(CoreNote {
            version: value("version").to_owned(),
            by: value("by").to_owned(),
            functions: value("functions").split_whitespace().map(str::to_owned).collect(),
            hooked: value("hooked").parse().unwrap_or(0),
            rescued: value("rescued").parse().unwrap_or(0),
        })
    }
}

/// Reason why a core dump cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum NotRead {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Elf(#[from] ElfError),
    #[error("this ELF file is no core dump")]
    NotCore,
    #[error("it has no list of mapped files (NT_FILE): it is cut off, or its kernel is older than Linux 3.7")]
    NoFiles,
}

/// A process that was served when its core was dumped.
#[derive(Debug, PartialEq, Eq)]
pub struct Dumped {
    /// Address of its region.
    pub at: u64,
    /// `None`: the dump lacks that memory, by its coredump_filter, or the region is of another version.
    pub note: Option<CoreNote>,
    /// Bytes of its page, if the dump has them.
    pub page: Option<Vec<u8>>,
}

/// Most bytes of headers and notes: those of 10,000 threads have some 30 MB.
const MOST_HEAD: u64 = 64 << 20;
const ET_CORE: u16 = 4;
/// Type of the note with the list of mapped files (include/uapi/linux/elf.h).
const NT_FILE: u32 = 0x4649_4c45;

/// Returns what a core dump says of fastpath; `None`: the process was not served. Its contents are not trusted.
pub fn read_core(core: &mut (impl Read + Seek)) -> Result<Option<Dumped>, NotRead> {
    let mut head = Vec::new();
    core.take(MOST_HEAD).read_to_end(&mut head)?;
    let elf = Elf::parse(&head)?;
    if elf.kind != ET_CORE {
        return Err(NotRead::NotCore);
    }
    let mut notes = elf
        .notes
        .iter()
        .filter(|note| note.name == b"CORE" && note.kind == NT_FILE);
    let files = notes.find_map(|note| mapped_files(note.description, elf.is_64()));
    let maps = files.ok_or(NotRead::NoFiles)?;
    let Some(at) = redirection::region_in(&maps) else {
        return Ok(None);
    };
    let mut memory = |address: u64, size: u64| {
        let has = |start: u64, end: u64| start <= address && address.checked_add(size).is_some_and(|last| last <= end);
        let mut loads = elf.segments_of(PT_LOAD);
        let load = loads.find(|load| has(load.vaddr, load.vaddr.saturating_add(load.file_size)))?;
        core.seek(SeekFrom::Start(load.offset.checked_add(address - load.vaddr)?))
            .ok()?;
        let mut bytes = vec![0; size as usize];
        core.read_exact(&mut bytes).ok().map(|()| bytes)
    };
    let note = at
        .checked_add(region::NOTE)
        .and_then(|note| memory(note, region::NOTE_ROOM));
    let page = maps.iter().find(|mapping| mapping.name.starts_with(MAPPED_NAME));
    Ok(Some(Dumped {
        at,
        note: note.and_then(|bytes| CoreNote::parse(&bytes)),
        page: page.and_then(|page| memory(page.start, PAGE_SIZE as u64)),
    }))
}

/// Returns the mappings of memfds that NT_FILE lists: a count, the unit of the offsets in bytes, then start, end and offset of
/// each, then their names (fs/binfmt_elf.c, fill_files_note).
fn mapped_files(description: &[u8], is_64: bool) -> Option<Vec<Mapping>> {
    let word = |index: u64| match is_64 {
        true => u64_at(description, index.checked_mul(8)?),
        false => u32_at(description, index.checked_mul(4)?).map(u64::from),
    };
    let (count, unit) = (word(0)?, word(1)?);
    let size = if is_64 { 8 } else { 4 };
    let names = count.checked_mul(3)?.checked_add(2)?.checked_mul(size)?;
    let names = description
        .get(usize::try_from(names).ok()?..)?
        .split(|byte| *byte == 0);
    let mapping = |(index, name): (u64, &[u8])| {
        let [start, end, offset] = [0, 1, 2].map(|field| word(2 + 3 * index + field));
        Some(Mapping {
            start: start?,
            end: end?,
            offset: offset?.checked_mul(unit)?,
            name: String::from_utf8_lossy(name).into_owned(),
            ..Mapping::default()
        })
    };
    let memfds = (0..count).zip(names).filter(|(_, name)| name.starts_with(b"/memfd:"));
    Some(memfds.filter_map(mapping).collect())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::time::Duration;

    use super::*;

    const AT: u64 = 0x7f00_0000;

    fn note() -> CoreNote {
        CoreNote {
            functions: vec!["clock_gettime".to_owned(), "gettimeofday".to_owned()],
            hooked: 12,
            rescued: 3,
            ..CoreNote::new("run")
        }
    }

    /// Returns a core dump of 32 or 64 bits with these mapped files (start, offset in pages, name) and this memory at
    /// the region's note.
    fn core(is_64: bool, files: &[(u64, u64, &str)], memory: &[u8]) -> Vec<u8> {
        let size = if is_64 { 8 } else { 4 };
        let word = |value: u64| value.to_le_bytes()[..size].to_vec();
        let half = |value: u16| value.to_le_bytes();
        let mut list: Vec<u8> = [files.len() as u64, 4096].into_iter().flat_map(word).collect();
        list.extend(
            files
                .iter()
                .flat_map(|(start, offset, _)| [*start, start + 4096, *offset].map(word).concat()),
        );
        list.extend(files.iter().flat_map(|(.., name)| [name.as_bytes(), b"\0"].concat()));
        let mut notes = [5, list.len() as u32, NT_FILE].map(u32::to_le_bytes).concat();
        notes.extend(b"CORE\0\0\0\0");
        notes.extend(list);
        notes.resize(notes.len().next_multiple_of(4), 0);
        let (header, entry) = if is_64 { (64u64, 56u64) } else { (52, 32) };
        let notes_at = header + 2 * entry;
        let memory_at = notes_at + notes.len() as u64;
        let mut bytes = [b"\x7fELF".to_vec(), vec![1 + u8::from(is_64), 1, 1], vec![0; 9]].concat();
        bytes.extend([half(ET_CORE), half(62)].concat());
        bytes.extend(1u32.to_le_bytes());
        bytes.extend([word(0), word(header), word(0)].concat());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend([header as u16, entry as u16, 2, 0, 0, 0].map(half).concat());
        for (kind, offset, address, length) in [
            (4u32, notes_at, 0, notes.len() as u64),
            (PT_LOAD, memory_at, AT + region::NOTE, memory.len() as u64),
        ] {
            let mut fields = [offset, address, 0, length, length].map(word).to_vec();
            fields.insert(if is_64 { 0 } else { 5 }, 4u32.to_le_bytes().to_vec());
            bytes.extend(kind.to_le_bytes());
            bytes.extend(fields.concat());
            bytes.extend(word(4));
        }
        [bytes, notes, memory.to_vec()].concat()
    }

    fn memory() -> Vec<u8> {
        let mut memory = note().bytes();
        memory.resize(region::NOTE_ROOM as usize, 0);
        memory
    }

    const REGION: &str = "/memfd:fastpath-region (deleted)";

    fn served(is_64: bool) -> Vec<u8> {
        core(is_64, &[(0x40_0000, 0, "/bin/a"), (AT + 4096, 1, REGION)], &memory())
    }

    fn read(bytes: &[u8]) -> Result<Option<Dumped>, NotRead> {
        read_core(&mut Cursor::new(bytes))
    }

    #[test]
    fn a_core_dump_of_either_class_has_the_note() {
        for is_64 in [true, false] {
            let dumped = read(&served(is_64)).unwrap().expect("a region");
            assert_eq!((dumped.at, dumped.note), (AT, Some(note())));
            let other = core(is_64, &[(AT, 0, "/bin/a"), (AT, 0, "/tmp/memfd:fastpath-region")], &[]);
            assert_eq!(read(&other).unwrap(), None);
            let without = core(is_64, &[(AT + 4096, 1, REGION)], &[]);
            assert_eq!(read(&without).unwrap().expect("a region").note, None);
        }
    }

    #[test]
    fn other_files_are_no_core_dumps() {
        let mut program = served(true);
        program[16] = 2;
        assert!(matches!(read(&program), Err(NotRead::NotCore)));
        let cut = &served(true)[..200];
        assert!(matches!(read(cut), Err(NotRead::NoFiles)));
        assert!(matches!(read(b"text"), Err(NotRead::Elf(_))));
    }

    #[test]
    fn the_longest_note_fits() {
        let longest = CoreNote {
            functions: crate::redirection::SERVED.map(str::to_owned).to_vec(),
            hooked: usize::MAX,
            rescued: usize::MAX,
            ..CoreNote::new("detached")
        };
        assert!(longest.bytes().len() as u64 <= region::NOTE_ROOM);
        assert_eq!(CoreNote::parse(&longest.bytes()), Some(longest));
        const { assert!(size_of::<crate::mailbox_layout::HookState>() as u64 <= region::NOTE - region::STATE) };
    }

    #[test]
    fn a_broken_core_dump_is_read_or_refused() {
        crate::mutations::feed(&[served(true), served(false)], Duration::from_secs(2), 2, |bytes| {
            let _ = read(bytes);
        });
    }
}
