//! Notes on the descriptors that remote calls have in the program for a moment, in its scratch memory: another fastpath closes
//! them if this one dies.

use crate::error::Result;
use crate::remote::descriptors::CONTROL_AT;
use crate::target::tracee::Tracee;

/// Offset in the scratch memory of the notes on sockets that were made: number and inode of each.
const NOTES_AT: u64 = 512;
const NOTES: usize = 4;

/// A descriptor of the process, as /proc/PID/fd shows it.
#[derive(PartialEq, Eq)]
pub struct Descriptor {
    pub number: u64,
    shown: String,
}

impl Descriptor {
    /// Reads it by its number.
    pub fn read(pid: i32, number: u64) -> Option<Descriptor> {
        let shown = std::fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()?;
        let shown = shown.to_string_lossy().into_owned();
        Some(Descriptor { number, shown })
    }

    /// Returns whether it is a file of this name.
    pub fn is_of(&self, name: &str) -> bool {
        self.shown.starts_with(name)
    }

    /// Returns 123 for `socket:[123]`.
    fn socket_inode(&self) -> Option<u64> {
        self.shown.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    }
}

/// Records in the scratch memory the sockets with these numbers, which have just been made.
pub fn record(tracee: &mut Tracee, scratch: u64, numbers: [u64; 2]) -> Result<()> {
    let mut notes = Vec::new();
    for number in numbers {
        let inode = Descriptor::read(tracee.process(), number).and_then(|made| made.socket_inode());
        notes.extend(number.to_le_bytes());
        notes.extend(inode.unwrap_or(0).to_le_bytes());
    }
    tracee.write(scratch + NOTES_AT, &notes)
}

/// Returns the descriptors whose numbers are in the scratch memory at `scratch`, and that still are what was made then.
pub fn recorded(tracee: &mut Tracee, scratch: u64) -> Result<Vec<Descriptor>> {
    let pid = tracee.process();
    let notes = tracee.read_words(scratch + NOTES_AT, NOTES, 8)?;
    let sockets = notes
        .chunks_exact(2)
        .filter_map(|note| Descriptor::read(pid, note[0]).filter(|made| made.socket_inode() == Some(note[1])));
    // struct cmsghdr: its length, two ints, descriptors.
    const HEADER: u64 = 16;
    let length = tracee.read_words(scratch + CONTROL_AT, 1, 8)?[0];
    let count = length.saturating_sub(HEADER).min(64) / 4;
    let numbers = tracee.read_words(scratch + CONTROL_AT + HEADER, count as usize, 4)?;
    let passed = numbers
        .into_iter()
        .filter_map(|number| Descriptor::read(pid, number).filter(|d| d.is_of("/memfd:fastpath-")));
    Ok(sockets.chain(passed).collect())
}
