//! The record of a region's changes, so that any fastpath can undo them later, whatever happened to the one that made
//! them.
//!
//! It lies at the start of the region's page [`region::JOURNAL`], complete before the first change is made. It is not
//! trusted: a fastpath that undoes a change checks first that it is there.

use std::ops::Range;

pub use fastpath_code::rescue::thunk::Change;

use super::stub::is_stub;
use crate::error::{Error, Result};
use crate::plan::region;
use crate::target::maps::Mapping;
use crate::target::memory::Memory;
use crate::target::program::is_c_library;

/// "fastjrnl", little-endian.
const MAGIC: u64 = u64::from_le_bytes(*b"fastjrnl");
/// Version of this layout.
const VERSION: u32 = 3;
const HEADER_BYTES: usize = 64;
const RECORD_HEADER_BYTES: usize = 24;
/// Size of most records: their changes are of up to eight bytes.
const RECORD_BYTES: usize = RECORD_HEADER_BYTES + 2 * 8;
/// Number of such records that fit.
pub const MOST_RECORDS: usize = (region::JOURNAL_ROOM as usize - HEADER_BYTES) / RECORD_BYTES;

/// State of the changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum JournalState {
    /// They are being made, or are in force.
    InForce = 1,
    /// They were undone; the region stayed, because a thread was still in it.
    Withdrawn = 2,
    /// They cannot be undone: the program was started with addresses in the region.
    Kept = 3,
}

/// What a change is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Purpose {
    /// An entry point of the kernel's vDSO goes to the image.
    Entry = 1,
    /// A system call is reported to the hook first.
    Hook = 2,
    /// A system call for time is answered by the image.
    Rescue = 3,
    /// Another change goes there first.
    Relay = 4,
    /// The image's code is in the place of a kernel's function, with as many bytes as [`JournalRecord::in_thunk`] says; or that
    /// function's call frame information, with none.
    EntryBody = 5,
    /// The vDSO ends behind the image's slow path, of which [`JournalRecord::thunk`] and [`JournalRecord::in_thunk`] are address and size.
    SlowPath = 6,
}

impl Purpose {
    fn from_number(number: u16) -> Option<Purpose> {
        let all = [
            Purpose::Entry,
            Purpose::Hook,
            Purpose::Rescue,
            Purpose::Relay,
            Purpose::EntryBody,
            Purpose::SlowPath,
        ];
        all.into_iter().find(|purpose| *purpose as u16 == number)
    }
}

/// One change, and what it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalRecord {
    pub change: Change,
    /// Target of the change, for a system call in a library: a thread may wait in the call that is made there. For a
    /// [`Purpose::EntryBody`], the same code in the image. 0: none.
    pub thunk: u64,
    /// Offset in the thunk at which such a thread is.
    pub in_thunk: u16,
    /// Offset from `address` at which it would be without the change.
    pub in_place: u16,
    pub purpose: Purpose,
}

/// What is in the place of a record now. Other tools restore bytes from the file, and put breakpoints there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchState {
    /// The original bytes, but for breakpoints.
    Original,
    /// The change, or a part of it.
    Changed,
    /// Something else.
    Foreign,
}

/// `int3`: the breakpoint of another tool.
const BREAKPOINT: u8 = 0xcc;

impl JournalRecord {
    /// A change without a thunk.
    pub(crate) fn new(change: Change, purpose: Purpose) -> JournalRecord {
        JournalRecord {
            change,
            thunk: 0,
            in_thunk: 0,
            in_place: 0,
            purpose,
        }
    }

    /// Returns the addresses of the change.
    pub fn range(&self) -> Range<u64> {
        self.change.address..self.change.address + self.change.original.len() as u64
    }

    /// Returns what `bytes` in the place of the record are.
    pub fn patch_state(&self, bytes: &[u8]) -> PatchState {
        let each = || {
            bytes
                .iter()
                .zip(self.change.original.iter().zip(&self.change.replacement))
        };
        if each().any(|(now, (original, changed))| ![*original, *changed, BREAKPOINT].contains(now)) {
            PatchState::Foreign
        } else if each().any(|(now, (original, changed))| now != original && now == changed) {
            PatchState::Changed
        } else {
            PatchState::Original
        }
    }

    /// Returns the writes that restore the original where there are `bytes` now. A breakpoint stays: the tool that put
    /// it there restores the byte from the file.
    pub fn restored(&self, bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let is_breakpoint =
            |at: &usize| bytes.get(*at) == Some(&BREAKPOINT) && self.change.replacement[*at] != BREAKPOINT;
        let indices: Vec<usize> = (0..self.change.original.len()).collect();
        let between = indices.split(is_breakpoint).filter(|indices| !indices.is_empty());
        let write = |indices: &[usize]| {
            let bytes = indices.iter().map(|at| self.change.original[*at]).collect();
            (self.change.address + indices[0] as u64, bytes)
        };
        between.map(write).collect()
    }

