//! The bytes of a site that a jump replaces.
//!
//! | window | ISA | what is replaced | where the system call is made |
//! |---|---|---|---|
//! | before | x86-64 | bytes of one instruction before the `syscall`, but not its first (`x86/inside.rs`) | at its own address |
//! | behind | x86-64 | bytes of the `syscall` and of a `cmp` behind it, but not their first ones | in the region |
//! | before | x86-64, for hosts' guests | whole instructions right before the `syscall` | at its own address |
//! | behind | x86-64, for hosts' guests | the `syscall` and whole instructions after it | in the thunk |
//! | behind | AArch64 | the `svc` alone | in the thunk |
//! | vsyscall | x86-64 | the constant of the instruction that loads the address | in the thunk |
//!
//! A jump to the `syscall` behind a window *before* it finds it unchanged.

use std::fmt;
use std::ops::Range;

use fastpath_isa::Isa;

use crate::rescue::file::File;

/// Where a window is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum WindowKind {
    /// Before the system call, which stays.
    Before,
    /// The system call and what follows.
    Behind,
    /// The constant in an instruction that loads an address in the vsyscall page.
    Vsyscall,
}

/// Bytes that can be replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    pub isa: Isa,
    pub kind: WindowKind,
    /// Address of the first byte, before relocation.
    pub address: u64,
    /// What is there.
    pub bytes: Vec<u8>,
    /// Size of the system call instruction.
    pub call_bytes: usize,
    pub jump: Jump,
}

/// The jump in a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Jump {
    /// It replaces the first bytes.
    First,
    /// It replaces bytes of the first instruction behind its first byte (`x86/inside.rs`).
    Inside,
    /// The same, but there is room for a short jump only: to one of these.
    Relay(Vec<Relay>),
    /// Bytes of the `syscall` and of the comparison behind it, but not their first ones, become a nop and a short jump to
    /// one of these.
    AtCall(Vec<Relay>),
}

/// Padding of 6 bytes, of which the first stays, that nothing executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relay {
    /// Its distance from the window.
    pub distance: i16,
    /// What is there.
    pub bytes: [u8; Relay::BYTES],
}

impl Jump {
    /// Returns the relays, nearest first; `None` if it needs none.
    pub fn relays(&self) -> Option<&[Relay]> {
        match self {
            Jump::First | Jump::Inside => None,
            Jump::Relay(relays) | Jump::AtCall(relays) => Some(relays),
        }
    }
}

impl Relay {
    /// Size of one.
    pub const BYTES: usize = 6;

    /// Returns the distance of a short jump that ends `behind` bytes after the window's start to the jump in it; `None` if
    /// that is too far.
    pub fn short(&self, behind: usize) -> Option<u8> {
        let distance = i64::from(self.distance) + 1 - behind as i64;
        Some(i8::try_from(distance).ok()?.cast_unsigned())
    }

    /// Returns its address for a window at this address.
    pub fn address(&self, window: u64) -> u64 {
        window.wrapping_add_signed(self.distance.into())
    }
}

impl Window {
    /// Refuses code that the loader changes.
    pub(crate) fn unless_relocated(self, file: &File<'_>) -> Result<Window, Reason> {
        let range = self.range();
        // A relocation changes up to 8 bytes.
        let range = range.start.saturating_sub(7)..range.end;
        match file.relocated.iter().find(|at| range.contains(at)) {
            Some(at) => Err(Reason::Relocated(*at)),
            None => Ok(self),
        }
    }

    fn range(&self) -> Range<u64> {
        self.address..self.address + self.bytes.len() as u64
    }
}

/// Reason why a site is left alone. Addresses are those of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// No function that the file states reaches it.
    NotReached,
    /// Decoding all of the file would take too long.
    TooLarge,
    /// Too few instructions beside it can be moved.
    NoRoom,
    /// It is not the instruction that the ISA's programs use: `int $0x80` in an x86-64 program, which takes i386's numbers,
    /// or `sysenter`, which does not return behind it.
    OtherCall,
    /// Something may jump to this address in it.
    Landing(u64),
    /// Two decodings of the code disagree.
    Ambiguous(u64),
    /// The loader changes the code there.
    Relocated(u64),
    /// The write of a jump would cross a page, where the death of the writer could cut it in two.
    CrossesPage,
    /// No instruction shortly before it can become a jump and keep its first byte, which other tools restore.
    FirstByte,
    /// The file is loaded at any address, and an address below 2 GiB is needed.
    Movable,
    /// No code in user space answers the call but the kernel's vDSO, which the program may unmap.
    KernelsOnly,
    /// Its file lacks section headers, or has tables that cannot be read.
    NoTables,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NotReached => f.write_str("no known function reaches it"),
            Reason::TooLarge => f.write_str("its file has more code than can be examined"),
            Reason::NoRoom => f.write_str("too few instructions beside it can be moved"),
            Reason::OtherCall => f.write_str("it is not made by the usual instruction"),
            Reason::Landing(at) => write!(f, "something may jump to {at:#x}"),
            Reason::Ambiguous(at) => write!(f, "its code can be decoded in two ways at {at:#x}"),
            Reason::Relocated(at) => write!(f, "the loader changes its code at {at:#x}"),
            Reason::CrossesPage => f.write_str("a jump there would lie in two pages"),
            Reason::FirstByte => {
                f.write_str("no instruction before it can become a jump and keep its first byte, as probes require")
            }
            Reason::KernelsOnly => {
                f.write_str("only the kernel's vDSO answers it faster, and a program may unmap that")
            }
            Reason::NoTables => f.write_str("its file has no readable section headers, so its functions are not known"),
            Reason::Movable => f.write_str("its program may be loaded above 2 GiB"),
        }
    }
}
