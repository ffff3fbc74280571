//! Unused executable memory: the tail of a mapping's last page, after the code of a file. The code for remote calls is
//! in it while they are made.
//!
//! Most linkers pad that page. LLVM's, which is Rust's, lets the next segment's bytes follow in the file: then the tail
//! holds a second copy of them, at addresses of no segment, where no program looks for anything.

use std::ops::Range;
use std::rc::Rc;

use object::LittleEndian;
use object::elf::{FileHeader32, FileHeader64, PF_X, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};

use crate::abi::Abi;
use crate::error::{Error, Result};
use crate::plan::redirection::{Change, is_region};
use crate::plan::region::TAIL_BYTES as BYTES;
use crate::target::maps::Mapping;
use crate::target::memory::{Memory, Pagemap, kernels_page};

/// Offset of the code: the bytes before the tail keep their padding.
const CODE_AT: usize = 32;
/// Mark at the end of the tail while it is in use: it identifies the tail that a killed fastpath left behind. The
/// remote calls also use it as a name.
pub const MARK: &std::ffi::CStr = c"fastpath-scratch";
const MARK_BYTES: &[u8] = MARK.to_bytes_with_nul();

/// Most bytes before the tail that are used with it: the longest loop for several calls (`batch.rs`) has fewer.
const MOST_BELOW: u64 = 256;

/// The last bytes of a mapping.
#[derive(Clone)]
pub struct Tail {
    at: u64,
    /// Address of the first unused byte, at most [`MOST_BELOW`] before the tail.
    unused_from: u64,
    /// Bytes from there to the tail's end while they are unused.
    original: Rc<[u8]>,
    memory: Rc<Memory>,
}

/// Contents of a tail.
enum Contents {
    /// Padding of this value.
    Unused(u8),
    /// fastpath's code, and the padding before it.
    Ours(u8),
    Used,
}

/// An unused tail: its address, that of the first unused byte, and its bytes from there.
type Unused = (u64, u64, Vec<u8>);

impl Tail {
    /// Finds an unused tail in the process `pid`: the first of [`Tail::all`].
    pub fn find(memory: Rc<Memory>, pid: i32, maps: &[Mapping], ours_are_free: bool) -> Result<Tail> {
        let first = Tail::all(memory, pid, maps, ours_are_free).next();
        first.ok_or_else(none)
    }

    /// Finds the unused tails in the process `pid`, which has this memory. The kernel's vDSO comes first, as no page of a
    /// file is copied for it. With `ours_are_free`, a tail that a killed fastpath left in use counts as unused.
    pub fn all(memory: Rc<Memory>, pid: i32, maps: &[Mapping], ours_are_free: bool) -> impl Iterator<Item = Tail> {
        let (read, beside) = (memory.clone(), memory.clone());
        let padded = places(pid, maps).filter_map(move |(at, _)| {
            let bytes = read.bytes(at - MOST_BELOW, MOST_BELOW as usize + BYTES).ok()?;
            let (below, tail) = bytes.split_at(MOST_BELOW as usize);
            match contents(tail) {
                Contents::Unused(pad) => Some(padding(at, below, pad)),
                Contents::Ours(pad) if ours_are_free => Some((at, at, vec![pad; BYTES])),
                _ => None,
            }
        });
        let beside = maps
            .iter()
            .filter_map(move |mapping| beside_segments(&beside, maps, mapping));
        padded.chain(beside).map(move |(at, unused_from, original)| Tail {
            at,
            unused_from,
            original: original.into(),
            memory: memory.clone(),
        })
    }

    /// Borrows a tail that the program uses, to be erased before the program continues: a program that has not run an
    /// instruction does not need it before.
    pub fn borrow(memory: Rc<Memory>, pid: i32, maps: &[Mapping]) -> Option<Tail> {
        let (at, original) = places(pid, maps).find_map(|(at, _)| Some((at, memory.bytes(at, BYTES).ok()?)))?;
        Some(Tail {
            at,
            unused_from: at,
            original: original.into(),
            memory,
        })
    }