    /// Returns whether an address is in the middle of this change, though an instruction of the changed code may begin
    /// there: such a change leaves the first byte as it is, or replaces a function. Or it is in a stub, where there was no code.
    pub fn is_inside(&self, address: u64) -> bool {
        let is_stub = is_stub(self);
        let keeps_first = self.change.original.first() == self.change.replacement.first();
        let Range { start, end } = self.range();
        (is_stub || keeps_first || self.purpose == Purpose::EntryBody)
            && (start + u64::from(!is_stub)..end).contains(&address)
    }
}

/// All changes of one region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    /// State of the changes.
    pub state: JournalState,
    /// Address of the vDSO that they belong to.
    pub vdso_base: u64,
    /// Whether the program was started with the region, and not attached while it ran.
    pub is_of_start: bool,
    /// Clocks that its page was made for, as a [`fastpath_page::ClockSet`] holds them.
    pub clocks: u32,
    /// Changes, in the order in which they were made.
    pub records: Vec<JournalRecord>,
}

impl Journal {
    /// Offset of [`Journal::state`] in the page.
    pub const STATE_AT: u64 = 16;

    /// Returns the region of a process with these mappings: its address and its journal, which is `None` if it was
    /// written by another version.
    pub fn find(pid: i32, maps: &[Mapping]) -> Result<Option<(u64, Option<Journal>)>> {
        // Another file may have the region's name, and reading it may never return.
        let is_memory = |at: &u64| {
            let mut journal = maps.iter().filter(|m| m.range().contains(&(at + region::JOURNAL)));
            journal.any(|m| m.is_memory("/memfd:"))
        };
        let Some(at) = super::region_in(maps).filter(is_memory) else {
            return Ok(None);
        };
        let bytes = Memory::open(pid)?.bytes(at + region::JOURNAL, region::JOURNAL_ROOM as usize)?;
        Ok(Some((at, Journal::parse(&bytes))))
    }

    /// Returns the name of a C library among these mappings whose calls are not seen, although another one's are: a program
    /// may load it again.
    pub fn unseen_library(&self, maps: &[Mapping]) -> Option<String> {
        let is_seen = |mapping: &&Mapping| {
            let mut hooks = self.records.iter().filter(|record| record.purpose == Purpose::Hook);
            hooks.any(|record| mapping.range().contains(&record.change.address))
        };
        let is_libc = |m: &&Mapping| m.executable && is_c_library(&m.name) && !m.name.contains("/libpthread");
        let (seen, unseen): (Vec<_>, Vec<_>) = maps.iter().filter(is_libc).partition(is_seen);
        unseen
            .first()
            .filter(|_| !seen.is_empty())
            .map(|library| library.name.clone())
    }

    /// Returns the number of changes for a purpose.
    pub fn count(&self, purpose: Purpose) -> usize {
        self.records.iter().filter(|record| record.purpose == purpose).count()
    }

