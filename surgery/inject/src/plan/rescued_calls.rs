//! A program's own system calls for time, redirected to the image ([`fastpath_code::rescue`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastpath_code::rescue::thunk::{Routine, thunk};
use fastpath_code::rescue::window::{Jump, Relay, Window, WindowKind};
use fastpath_code::rescue::{Analysis, RescueSite};
use fastpath_image::Isa;

use crate::abi::Hook;
use crate::plan::Seen;
use crate::plan::calls::{Calls, ThunkPage};
use crate::plan::redirection::{Change, JournalRecord, Purpose, RegionPlan};
use crate::plan::region;
use crate::target::maps::Mapping;
use crate::target::memory::{CodePages, Memory};
use crate::target::program::{self, file_start};
use crate::target::sites::Cache;

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

/// Adds to `calls` those for time in all files whose code the process has mapped. A site that `calls` reports to the
/// hook already is changed there: only other calls continue to the hook. `withheld`: the reasons for which `region` lacks
/// routines.
pub fn add(seen: &Seen<'_>, withheld: Vec<String>, region: &RegionPlan, calls: &mut Calls) -> Rescued {
    let mut result = Rescued {
        withheld,
        ..Rescued::default()
    };
    if region.routines.is_empty() {
        result.refused = Some(result.withheld.join("; "));
        return result;
    }
    for file in files_with_sites(seen) {
        let Some(mut page) = calls.page_beside(file.start) else {
            let sites = file.analysis.sites.iter();
            let refused = sites.map(|site| file.leave_alone(site, "there is no room near its file"));
            result.left_alone.extend(refused);
            continue;
        };
        add_file(seen.code, &file, &region.routines, calls, &mut page, &mut result);
        if page.used > 0 {
            calls.keep(page);
        }
    }
    result
}

/// Adds the calls of one file, as far as there is room.
pub fn add_file(
    code: &CodePages<'_>,
    file: &RescuedFile,
    routines: &[Routine],
    calls: &mut Calls,
    page: &mut ThunkPage,
    result: &mut Rescued,
) {
    for site in &file.analysis.sites {
        match add_site(code, file, site, routines, calls, page) {
            Ok(()) => result.sites += 1,
            Err(why) => result.left_alone.push(file.leave_alone(site, &why)),
        }
    }
}

fn add_site(
    code: &CodePages<'_>,
    file: &RescuedFile,
    site: &RescueSite,
    routines: &[Routine],
    calls: &mut Calls,
    page: &mut ThunkPage,
) -> std::result::Result<(), String> {
    let window = site.window.as_ref().map_err(ToString::to_string)?;
    let address = file.bias.wrapping_add(window.address);
    let is_as_in_file = |at: u64, expected: &[u8]| match code.has(at, expected) {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err("its code is not that of its file (a probe or a breakpoint of another tool may be there)".to_owned())
        }
        Err(e) => Err(e.to_string()),
    };
    is_as_in_file(address, &window.bytes)?;
    if window.jump != Jump::First && window.kind == WindowKind::Before {
        is_as_in_file(address + window.bytes.len() as u64, &[0x0f, 0x05])?;
    }
    let at = page.next();
    let mut refused = "the paddings near it are used for other sites, or changed".to_owned();
    let relays = window.jump.relays();
    let relays = relays.map_or(vec![None], |relays| relays.iter().map(Some).collect());
    for relay in relays {
        if relay.is_some_and(|relay| is_as_in_file(relay.address(address), &relay.bytes).is_err()) {
            continue;
        }
        let hook = hook_at(window, address, relay, &calls.records);
        let otherwise = hook.map(|(_, target)| target);
        let thunk = thunk(window, site.calls, file.bias, at, routines, otherwise, relay);
        let thunk = thunk.ok_or("its call remains a system call here, or the image is out of a jump's reach")?;
        let is_free = |change: &Change| !calls.records.iter().any(|record| overlaps(record, change));
        if hook.is_none() && !thunk.changes.iter().all(is_free) {
            if relay.is_none() {
                refused = "its instructions are those of another site".to_owned();
            }
            continue;
        }
        if !page.has_room(thunk.code.len()) {
            return Err("its file has more sites than one page of thunks holds".into());
        }
        match hook {
            Some((index, _)) => {
                let change = thunk.changes.first().ok_or("it has no change")?;
                calls.records[index].change.replacement.clone_from(&change.replacement);
                let site = calls.records.iter_mut().find(|record| record.change.address == address);
                site.into_iter().for_each(|record| record.purpose = Purpose::Rescue);
                page.put(&thunk.code);
            }
            None if !calls.has_room(thunk.changes.len()) => return Err("the region's journal is full".into()),
            None => calls.put(thunk, address, page, |change| match change.address == address {
                true => Purpose::Rescue,
                false => Purpose::Relay,
            }),
        }
        return Ok(());
    }
    Err(refused)
}

