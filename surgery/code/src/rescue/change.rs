//! What a thunk is made of, and the changes that lead to it.

use fastpath_isa::Isa;

use crate::rescue::window::{Relay, Window};

/// A change of a program's memory; one write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Address of the change.
    pub address: u64,
    /// Bytes before the change.
    pub original: Vec<u8>,
    /// Bytes after the change; as many.
    pub replacement: Vec<u8>,
}

impl Change {
    pub(crate) fn new(address: u64, original: &[u8], replacement: impl Into<Vec<u8>>) -> Change {
        Change {
            address,
            original: original.to_vec(),
            replacement: replacement.into(),
        }
    }
}

/// A thunk, and the changes that lead to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thunk {
    /// The code, for the address that it was made for.
    pub code: Vec<u8>,
    /// In an order in which threads may execute the code between any two. The last is that of the window.
    pub changes: Vec<Change>,
    /// Instructions of the window besides the first, as offsets in it, and their copies, as offsets in the thunk. A
    /// thread at the one may continue at the other.
    pub moved: Vec<(u16, u16)>,
    /// Where a system call that the thunk makes returns to, as offsets in the thunk and in the window: a thread that
    /// waits there may continue at the other. Only a window behind the system call has one.
    pub in_call: Option<(u16, u16)>,
}

/// A routine in a process that answers one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routine {
    /// The call's name.
    pub name: &'static str,
    /// The call's number.
    pub number: u32,
    /// The routine's address.
    pub address: u64,
}

impl Routine {
    /// Returns the routine for the call of this name; `None` if the ISA has no such call.
    pub fn for_call(isa: Isa, name: &'static str, address: u64) -> Option<Routine> {
        let (name, number) = isa.facts().calls.list().find(|(known, _)| *known == name)?;
        Some(Routine { name, number, address })
    }
}

/// A window in a process, and where its thunk goes.
#[derive(Clone, Copy)]
pub(crate) struct ThunkPlace<'w> {
    pub window: &'w Window,
    /// Address of the window in the process.
    pub address: u64,
    /// Address of the thunk.
    pub at: u64,
    pub relay: Option<&'w Relay>,
}
