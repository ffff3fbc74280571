//! Finds the region in a process, whichever fastpath mapped it.

use super::refusal::{Answer, Refusal};
use crate::error::Error;
use crate::maps::{self, Mapping};
use crate::memory::Memory;
use crate::redirection::{Journal, REGION_NAME, Record, State, mapping};
use crate::region;

/// A region in a process.
#[derive(Debug)]
pub struct Found {
    pub pid: i32,
    /// Address of its start.
    pub at: u64,
    pub journal: Journal,
}

/// Returns the region of a process with these mappings.
pub fn find(pid: i32, maps: &[Mapping]) -> Answer<Option<Found>> {
    let name = format!("/memfd:{REGION_NAME}");
    let ours = |m: &&Mapping| m.name.starts_with(&name) && m.offset < region::SIZE;
    let Some(at) = maps.iter().find(ours).map(|m| m.start.wrapping_sub(m.offset)) else {
        return Ok(None);
    };
    let page = Memory::of(pid)?.bytes(at + region::JOURNAL, 4096)?;
    let journal = Journal::parse(&page).ok_or_else(|| {
        Error::Unsupported("it was attached by another version of fastpath; detach it by that one".into())
    })?;
    Ok(Some(Found { pid, at, journal }))
}

impl Found {
    /// Returns the records whose changes are in place now. Refuses if there are other bytes in the place of one.
    pub fn in_force(&self) -> Answer<Vec<&Record>> {
        let memory = Memory::of(self.pid)?;
        let mut in_force = Vec::new();
        for record in &self.journal.records {
            let bytes = memory.bytes(record.address, record.original.len())?;
            if bytes == record.replacement {
                in_force.push(record);
            } else if bytes != record.original {
                return Err(Refusal::ChangedSince {
                    address: record.address,
                });
            }
        }
        Ok(in_force)
    }

    /// Returns whether any change is in place.
    pub fn is_in_force(&self) -> Answer<bool> {
        Ok(self.journal.state == State::InForce && !self.in_force()?.is_empty())
    }

    /// Returns everything that was mapped for it, with its thunks beside libraries.
    pub fn memory(&self) -> Answer<Vec<std::ops::Range<u64>>> {
        Ok(mapping::parts(self.at, &maps::of(self.pid)?))
    }
}
