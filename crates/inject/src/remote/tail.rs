//! Unused executable memory: the tail of a mapping's last page, after the code of a file. The code for remote calls is
//! in it while they are made.

use std::rc::Rc;

use crate::error::{Error, Result};
use crate::maps::Mapping;
use crate::memory::{Memory, Pagemap};

/// Size in bytes: the margin, the longest code of any ISA (x86-64's, 106 bytes), and the mark.
const BYTES: usize = 160;
/// Offset of the code: the bytes before the tail keep their padding.
const CODE_AT: usize = 32;
/// Mark at the end of the tail while it is in use: it identifies the tail that a killed fastpath left behind. The
/// remote calls also use it as a name.
pub const MARK: &std::ffi::CStr = c"fastpath-scratch";
const MARK_BYTES: &[u8] = MARK.to_bytes_with_nul();

/// The last bytes of a mapping.
#[derive(Clone)]
pub struct Tail {
    at: u64,
    /// Value of each byte while it is unused.
    pad: u8,
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

impl Tail {
    /// Finds an unused tail. The kernel's vDSO comes first, as no page of a file is copied for it. With
    /// `ours_are_free`, a tail that a killed fastpath left in use counts as unused.
    pub fn find(pid: i32, maps: &[Mapping], ours_are_free: bool) -> Result<Tail> {
        let memory = Rc::new(Memory::writable(pid)?);
        let (present, absent) = places(pid, maps);
        let mut places = present.into_iter().chain(absent);
        let free = places.find_map(|at| match contents(&memory, at) {
            Contents::Unused(pad) => Some((at, pad)),
            Contents::Ours(pad) if ours_are_free => Some((at, pad)),
            _ => None,
        });
        let (at, pad) = free.ok_or_else(|| {
            Error::Unsupported("no unused executable bytes in the program to make system calls from".into())
        })?;
        Ok(Tail { at, pad, memory })
    }

    /// Returns the tails in which a killed fastpath left its code. Reads only pages that are present: a page that was
    /// written to is the process's own copy, and reading others could wait for their file system.
    #[cfg(target_arch = "x86_64")]
    pub fn in_use(pid: i32, maps: &[Mapping]) -> Result<Vec<Tail>> {
        let memory = Rc::new(Memory::writable(pid)?);
        let (present, _) = places(pid, maps);
        let ours = present.into_iter().filter_map(|at| match contents(&memory, at) {
            Contents::Ours(pad) => Some(Tail {
                at,
                pad,
                memory: memory.clone(),
            }),
            _ => None,
        });
        Ok(ours.collect())
    }

    /// Returns its addresses.
    #[cfg(target_arch = "x86_64")]
    pub fn range(&self) -> std::ops::Range<u64> {
        self.at..self.at + BYTES as u64
    }

    /// Returns the address of the code in it.
    pub fn code(&self) -> u64 {
        self.at + CODE_AT as u64
    }

    /// Returns the address of the name [`MARK`].
    #[cfg(target_arch = "x86_64")]
    pub fn name(&self) -> u64 {
        self.at + (BYTES - MARK_BYTES.len()) as u64
    }

    /// Writes code, and the mark after it.
    pub fn write(&self, code: &[u8]) -> Result<()> {
        /// x86's `int3`; AArch64 does not reach it.
        const TRAP: u8 = 0xcc;
        let mut bytes = code.to_vec();
        bytes.resize(BYTES - CODE_AT - MARK_BYTES.len(), TRAP);
        bytes.extend(MARK_BYTES);
        self.memory.write(self.code(), &bytes)
    }

    /// Returns the address of `bytes` unused bytes before the tail, if there are so many.
    pub fn room_below(&self, bytes: usize) -> Option<u64> {
        let at = self.at - bytes as u64;
        let found = self.memory.bytes(at, bytes).ok()?;
        found.iter().all(|byte| *byte == self.pad).then_some(at)
    }

    /// Writes code into the room at `at` before the tail.
    pub fn write_below(&self, at: u64, code: &[u8]) -> Result<()> {
        self.memory.write(at, code)
    }

    /// Restores the padding from `at`, before the tail, to its end.
    pub fn erase_from(&self, at: u64) -> Result<()> {
        self.memory
            .write(at, &vec![self.pad; (self.at + BYTES as u64 - at) as usize])
    }

    /// Restores the padding.
    pub fn erase(&self) -> Result<()> {
        self.memory.write(self.code(), &[self.pad; BYTES - CODE_AT])
    }
}

/// Returns the addresses of the tails of executable mappings of files: those whose page is in memory, which are read
/// without a wait, and those that have to be read from the file system.
fn places(pid: i32, maps: &[Mapping]) -> (Vec<u64>, Vec<u64>) {
    // Not of anonymous memory: the program may be about to use the rest of it.
    let of_files = maps
        .iter()
        .filter(|m| m.executable && (m.inode != 0 || m.name == "[vdso]"));
    let foreign = |m: &&Mapping| !m.name.starts_with("/memfd:fastpath");
    let (vdso, others): (Vec<_>, Vec<_>) = of_files.filter(foreign).partition(|m| m.name == "[vdso]");
    let pagemap = Pagemap::of(pid);
    let tail = |mapping: &Mapping| mapping.end - BYTES as u64;
    let (present, absent) = others
        .into_iter()
        .map(tail)
        .partition::<Vec<_>, _>(|at| pagemap.present(*at..*at + 1) == [true]);
    (vdso.into_iter().map(tail).chain(present).collect(), absent)
}

fn contents(memory: &Memory, at: u64) -> Contents {
    let mut bytes = [0; BYTES];
    let is_unused = |bytes: &[u8]| [0, 0x90, 0xcc].iter().any(|pad| bytes.iter().all(|b| b == pad));
    match memory.read(at, &mut bytes) {
        Ok(()) if is_unused(&bytes) => Contents::Unused(bytes[0]),
        Ok(()) if bytes.ends_with(MARK_BYTES) && is_unused(&bytes[..CODE_AT]) => Contents::Ours(bytes[0]),
        _ => Contents::Used,
    }
}
