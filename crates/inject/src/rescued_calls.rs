//! A program's own system calls for time, redirected to the image (`crates/code/src/rescue`).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use fastpath_code::rescue::thunk::{Routine, Thunk, thunk};
use fastpath_code::rescue::{Analysis, Site};
use fastpath_image::Isa;

use crate::abi::Hook;
use crate::abi::sites::THUNK_BYTES;
use crate::error::Result;
use crate::hooked_calls::{HookedCalls, PAGE, reserve};
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::program::{self, file_start};
use crate::redirection::{Moved, Purpose, Record, RegionPlan};
use crate::region;
use crate::sites::Cache;

/// Outcome for the program's own system calls for time.
#[derive(Debug, Clone, Default)]
pub struct Rescued {
    /// Number of sites that are redirected.
    pub sites: usize,
    /// Sites that are left alone.
    pub left_alone: Vec<NotRescued>,
    /// Calls that remain system calls everywhere, each with the reason.
    pub withheld: Vec<String>,
    /// Reason why no site was looked for.
    pub refused: Option<String>,
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

/// Adds to `calls` those in all files whose code the process `pid` has mapped; its region will be at `region_at`. A
/// site that `calls` reports to the hook already is changed there: only other calls continue to the hook. `withheld`: the
/// reasons for which `plan` lacks routines.
pub fn add(
    pid: i32,
    maps: &[Mapping],
    withheld: Vec<String>,
    plan: &RegionPlan,
    region_at: u64,
    calls: &mut HookedCalls,
    scans: &Cache,
) -> Result<Rescued> {
    let mut result = Rescued {
        withheld,
        ..Rescued::default()
    };
    if plan.routines.is_empty() {
        result.refused = Some(match result.withheld.is_empty() {
            true => "the kernel's functions may change registers that a system call keeps".to_owned(),
            false => result.withheld.join("; "),
        });
        return Ok(result);
    }
    let mut taken = maps.to_vec();
    reserve(&mut taken, region_at, region::SIZE_WITH_OWN_IMAGE);
    for (at, _) in &calls.pages {
        reserve(&mut taken, *at, PAGE);
    }
    let memory = Memory::of(pid)?;
    for file in files_with_sites(pid, maps, scans) {
        let Some(at) = region::place_beside(&taken, file.start, PAGE) else {
            let sites = file.analysis.sites.iter();
            let refused = sites.map(|site| file.leave_alone(site, "there is no room near its file"));
            result.left_alone.extend(refused);
            continue;
        };
        let mut page = vec![0; PAGE as usize];
        let mut room = Room {
            at,
            page: &mut page,
            used: 0,
            most_records: plan.room(),
        };
        add_file(&memory, &file, &plan.routines, calls, &mut room, &mut result);
        if room.used > 0 {
            reserve(&mut taken, at, PAGE);
            calls.pages.push((at, page));
        }
    }
    Ok(result)
}

/// Room for thunks on one page, and for records.
pub struct Room<'p> {
    /// Address of the page.
    pub at: u64,
    pub page: &'p mut [u8],
    /// Bytes of it that are used.
    pub used: usize,
    /// Number of records that there may be in the end.
    pub most_records: usize,
}

/// Adds the calls of one file, as far as there is room.
pub fn add_file(
    memory: &Memory,
    file: &RescuedFile,
    routines: &[Routine],
    calls: &mut HookedCalls,
    room: &mut Room<'_>,
    result: &mut Rescued,
) {
    for site in &file.analysis.sites {
        match add_site(memory, file, site, routines, calls, room) {
            Ok(()) => result.sites += 1,
            Err(why) => result.left_alone.push(file.leave_alone(site, &why)),
        }
    }
}