    /// Returns the tails in which a killed fastpath left its code. Reads only pages that are present: a page that was
    /// written to is the process's own copy, and reading others could wait for their file system.
    pub fn in_use(pid: i32, maps: &[Mapping]) -> Result<Vec<Tail>> {
        let memory = Rc::new(Memory::writable(pid)?);
        let present = places(pid, maps).filter_map(|(at, is_present)| is_present.then_some(at));
        let ours = present.filter_map(|at| match contents(&memory.bytes(at, BYTES).ok()?) {
            Contents::Ours(pad) => Some(Tail {
                at,
                unused_from: at,
                original: Rc::new([pad; BYTES]),
                memory: memory.clone(),
            }),
            _ => None,
        });
        Ok(ours.collect())
    }

    /// Returns its addresses.
    pub fn range(&self) -> Range<u64> {
        self.at..self.at + BYTES as u64
    }

    /// Returns the address of the code in it.
    pub fn code(&self) -> u64 {
        self.at + CODE_AT as u64
    }

    /// Returns the address of the name [`MARK`].
    pub fn name(&self) -> u64 {
        self.at + (BYTES - MARK_BYTES.len()) as u64
    }

    /// Writes code, and the mark after it.
    pub fn write(&self, code: &[u8]) -> Result<()> {
        self.write_with(self.code(), &[], code)
    }

    /// The same, with other code in the room at `at` before the tail.
    pub fn write_with(&self, at: u64, below: &[u8], code: &[u8]) -> Result<()> {
        /// x86's `int3`; AArch64 does not reach it.
        const TRAP: u8 = 0xcc;
        let mut bytes = self.original_from(at);
        let tail = bytes.split_off((self.code() - at) as usize);
        bytes[..below.len()].copy_from_slice(below);
        bytes.extend(code);
        bytes.resize(bytes.len() - code.len() + tail.len() - MARK_BYTES.len(), TRAP);
        bytes.extend(MARK_BYTES);
        self.memory.write(at, &bytes)
    }

    /// Returns the address of `bytes` unused bytes before the tail, if there are so many.
    pub fn room_below(&self, bytes: usize) -> Option<u64> {
        let at = self.at - bytes as u64;
        (at >= self.unused_from).then_some(at)
    }

    /// Returns what was there from `at` to the tail's end.
    fn original_from(&self, at: u64) -> Vec<u8> {
        self.original[(at - self.unused_from) as usize..].to_vec()
    }

    /// Returns the change that restores it.
    pub fn erasure_from(&self, at: u64) -> Change {
        let original = self.original_from(at);
        Change {
            address: at,
            replacement: original.clone(),
            original,
        }
    }

    /// Restores what was there from `at`, before the tail, to its end.
    pub fn erase_from(&self, at: u64) -> Result<()> {
        self.memory.write(at, &self.original_from(at))
    }

    /// Restores what was there.
    pub fn erase(&self) -> Result<()> {
        self.erase_from(self.code())
    }
}

/// Returns a tail from which calls of a program that is at `pc` can be made.
pub fn near<'t>(tails: &'t [Tail], abi: &dyn Abi, pc: u64) -> Result<&'t Tail> {
    let mut near = tails.iter().filter(|tail| abi.reaches(tail.code(), pc));
    near.next().ok_or_else(|| match tails {
        [] => none(),
        _ => Error::Unsupported(format!(
            "no unused executable bytes near a thread of it, at {pc:#x}, to make system calls from"
        )),
    })
}

fn none() -> Error {
    Error::Unsupported("no unused executable bytes in the program to make system calls from".into())
}

/// Returns the addresses of the tails of executable mappings, and whether their page is in memory: first the kernel's
/// vDSO, then those of files that are read without a wait, then those that have to be read from the file system.
fn places(pid: i32, maps: &[Mapping]) -> impl Iterator<Item = (u64, bool)> {
    let tail = |mapping: &Mapping| mapping.end - BYTES as u64;
    let vdso = maps.iter().filter(|m| m.executable && m.name == "[vdso]");
    let of_files = std::iter::once_with(move || {
        let pagemap = Pagemap::open(pid);
        let tails = maps.iter().filter(|m| is_of_file(m)).map(tail);
        let (present, absent) = tails.partition::<Vec<_>, _>(|at| pagemap.present(*at..*at + 1) == [true]);
        present
            .into_iter()
            .map(|at| (at, true))
            .chain(absent.into_iter().map(|at| (at, false)))
    });
    vdso.map(move |vdso| (tail(vdso), true)).chain(of_files.flatten())
}

