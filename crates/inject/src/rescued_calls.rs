//! A program's own system calls for time, redirected to the image (`crates/rescue`).

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use fastpath_rescue::Site;
use fastpath_rescue::thunk::{Routines, Thunk, thunk};

use crate::abi::Hook;
use crate::abi::sites::THUNK_BYTES;
use crate::error::Result;
use crate::hooked_calls::{HookedCalls, PAGE, reserve};
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::program::file_start;
use crate::redirection::{Moved, Purpose, Record, RegionPlan};
use crate::region;
use crate::sites::Cache;
use crate::target::{open_path, open_regular};

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
    /// Returns the calls in all files whose code the process `pid` has mapped; its region will be at `region_at`. A
    /// site that `hooked` reports to the hook is changed there: only other calls continue to the hook.
    pub fn with(
        pid: i32,
        maps: &[Mapping],
        is_filtered: bool,
        plan: &RegionPlan,
        region_at: u64,
        hooked: &mut HookedCalls,
        scans: &Cache,
    ) -> Result<RescuedCalls> {
        let mut calls = RescuedCalls::default();
        if is_filtered {
            calls.result.refused = Some("it has a seccomp filter, which may answer these calls itself");
            return Ok(calls);
        }
        if plan.routines == Routines::default() {
            calls.result.refused = Some("the kernel's functions may change registers that a system call keeps");
            return Ok(calls);
        }
        let mut taken = maps.to_vec();
        reserve(&mut taken, region_at, region::SIZE);
        for (at, _) in &hooked.pages {
            reserve(&mut taken, *at, PAGE);
        }
        let memory = Memory::of(pid)?;
        for file in files_with_sites(pid, maps, scans) {
            let mut page = vec![0; PAGE as usize];
            let records = plan.room().saturating_sub(hooked.records.len() + calls.records.len());
            let mut room = Room::on_page(0, &mut page, 0, records);
            calls.add(&memory, &file, plan.routines, hooked, &mut room, |start| {
                let at = region::place_beside(&taken, start, PAGE)?;
                reserve(&mut taken, at, PAGE);
                Some(at)
            });
            if room.used > 0 {
                calls.pages.push((room.at, page));
            }
        }
        Ok(calls)
    }

    /// Adds the calls of one file, as far as there is room. `place` returns where the page of thunks goes if it has no
    /// address yet.
    pub fn add(
        &mut self,
        memory: &Memory,
        file: &RescuedFile,
        routines: Routines,
        hooked: &mut HookedCalls,
        room: &mut Room<'_>,
        mut place: impl FnMut(u64) -> Option<u64>,
    ) {
        for site in file.sites.iter() {
            if room.at == 0 {
                room.at = place(file.start).unwrap_or(0);
            }
            let added = match room.at {
                0 => Err("there is no room near its file".into()),
                _ => self.add_site(memory, file, site, routines, hooked, room),
            };
            if let Err(why) = added {
                self.result.left_alone.push(NotRescued {
                    file: file.name.clone(),
                    address: site.address,
                    why,
                });
            }
        }
    }

    fn add_site(
        &mut self,
        memory: &Memory,
        file: &RescuedFile,
        site: &Site,
        routines: Routines,
        hooked: &mut HookedCalls,
        room: &mut Room<'_>,
    ) -> std::result::Result<(), String> {
        let window = site.window.as_ref().map_err(ToString::to_string)?;
        let address = file.bias.wrapping_add(window.address);
        let range = address..address + window.bytes.len() as u64;
        let hook = hooked.records.iter_mut().find(|record| overlaps(record, &range));
        if self.records.iter().any(|record| overlaps(record, &range)) {
            return Err("its instructions are those of another site".into());
        }
        let otherwise = match &hook {
            Some(record) => Some(
                target_of(record)
                    .filter(|_| record.address == address)
                    .ok_or("its instructions are redirected for the programs that it executes")?,
            ),
            None => None,
        };
        let at = room.at + room.used as u64;
        let thunk = thunk(window, site.calls, file.bias, at, routines, otherwise);
        let thunk = thunk.ok_or("the image does not answer its call, or is out of a jump's reach")?;
        let found = memory.bytes(range.start, window.bytes.len());
        if found.map_err(|e| e.to_string())? != window.bytes {
            return Err("its code is not that of its file".into());
        }
        let size = (room.used + thunk.code.len()).next_multiple_of(THUNK_BYTES);
        if size > room.page.len() {
            return Err("its file has more sites than one page of thunks holds".into());
        }
        match hook {
            Some(record) => {
                record.replacement.clone_from(&thunk.replacement);
                record.purpose = Purpose::Rescue;
            }
            None if self.records.len() >= room.records => return Err("the region's journal is full".into()),
            None => self.note(&thunk, at),
        }
        room.page[room.used..room.used + thunk.code.len()].copy_from_slice(&thunk.code);
        room.used = size;
        self.result.sites += 1;
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
    }
}