fn add_site(
    memory: &Memory,
    file: &RescuedFile,
    site: &Site,
    routines: &[Routine],
    calls: &mut HookedCalls,
    room: &mut Room<'_>,
) -> std::result::Result<(), String> {
    let window = site.window.as_ref().map_err(ToString::to_string)?;
    let address = file.bias.wrapping_add(window.address);
    let range = address..address + window.bytes.len() as u64;
    let is_full = calls.records.len() >= room.most_records;
    let hook = calls.records.iter_mut().find(|record| overlaps(record, &range));
    let otherwise = match &hook {
        Some(record) if record.purpose == Purpose::Rescue => {
            return Err("its instructions are those of another site".into());
        }
        Some(record) => Some(
            (window.isa.facts().jump_target)(&record.replacement, record.address)
                .filter(|_| record.address == address)
                .ok_or("its instructions are redirected for the programs that it executes")?,
        ),
        None => None,
    };
    let at = room.at + room.used as u64;
    let thunk = thunk(window, site.calls, file.bias, at, routines, otherwise);
    let thunk = thunk.ok_or("its call remains a system call here, or the image is out of a jump's reach")?;
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
        None if is_full => return Err("the region's journal is full".into()),
        None => note(calls, &thunk, at),
    }
    room.page[room.used..room.used + thunk.code.len()].copy_from_slice(&thunk.code);
    room.used = size;
    Ok(())
}

fn note(calls: &mut HookedCalls, thunk: &Thunk, at: u64) {
    let (in_thunk, in_place) = thunk.in_call.unwrap_or_default();
    calls.records.push(Record {
        address: thunk.address,
        original: thunk.original.clone(),
        replacement: thunk.replacement.clone(),
        thunk: thunk.in_call.map_or(0, |_| at),
        in_thunk,
        in_place,
        purpose: Purpose::Rescue,
    });
    calls.moved.extend(thunk.moved.iter().map(|(from, to)| Moved {
        from: thunk.address + u64::from(*from),
        to: at + u64::from(*to),
    }));
}

/// Returns the routines in the region of a process: those whose functions are filled in.
pub fn routines_of(memory: &Memory, isa: Isa, hook: &Hook, region: u64) -> Vec<Routine> {
    let is_filled_in = |answers| {
        let function = memory.bytes(region + region::HOOK + answers, 8);
        function.is_ok_and(|function| function != [0; 8])
    };
    let routines = hook.rescue.iter().filter(|(.., answers)| is_filled_in(*answers));
    routines
        .filter_map(|(name, routine, _)| Routine::of(isa, name, region + region::HOOK + routine))
        .collect()
}

fn overlaps(record: &Record, range: &Range<u64>) -> bool {
    let end = record.address + record.original.len() as u64;
    record.address < range.end && range.start < end
}

/// A file with system calls for time, whose code a process has mapped.
pub struct RescuedFile {
    name: String,
    /// Address of its lowest mapping.
    start: u64,
    /// What is added to the addresses that it states.
    bias: u64,
    analysis: Arc<Analysis>,
}

impl RescuedFile {
    /// Returns a mapped file, if it has sites. A file that cannot be read has none.
    pub fn of(pid: i32, maps: &[Mapping], mapping: &Mapping, scans: &Cache) -> Option<RescuedFile> {
        let analysis = scans.own_calls(&program::open_mapped(pid, mapping)?).ok()?;
        let start = file_start(maps, mapping.start).filter(|_| !analysis.sites.is_empty())?;
        Some(RescuedFile {
            name: mapping.name.clone(),
            start,
            bias: start.wrapping_sub(analysis.lowest),
            analysis,
        })
    }

    fn leave_alone(&self, site: &Site, why: &str) -> NotRescued {
        NotRescued {
            file: self.name.clone(),
            address: site.address,
            why: why.to_owned(),
        }
    }
}

/// Returns the files that have sites.
fn files_with_sites(pid: i32, maps: &[Mapping], scans: &Cache) -> Vec<RescuedFile> {
    let mut seen = BTreeSet::new();
    // Code that a program makes at run time may lie in a memfd, and changes.
    let is_file = |m: &&Mapping| m.executable && m.inode != 0 && !m.name.starts_with("/memfd:");
    maps.iter()
        .filter(is_file)
        .filter(|mapping| seen.insert((mapping.device.clone(), mapping.inode)))
        .filter_map(|mapping| RescuedFile::of(pid, maps, mapping, scans))
        .collect()
}
