//! Finds the region in a process, whichever fastpath mapped it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::refusal::{Answer, Refusal};
use crate::error::Error;
use crate::maps::{self, Mapping};
use crate::redirection::{Journal, REGION_NAME, Record, State};
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
    let ours = |m: &&Mapping| m.name.starts_with(&name) && m.offset < region::ATTACHED_SIZE;
    let Some(at) = maps.iter().find(ours).map(|m| m.start.wrapping_sub(m.offset)) else {
        return Ok(None);
    };
    let mut page = vec![0; 4096];
    read(pid, at + region::JOURNAL, &mut page)?;
    let journal = Journal::parse(&page).ok_or_else(|| {
        Error::Unsupported("it was attached by another version of fastpath; detach it by that one".into())
    })?;
    Ok(Some(Found { pid, at, journal }))
}

fn read(pid: i32, at: u64, bytes: &mut [u8]) -> Answer<()> {
    let path = format!("/proc/{pid}/mem");
    let read = File::open(&path).and_then(|file| file.read_exact_at(bytes, at));
    Ok(read.map_err(|e| Error::io(path, e))?)
}

impl Found {
    /// Returns the records whose changes are in place now. Refuses if there are other bytes in the place of one.
    pub fn in_force(&self) -> Answer<Vec<&Record>> {
        let mut standing = Vec::new();
        for record in &self.journal.records {
            let mut bytes = vec![0; record.original.len()];
            read(self.pid, record.address, &mut bytes)?;
            if bytes == record.replacement {
                standing.push(record);
            } else if bytes != record.original {
                return Err(Refusal::ChangedSince {
                    address: record.address,
                });
            }
        }
        Ok(standing)
    }

    /// Returns whether any change is in place.
    pub fn is_in_force(&self) -> Answer<bool> {
        Ok(self.journal.state == State::InForce && !self.in_force()?.is_empty())
    }

    /// Returns everything that was mapped for it, with its thunks beside libraries.
    pub fn memory(&self) -> Answer<Vec<std::ops::Range<u64>>> {
        Ok(memory(self.at, &maps::of(self.pid)?))
    }
}

/// Returns the parts of the region at `at` in a process with these mappings.
pub fn memory(at: u64, maps: &[Mapping]) -> Vec<std::ops::Range<u64>> {
    let name = format!("/memfd:{REGION_NAME}");
    let thunks = maps
        .iter()
        .filter(|m| m.name.starts_with(&name) && m.offset >= region::ATTACHED_SIZE);
    let whole = at..at + region::ATTACHED_SIZE;
    std::iter::once(whole).chain(thunks.map(|m| m.start..m.end)).collect()
}