    /// Returns the bytes as they lie in memory.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.records.len() as u32).to_le_bytes());
        bytes.extend((self.state as u32).to_le_bytes());
        bytes.extend(self.clocks.to_le_bytes());
        bytes.extend(self.vdso_base.to_le_bytes());
        bytes.extend(u32::from(self.is_of_start).to_le_bytes());
        bytes.resize(HEADER_BYTES, 0);
        for record in &self.records {
            let (at, change) = (bytes.len(), &record.change);
            bytes.extend(change.address.to_le_bytes());
            bytes.extend(record.thunk.to_le_bytes());
            bytes.extend((change.original.len() as u16).to_le_bytes());
            bytes.extend((record.purpose as u16).to_le_bytes());
            bytes.extend(record.in_thunk.to_le_bytes());
            bytes.extend(record.in_place.to_le_bytes());
            let room = room_of(change.original.len());
            bytes.extend(&change.original);
            bytes.resize(at + RECORD_HEADER_BYTES + room, 0);
            bytes.extend(&change.replacement);
            bytes.resize(at + RECORD_HEADER_BYTES + 2 * room, 0);
        }
        if bytes.len() as u64 > region::JOURNAL_ROOM {
            return Err(Error::Unsupported("it has more system calls than can be noted".into()));
        }
        Ok(bytes)
    }

    /// Returns how many more records of system calls there is room for.
    pub fn room(&self) -> usize {
        let size = |record: &JournalRecord| RECORD_HEADER_BYTES + 2 * room_of(record.change.original.len());
        let used = HEADER_BYTES + self.records.iter().map(size).sum::<usize>();
        (region::JOURNAL_ROOM as usize).saturating_sub(used) / RECORD_BYTES
    }

    /// Parses the bytes. `None`: this is no journal, or one of another version.
    pub fn parse(page: &[u8]) -> Option<Journal> {
        let u16_at = |at: usize| Some(u16::from_le_bytes(page.get(at..at + 2)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_le_bytes(page.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(page.get(at..at + 8)?.try_into().ok()?));
        if u64_at(0)? != MAGIC || u32_at(8)? != VERSION {
            return None;
        }
        let mut at = HEADER_BYTES;
        let record = |_| {
            let length = usize::from(u16_at(at + 16)?);
            let (original, room) = (at + RECORD_HEADER_BYTES, room_of(length));
            let record = JournalRecord {
                change: Change {
                    address: u64_at(at)?,
                    original: page.get(original..original + length)?.to_vec(),
                    replacement: page.get(original + room..original + room + length)?.to_vec(),
                },
                thunk: u64_at(at + 8)?,
                in_thunk: u16_at(at + 20)?,
                in_place: u16_at(at + 22)?,
                purpose: Purpose::from_number(u16_at(at + 18)?)?,
            };
            at = original + 2 * room;
            Some(record)
        };
        let count = (u32_at(12)? as usize).min(page.len() / RECORD_BYTES);
        Some(Journal {
            state: match u32_at(Journal::STATE_AT as usize)? {
                1 => JournalState::InForce,
                2 => JournalState::Withdrawn,
                3 => JournalState::Kept,
                _ => return None,
            },
            clocks: u32_at(20)?,
            vdso_base: u64_at(24)?,
            is_of_start: u32_at(32)? != 0,
            records: (0..count).map(record).collect::<Option<_>>()?,
        })
    }
}

/// Returns the room for the bytes before a change of this length, and for those after it.
fn room_of(length: usize) -> usize {
    length.max(1).next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn whatever_a_process_has_in_its_journal_it_is_read_or_refused() {
        let (mut read, mut refused) = (0, 0);
        let seeds = [journal().bytes().unwrap()];
        crate::mutations::feed(&seeds, Duration::from_secs(5), 2, |bytes| match Journal::parse(bytes) {
            Some(journal) => {
                read += 1;
                let _ = (journal.room(), journal.count(Purpose::Rescue));
                if let Ok(again) = journal.bytes() {
                    assert_eq!(Journal::parse(&again), Some(journal));
                }
            }
            None => refused += 1,
        });
        assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
    }

    fn journal() -> Journal {
        let record = |address| JournalRecord {
            change: Change {
                address,
                original: vec![1, 2, 3, 4, 5],
                replacement: vec![6, 7, 8, 9, 10],
            },
            thunk: 0x1234,
            in_thunk: 40,
            in_place: 2,
            purpose: Purpose::Rescue,
        };
        Journal {
            state: JournalState::InForce,
            is_of_start: true,
            vdso_base: 0x7fff_0000_0000,
            clocks: 3,
            records: vec![record(0x7fff_0000_0af0), record(0x7fff_0000_0810)],
        }
    }

    #[test]
    fn what_is_written_is_read_back_unchanged() {
        let mut long = journal();
        long.records[0].change.original = (0..=250).cycle().take(683).collect();
        long.records[0].change.replacement = vec![0xcc; 683];
        assert_eq!(Journal::parse(&long.bytes().unwrap()), Some(long));
        let mut page = journal().bytes().unwrap();
        page.resize(4096, 0);
        assert_eq!(Journal::parse(&page), Some(journal()));
        page[Journal::STATE_AT as usize] = 2;
        assert_eq!(Journal::parse(&page).unwrap().state, JournalState::Withdrawn);
        page[Journal::STATE_AT as usize] = 3;
        assert_eq!(Journal::parse(&page).unwrap().state, JournalState::Kept);
    }

    #[test]
    fn a_partly_restored_change_is_completed_around_breakpoints() {
        let record = &journal().records[0];
        let state = |bytes: [u8; 5]| record.patch_state(&bytes);
        assert_eq!(state([1, 2, 3, 4, 5]), PatchState::Original);
        assert_eq!(state([0xcc, 2, 3, 4, 5]), PatchState::Original);
        assert_eq!(state([1, 7, 8, 9, 10]), PatchState::Changed);
        assert_eq!(state([0xcc, 7, 3, 4, 5]), PatchState::Changed);
        assert_eq!(state([6, 7, 8, 9, 11]), PatchState::Foreign);
        let at = record.change.address;
        assert_eq!(record.restored(&[1, 7, 3, 9, 10]), [(at, vec![1, 2, 3, 4, 5])]);
        assert_eq!(
            record.restored(&[0xcc, 7, 0xcc, 9, 10]),
            [(at + 1, vec![2]), (at + 3, vec![4, 5])]
        );
    }

    #[test]
    fn other_memory_is_no_journal() {
        assert_eq!(Journal::parse(&[0; 4096]), None);
        assert_eq!(Journal::parse(&[]), None);
        let page = journal().bytes().unwrap();
        for (at, byte) in [(0, b'x'), (8, 9), (16, 9), (64 + 17, 0xff), (64 + 18, 9)] {
            let mut other = page.clone();
            other[at] = byte;
            assert_eq!(Journal::parse(&other), None, "{at}");
        }
        assert_eq!(Journal::parse(&page[..100]), None);
    }

    #[test]
    fn a_journal_that_does_not_fit_is_refused() {
        let mut long = journal();
        long.records = vec![long.records[0].clone(); MOST_RECORDS + 1];
        assert!(long.bytes().is_err());
    }
}
