//! A running program's own system calls for time, redirected to the image (`crates/rescue`).

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use fastpath_rescue::thunk::{Routines, Thunk, thunk};
use fastpath_rescue::{Site, analyse};

use super::checks::Target;
use super::hooked_calls::page_near;
use crate::error::Result;
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::program::file_start;
use crate::redirection::{Moved, Purpose, Record, RegionPlan};
use crate::sites::{MOST_FILE_BYTES, Mapped};
use crate::target::{open_path, open_regular};

/// Size of a page of thunks.
const PAGE: usize = 4096;
/// Distance between thunks on a page: a line of the CPU's cache holds code of one thunk only.
const ALIGNMENT: usize = 64;

/// Outcome for the program's own system calls for time.
#[derive(Debug, Clone, Default)]
pub struct Rescued {
    /// Number of sites that are redirected.
    pub sites: usize,
    /// Sites that are left alone.
    pub left_alone: Vec<NotRescued>,
    /// Reason why no site was looked for.
    pub refused: Option<&'static str>,
}

/// A site that is left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotRescued {
    /// The file with the code.
    pub file: String,
    /// Address in the file, before relocation.
    pub address: u64,
    /// Reason.
    pub why: String,
}

/// System calls for time of a process, redirected to the image.
#[derive(Debug, Default)]
pub struct RescuedCalls {
    /// Addresses and bytes of the pages of thunks, each within a jump's reach of the file whose calls it serves.
    pub pages: Vec<(u64, Vec<u8>)>,
    pub records: Vec<Record>,
    /// Instructions that will be overwritten.
    pub moved: Vec<Moved>,
    pub result: Rescued,
}

impl RescuedCalls {
    /// Returns the calls in all files whose code `target` has mapped. Only file-backed code is examined: what a compiler
    /// makes at run time may change at any time. Marks the pages of thunks as used in `taken`.
    pub fn of(target: &Target, plan: &RegionPlan, taken: &mut Vec<Mapping>) -> Result<RescuedCalls> {
        let mut calls = RescuedCalls::default();
        if target.is_filtered {
            calls.result.refused = Some("it has a seccomp filter, which may answer these calls itself");
            return Ok(calls);
        }
        if plan.routines == Routines::default() {
            calls.result.refused = Some("the kernel's functions may change registers that a system call keeps");
            return Ok(calls);
        }
        let memory = Memory::of(target.pid)?;
        for (file, sites) in files_with_sites(target) {
            calls.add_file(&file, &sites, plan, &memory, taken);
        }
        Ok(calls)
    }

    fn add_file(
        &mut self,
        file: &MappedFile,
        sites: &[Site],
        plan: &RegionPlan,
        memory: &Memory,
        taken: &mut Vec<Mapping>,
    ) {
        let mut page = ThunkPage::default();
        for site in sites {
            let added = self.add_site(file, site, plan, memory, &mut page, taken);
            if let Err(why) = added {
                self.result.left_alone.push(NotRescued {
                    file: file.name.clone(),
                    address: site.address,
                    why,
                });
            }
        }
        if !page.bytes.is_empty() {
            page.bytes.resize(PAGE, 0);
            self.pages.push((page.at, page.bytes));
        }
    }

    fn add_site(
        &mut self,
        file: &MappedFile,
        site: &Site,
        plan: &RegionPlan,
        memory: &Memory,
        page: &mut ThunkPage,
        taken: &mut Vec<Mapping>,
    ) -> std::result::Result<(), String> {
        let window = site.window.as_ref().map_err(ToString::to_string)?;
        if page.at == 0 {
            page.at = page_near(taken, file.start).ok_or("there is no room near its file")?;
        }
        let at = page.at + page.bytes.len() as u64;
        let thunk = thunk(window, site.calls, file.bias, at, plan.routines);
        let thunk = thunk.ok_or("the image does not answer its call, or is out of a jump's reach")?;
        let range = thunk.address..thunk.address + window.bytes.len() as u64;
        let others = plan.journal.records.iter().chain(&self.records);
        if others.into_iter().any(|record| overlaps(record, &range)) {
            return Err("fastpath has redirected it for another purpose".into());
        }
        let found = memory.bytes(range.start, window.bytes.len());
        if found.map_err(|e| e.to_string())? != window.bytes {
            return Err("its code is not that of its file".into());
        }
        let size = (page.bytes.len() + thunk.code.len()).next_multiple_of(ALIGNMENT);
        if size > PAGE {
            return Err("its file has more sites than one page of thunks holds".into());
        }
        page.bytes.extend(&thunk.code);
        page.bytes.resize(size, 0);
        self.note(&thunk, at);
        Ok(())
    }

    fn note(&mut self, thunk: &Thunk, at: u64) {
        let (in_thunk, in_place) = thunk.in_call.unwrap_or_default();
        self.records.push(Record {
            address: thunk.address,
            original: thunk.original.clone(),
            replacement: thunk.replacement.clone(),
            thunk: thunk.in_call.map_or(0, |_| at),
            in_thunk,
            in_place,
            purpose: Purpose::Rescue,
        });
        self.moved.extend(thunk.moved.iter().map(|(from, to)| Moved {
            from: thunk.address + u64::from(*from),
            to: at + u64::from(*to),
        }));
        self.result.sites += 1;
    }
}

fn overlaps(record: &Record, range: &Range<u64>) -> bool {
    let end = record.address + record.original.len() as u64;
    record.address < range.end && range.start < end
}

/// The page of thunks for one file; without an address until the first thunk.
#[derive(Default)]
struct ThunkPage {
    at: u64,
    bytes: Vec<u8>,
}

/// A file whose code a process has mapped.
struct MappedFile {
    name: String,
    /// Address of its lowest mapping.
    start: u64,
    /// What is added to the addresses that it states.
    bias: u64,
}

/// Returns the files that have sites. A file that cannot be read has none, and neither has one that was replaced on disk:
/// its code is not the mapped code.
fn files_with_sites(target: &Target) -> Vec<(MappedFile, Vec<Site>)> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    // Code that a program makes at run time may lie in a memfd.
    let is_file = |m: &&Mapping| m.executable && m.inode != 0 && !m.name.starts_with("/memfd:");
    for mapping in target.maps.iter().filter(is_file) {
        if !seen.insert((mapping.device.clone(), mapping.inode)) {
            continue;
        }
        let Some((sites, lowest)) = sites_of(target.pid, mapping) else {
            continue;
        };
        if let Some(start) = file_start(&target.maps, mapping.start).filter(|_| !sites.is_empty()) {
            let file = MappedFile {
                name: mapping.name.clone(),
                start,
                bias: start.wrapping_sub(lowest),
            };
            found.push((file, sites));
        }
    }
    found
}

/// Returns the sites of a mapped file, and the lowest address that it states.
fn sites_of(pid: i32, mapping: &Mapping) -> Option<(Vec<Site>, u64)> {
    let open = |path: String| open_regular(&open_path(&path).ok()?).ok();
    // The first path needs a privilege, and leads to the file that is mapped even if another one has its name by now.
    let file = open(format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end))
        .or_else(|| open(format!("/proc/{pid}/root{}", mapping.name)))?;
    let meta = file.metadata().ok()?;
    if meta.ino() != mapping.inode || meta.size() > MOST_FILE_BYTES {
        return None;
    }
    let bytes = Mapped::of(&file, meta.len() as usize).ok()?;
    let lowest = crate::sites::lowest(&bytes)?;
    Some((analyse(&bytes).ok()?, lowest))
}
