//! Finds the region in a process, whichever fastpath mapped it.

use std::mem::offset_of;

use super::refusal::{Answer, Refusal};
use crate::error::Error;
use crate::plan::mailbox_layout::HookState;
use crate::plan::redirection::{Journal, JournalRecord, JournalState, PatchState, Purpose};
use crate::plan::region;
use crate::remote::mapping;
use crate::target::maps::{self, Mapping};
use crate::target::memory::{Memory, Pagemap};

/// A region in a process.
#[derive(Debug)]
pub struct FoundRegion {
    pub pid: i32,
    /// Address of its start.
    pub at: u64,
    pub journal: Journal,
}

/// Returns the region of a process with these mappings.
pub fn find(pid: i32, maps: &[Mapping]) -> Answer<Option<FoundRegion>> {
    let Some((at, journal)) = Journal::find(pid, maps)? else {
        return Ok(None);
    };
    let journal = journal.ok_or_else(|| {
        Error::Unsupported("it was attached by another version of fastpath; detach it by that one".into())
    })?;
    Ok(Some(FoundRegion { pid, at, journal }))
}

impl FoundRegion {
    /// Returns the records of which any byte is in place now, with the bytes that are there. Refuses if there are bytes
    /// of others in the place of one. A library that the program has closed took its changes with it, and another one may
    /// be mapped there.
    pub fn in_force(&self) -> Answer<Vec<(&JournalRecord, Vec<u8>)>> {
        let memory = Memory::open(self.pid)?;
        let pagemap = Pagemap::open(self.pid);
        let mut in_force = Vec::new();
        for record in &self.journal.records {
            let Some(bytes) = self.bytes_at(&memory, record)? else {
                continue;
            };
            match record.patch_state(&bytes) {
                PatchState::Original => {}
                PatchState::Changed => in_force.push((record, bytes)),
                PatchState::Foreign if pagemap.is_of_file(record.change.address) => {}
                PatchState::Foreign => {
                    return Err(Refusal::ChangedSince {
                        address: record.change.address,
                    });
                }
            }
        }
        Ok(in_force)
    }

    /// Returns the bytes in the place of a record; `None` if nothing is mapped there any more, as where a program has moved its vDSO.
    fn bytes_at(&self, memory: &Memory, record: &JournalRecord) -> Answer<Option<Vec<u8>>> {
        match memory.bytes(record.change.address, record.change.original.len()) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) => {
                let is_mapped = |m: &Mapping| m.range().contains(&record.change.address);
                let is_mapped = maps::read(self.pid)?.iter().any(is_mapped);
                if is_mapped { Err(e.into()) } else { Ok(None) }
            }
        }
    }

    /// Returns whether any change is in place.
    pub fn is_in_force(&self) -> Answer<bool> {
        Ok(self.journal.state == JournalState::InForce && !self.in_force()?.is_empty())
    }

    /// Returns whether the image's code is in the vDSO.
    pub fn has_entry_body(&self) -> Answer<bool> {
        let memory = Memory::open(self.pid)?;
        for record in self
            .journal
            .records
            .iter()
            .filter(|record| record.purpose == Purpose::EntryBody)
        {
            let bytes = self.bytes_at(&memory, record)?;
            if bytes.is_some_and(|bytes| record.patch_state(&bytes) != PatchState::Original) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether its program has yet to get to its entry point, by way of the hook: AT_ENTRY points there until
    /// then, and the loader may have read it.
    pub fn is_before_entry(&self) -> Answer<bool> {
        let memory = Memory::open(self.pid)?;
        let word = |at: u64| {
            let bytes = memory.bytes(at, 8).ok()?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let entry_cell = word(self.at + region::STATE + offset_of!(HookState, entry_cell) as u64);
        let entry = entry_cell.filter(|cell| *cell != 0).and_then(word);
        Ok(entry.is_some_and(|entry| (self.at..self.at + region::SIZE).contains(&entry)))
    }

    /// Returns the code that was mapped for it, with its thunks beside libraries, and the slow path in the vDSO.
    pub fn code(&self) -> Answer<Vec<std::ops::Range<u64>>> {
        let slow_path = self
            .journal
            .records
            .iter()
            .filter(|record| record.purpose == Purpose::SlowPath);
        let slow_path = slow_path.map(|record| record.thunk..record.thunk + u64::from(record.in_thunk));
        Ok(mapping::code(self.at, &maps::read(self.pid)?)
            .into_iter()
            .chain(slow_path)
            .collect())
    }
}