/// Returns whether a mapping has the code of a file that is not fastpath's. Anonymous memory does not count: the program may
/// be about to use the rest of it.
fn is_of_file(mapping: &Mapping) -> bool {
    mapping.executable && mapping.inode != 0 && !is_region(mapping)
}

/// Returns the tail at `at` and the padding at the end of the bytes `below` it.
fn padding(at: u64, below: &[u8], pad: u8) -> Unused {
    let count = below.iter().rev().take_while(|byte| **byte == pad).count();
    (at, at - count as u64, vec![pad; count + BYTES])
}

/// Returns the tail of `mapping` if its addresses belong to no segment of its file.
fn beside_segments(memory: &Memory, maps: &[Mapping], mapping: &Mapping) -> Option<Unused> {
    const LONGEST_HEADERS: usize = 4096;
    if !is_of_file(mapping) {
        return None;
    }
    // A small file's headers and code are in its first page: then the code's mapping has offset 0 too.
    let is_start = |m: &&Mapping| (m.device, m.inode, m.offset) == (mapping.device, mapping.inode, 0);
    let starts = maps.iter().rev().filter(|m| is_start(m) && m.start <= mapping.start);
    let (unused_from, at) = starts.map(|start| start.start).find_map(|start| {
        let headers = memory.bytes(start, LONGEST_HEADERS).ok()?;
        let unused_from = end_of_segment(mapping, start, &segments(&headers)?)?;
        let at = mapping.end - BYTES as u64;
        let unused_from = unused_from.max(at - MOST_BELOW);
        (unused_from <= at && mapping.start < unused_from).then_some((unused_from, at))
    })?;
    let original = memory.bytes(unused_from, (mapping.end - unused_from) as usize).ok()?;
    Some((at, unused_from, original))
}

/// Returns the end of the last segment in `mapping` if the file is loaded at `start`.
fn end_of_segment(mapping: &Mapping, start: u64, loaded: &[Segment]) -> Option<u64> {
    let bias = start.wrapping_sub(loaded.first()?.addresses.start & !(kernels_page() - 1));
    let address = |segment: &Segment| bias.wrapping_add(segment.addresses.start);
    let below = loaded.iter().filter(|segment| address(segment) < mapping.end);
    let last = below.max_by_key(|segment| address(segment))?;
    // Another start would give another bias.
    let is_there = mapping.start.wrapping_sub(address(last)) == mapping.offset.wrapping_sub(last.offset);
    (last.is_executable && is_there).then(|| bias.wrapping_add(last.addresses.end))
}

/// A loaded segment of a file.
struct Segment {
    /// Addresses in the file.
    addresses: Range<u64>,
    /// Offset of its first byte in the file.
    offset: u64,
    is_executable: bool,
}

/// Returns the loaded segments of a file that begins with `bytes`.
fn segments(bytes: &[u8]) -> Option<Vec<Segment>> {
    fn of_class<H: FileHeader<Endian = LittleEndian>>(bytes: &[u8]) -> Option<Vec<Segment>> {
        let headers = H::parse(bytes).ok()?.program_headers(LittleEndian, bytes).ok()?;
        let loaded = headers.iter().filter(|header| header.p_type(LittleEndian) == PT_LOAD);
        let segment = |header: &H::ProgramHeader| {
            let start: u64 = header.p_vaddr(LittleEndian).into();
            Some(Segment {
                addresses: start..start.checked_add(header.p_memsz(LittleEndian).into())?,
                offset: header.p_offset(LittleEndian).into(),
                is_executable: header.p_flags(LittleEndian) & PF_X != 0,
            })
        };
        loaded.map(segment).collect()
    }
    of_class::<FileHeader64<LittleEndian>>(bytes).or_else(|| of_class::<FileHeader32<LittleEndian>>(bytes))
}

fn contents(tail: &[u8]) -> Contents {
    let is_unused = |bytes: &[u8]| [0, 0x90, 0xcc].iter().any(|pad| bytes.iter().all(|b| b == pad));
    match tail {
        _ if is_unused(tail) => Contents::Unused(tail[0]),
        // Beside segments (`beside_segments`) there is no padding before it, and its value does not matter.
        _ if tail.ends_with(MARK_BYTES) && is_unused(&tail[..CODE_AT]) => Contents::Ours(tail[0]),
        _ if tail.ends_with(MARK_BYTES) => Contents::Ours(0),
        _ => Contents::Used,
    }
}