/// Returns the record of the jump by which a window, with this relay, goes to the hook already, and where it goes.
fn hook_at(window: &Window, address: u64, relay: Option<&Relay>, records: &[JournalRecord]) -> Option<(usize, u64)> {
    let jump_at = relay.map_or(address, |relay| relay.address(address));
    let is_hooked = |record: &JournalRecord| record.change.address == address && record.purpose == Purpose::Hook;
    records.iter().find(|record| is_hooked(record))?;
    let index = records.iter().position(|record| record.change.address == jump_at)?;
    // The first byte may be the file's.
    let kept = usize::from(window.jump != Jump::First);
    let jump = records[index].change.replacement.get(kept..)?;
    let target = (window.isa.facts().jump_target)(jump, jump_at + kept as u64)?;
    Some((index, target))
}

/// Returns the routines in the region of a process: those whose functions are filled in.
pub fn routines_of(memory: &Memory, isa: Isa, hook: &Hook, region: u64) -> Vec<Routine> {
    let is_filled_in = |answers| {
        let function = memory.bytes(region + region::HOOK + answers, 8);
        function.is_ok_and(|function| function != [0; 8])
    };
    let routines = hook.rescue.iter().filter(|(.., answers)| is_filled_in(*answers));
    routines
        .filter_map(|(name, routine, _)| Routine::for_call(isa, name, region + region::HOOK + routine))
        .collect()
}

fn overlaps(record: &JournalRecord, change: &Change) -> bool {
    let end = |address: u64, bytes: &[u8]| address + bytes.len() as u64;
    let other = record.range();
    other.start < end(change.address, &change.original) && change.address < other.end
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
    pub fn scan(pid: i32, maps: &[Mapping], mapping: &Mapping, scans: &Cache) -> Option<RescuedFile> {
        let analysis = scans.own_calls(&program::open_mapped(pid, mapping)?).ok()?;
        let start = file_start(maps, mapping.start).filter(|_| !analysis.sites.is_empty())?;
        Some(RescuedFile {
            name: mapping.name.clone(),
            start,
            bias: start.wrapping_sub(analysis.lowest),
            analysis,
        })
    }

    fn leave_alone(&self, site: &RescueSite, why: &str) -> NotRescued {
        NotRescued {
            file: self.name.clone(),
            address: site.address,
            why: why.to_owned(),
        }
    }
}

/// Time for which files are searched. Those of the largest programs take a second.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the files that have sites.
fn files_with_sites(seen: &Seen<'_>) -> Vec<RescuedFile> {
    let mut starts = BTreeSet::new();
    let until = Instant::now() + TIMEOUT;
    // Code that a program makes at run time may lie in a memfd, and changes.
    program::code_of_files(seen.maps)
        .filter(|mapping| !mapping.name.starts_with("/memfd:"))
        .filter(|mapping| starts.insert(file_start(seen.maps, mapping.start)))
        .take_while(|_| Instant::now() < until)
        .filter_map(|mapping| RescuedFile::scan(seen.pid, seen.maps, mapping, seen.scans))
        .collect()
}
