//! Requests that were not served: the mailbox of a tree counts them, by reason.

use std::mem::offset_of;

use fastpath_os::Mapping;

use crate::exec::lease::MAILBOX_MAPPED_NAME;
use crate::plan::mailbox_layout::{Mailbox, UNSERVED_REASONS};
use crate::target::memory::Memory;

/// Why a request was not served: `enum fp_unserved`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unserved {
    /// There is no attendant.
    Gone,
    /// The attendant did not answer in time.
    Late,
    /// The attendant may not look at the process.
    Hidden,
    /// The program is of a kind that is not served.
    Refused,
    /// A system call failed.
    Failed,
}

impl Unserved {
    /// Every reason, with its name.
    pub const ALL: [(Unserved, &str); UNSERVED_REASONS] = [
        (Unserved::Gone, "gone"),
        (Unserved::Late, "late"),
        (Unserved::Hidden, "hidden"),
        (Unserved::Refused, "refused"),
        (Unserved::Failed, "failed"),
    ];
}

/// Counts of one tree, in the order of [`Unserved::ALL`].
pub struct Counts {
    /// Names the tree: the inode of its mailbox.
    pub tree: u64,
    /// The counts. The tree itself can write them.
    pub counts: [u32; UNSERVED_REASONS],
}

impl Counts {
    /// Reads the counts of a process's tree, from a process with these mappings.
    pub fn read(pid: i32, maps: &[Mapping]) -> Option<Counts> {
        let mailbox = maps.iter().find(|map| map.is_memory(MAILBOX_MAPPED_NAME))?;
        let mut words = [[0; 4]; UNSERVED_REASONS];
        let at = mailbox.start + offset_of!(Mailbox, unserved) as u64;
        Memory::open(pid).ok()?.read(at, words.as_flattened_mut()).ok()?;
        Some(Counts {
            tree: mailbox.inode,
            counts: words.map(u32::from_ne_bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_is_taken_for_a_mailbox() {
        let own = std::process::id() as i32;
        let mailbox = vec![1_u8; size_of::<Mailbox>()];
        let mut mapping = Mapping {
            start: mailbox.as_ptr() as u64,
            device: fastpath_os::device_of_memory(),
            name: MAILBOX_MAPPED_NAME.to_owned(),
            ..Mapping::default()
        };
        assert!(Counts::read(own, std::slice::from_ref(&mapping)).is_some());
        // A file with that name, whose owner need not answer.
        mapping.device += 1;
        assert!(Counts::read(own, &[mapping]).is_none());
    }
}