/// Room for thunks on one page, and for records.
pub struct Room<'p> {
    /// Address of the page; 0: it has none yet.
    pub at: u64,
    pub page: &'p mut [u8],
    /// Bytes of it that are used.
    pub used: usize,
    /// Number of records.
    pub records: usize,
}

/// Returns the routines in the region of a process: those whose functions are filled in.
pub fn routines_of(memory: &Memory, hook: &Hook, region: u64) -> Routines {
    let mut routines = Routines::default();
    for (name, routine, answers) in hook.rescue {
        let function = memory.bytes(region + region::HOOK + answers, 8);
        if function.is_ok_and(|function| function != [0; 8]) {
            routines.set(name, region + region::HOOK + routine);
        }
    }
    routines
}

impl<'p> Room<'p> {
    /// Returns the room on a page at `at`, of which `used` bytes are taken, and for so many records.
    pub fn on_page(at: u64, page: &'p mut [u8], used: usize, records: usize) -> Room<'p> {
        Room {
            at,
            page,
            used,
            records,
        }
    }
}

fn overlaps(record: &Record, range: &Range<u64>) -> bool {
    let end = record.address + record.original.len() as u64;
    record.address < range.end && range.start < end
}

/// Returns where the jump of a record goes (`jmp rel32`).
fn target_of(record: &Record) -> Option<u64> {
    let [0xe9, a, b, c, d, ..] = record.replacement[..] else {
        return None;
    };
    let distance = i32::from_le_bytes([a, b, c, d]);
    Some((record.address + 5).wrapping_add_signed(distance.into()))
}

/// A file with system calls for time, whose code a process has mapped.
pub struct RescuedFile {
    pub name: String,
    /// Address of its lowest mapping.
    pub start: u64,
    /// What is added to the addresses that it states.
    pub bias: u64,
    pub sites: Arc<Vec<Site>>,
}

/// Returns the files that have sites. A file that cannot be read has none, and neither has one that was replaced on
/// disk: its code is not the mapped code.
fn files_with_sites(pid: i32, maps: &[Mapping], scans: &Cache) -> Vec<RescuedFile> {
    let mut seen = BTreeSet::new();
    // Code that a program makes at run time may lie in a memfd, and changes.
    let is_file = |m: &&Mapping| m.executable && m.inode != 0 && !m.name.starts_with("/memfd:");
    maps.iter()
        .filter(is_file)
        .filter(|mapping| seen.insert((mapping.device.clone(), mapping.inode)))
        .filter_map(|mapping| file_with_sites(pid, maps, mapping, scans))
        .collect()
}

/// Returns a mapped file with its sites, if it has any.
pub fn file_with_sites(pid: i32, maps: &[Mapping], mapping: &Mapping, scans: &Cache) -> Option<RescuedFile> {
    let open = |path: String| open_regular(&open_path(&path).ok()?).ok();
    // The first path needs a privilege, and leads to the file that is mapped even if another one has its name by now.
    let file = open(format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end))
        .or_else(|| open(format!("/proc/{pid}/root{}", mapping.name)))?;
    if file.metadata().ok()?.ino() != mapping.inode {
        return None;
    }
    let found = scans.rescue_sites(&file).ok()?;
    let start = file_start(maps, mapping.start).filter(|_| !found.sites.is_empty())?;
    Some(RescuedFile {
        name: mapping.name.clone(),
        start,
        bias: start.wrapping_sub(found.lowest),
        sites: found.sites.clone(),
    })
}
