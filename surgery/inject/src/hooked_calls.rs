//! System calls of a program that are redirected to the hook ([`crate::sites`]), so that the programs that it executes
//! are served as they start.

use crate::abi::sites::{THUNK_BYTES, behind_call, expected};
use crate::abi::{self, Hook};
use crate::error::Result;
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::program::Code;
use crate::redirection::{Moved, Purpose, Record};
use crate::region;
use crate::sites::{self, Change, Doors, Site};

/// Size of a page of thunks.
pub const PAGE: u64 = 4096;

/// System calls of a process, redirected to the hook.
#[derive(Debug, Default)]
pub struct HookedCalls {
    /// Addresses and bytes of the pages of thunks, each within a jump's reach of the file whose calls it serves.
    pub pages: Vec<(u64, Vec<u8>)>,
    pub records: Vec<Record>,
    /// Instructions that will be overwritten, or that an interrupted call returns to so that it is made again.
    pub moved: Vec<Moved>,
    /// Sites that are left alone, each with the reason.
    pub left_alone: Vec<String>,
    /// The first of them whose bytes are not those of its file.
    pub changed_by_others: Option<String>,
}

/// A mapped file whose calls matter.
pub struct HookedFile {
    pub sites: Vec<Site>,
    /// Load bias: its addresses in memory less those in the file.
    pub bias: u64,
    /// Address at which it is mapped.
    pub loaded: u64,
}

impl HookedCalls {
    /// Returns the calls of these files of the process with this memory, through pages of thunks beside them. Its region
    /// will be at `region_at`, and has room for `room` records.
    pub fn plan(
        memory: &Memory,
        maps: &[Mapping],
        region_at: u64,
        hook: &Hook,
        room: usize,
        files: &[HookedFile],
    ) -> Result<HookedCalls> {
        let mut calls = HookedCalls::default();
        let mut taken = maps.to_vec();
        reserve(&mut taken, region_at, region::SIZE_WITH_OWN_IMAGE);
        for file in files {
            let Some(at) = region::place_beside(&taken, file.loaded, PAGE) else {
                for site in &file.sites {
                    calls.leave_alone(file.bias.wrapping_add(site.address), "there is no room near its file");
                }
                continue;
            };
            let mut page = vec![0; PAGE as usize];
            let room = room - calls.records.len();
            calls.add(memory, file, (at, &mut page), doors(hook, region_at), room);
            reserve(&mut taken, at, PAGE);
            calls.pages.push((at, page));
        }
        Ok(calls)
    }

    /// Adds the calls of a file, by at most `room` records, through the free thunks of a page with these bytes. Leaves
    /// alone a site whose bytes differ from those in its file.
    pub fn add(&mut self, memory: &Memory, file: &HookedFile, (at, page): (u64, &mut [u8]), doors: Doors, room: usize) {
        let most = self.records.len() + room;
        let mut used = sites::thunks_in_use(page) * THUNK_BYTES;
        for site in &file.sites {
            let place = file.bias.wrapping_add(site.address);
            let thunk = at + used as u64;
            let redirect = match sites::redirect(site, file.bias, thunk, doors) {
                Ok(redirect) => redirect,
                Err(why) => {
                    self.leave_alone(place, &why);
                    continue;
                }
            };
            let crosses = |change: &Change| crosses_a_page(change.address, change.original.len());
            let obstacles = [
                (
                    used + THUNK_BYTES > page.len(),
                    "there are more calls than one page of thunks holds",
                ),
                (
                    self.records.len() + redirect.changes.len() > most,
                    "the region's journal is full",
                ),
                (redirect.changes.iter().any(crosses), "its code lies in two pages"),
            ];
            if let Some((_, why)) = obstacles.into_iter().find(|(is_one, _)| *is_one) {
                self.leave_alone(place, why);
                continue;
            }
            let expected = expected(&site.shape);
            let pieces = expected.iter();
            let pieces: Vec<_> = pieces
                .map(|(offset, bytes)| (place.wrapping_add_signed(*offset), &bytes[..]))
                .collect();
            if !matches!(memory.first_changed(&pieces), Ok(None)) {
                self.leave_alone(
                    place,
                    "its code is not that of its file (a probe or a breakpoint of another tool is there)",
                );
                if self.changed_by_others.is_none() {
                    self.changed_by_others = self.left_alone.last().cloned();
                }
                continue;
            }
            page[used..used + redirect.thunk.len()].copy_from_slice(&redirect.thunk);
            used += THUNK_BYTES;
            self.note(redirect.changes, thunk);
        }
    }

    fn leave_alone(&mut self, place: u64, why: &str) {
        self.left_alone
            .push(format!("the system call at {place:#x} cannot be redirected: {why}"));
    }

    fn note(&mut self, changes: Vec<Change>, thunk: u64) {
        let Some(place) = changes.first().map(|change| change.address) else {
            return;
        };
        let behind = behind_call();
        let (in_thunk, in_place) = behind.unwrap_or_default();
        self.records.extend(changes.into_iter().map(|change| Record {
            address: change.address,
            original: change.original,
            replacement: change.replacement,
            thunk: behind.map_or(0, |_| thunk),
            in_thunk,
            in_place,
            purpose: Purpose::Hook,
        }));
        let call = abi::CALL_BYTES;
        // An interrupted call is made again from the address of its instruction.
        let behind = [in_place, in_place.saturating_sub(call)].into_iter();
        let behind = behind
            .filter(|behind| *behind > 0)
            .map(|behind| (behind, in_thunk - (in_place - behind)));
        self.moved.extend(behind.map(|(from, to)| Moved {
            from: place + u64::from(from),
            to: thunk + u64::from(to),
        }));
    }
}

/// Returns the files of a program at its exec whose calls matter. The thunks beside its interpreter also serve the
/// libraries that are mapped later.
pub fn files_at_exec(code: &Code, hook: &Hook) -> Vec<HookedFile> {
    let mut files = Vec::new();
    let (program, bias) = &code.program;
    // A dynamic linker's thunks also serve the libraries that it maps.
    if !program.sites.is_empty() || code.linker.is_some() {
        files.push(HookedFile {
            sites: program.sites.clone(),
            bias: *bias,
            loaded: code.loaded,
        });
    }
    if let Some((scan, bias)) = &code.interpreter
        && (!scan.sites.is_empty() || hook.entry.is_some())
    {
        let mut sites = scan.sites.clone();
        // An interpreter without a C library makes none of these calls once its program runs: it needs no reason.
        sites.retain(|site| !(site.shape.is_fixed() && code.has_more_to_come()));
        files.push(HookedFile {
            sites,
            bias: *bias,
            loaded: bias.wrapping_add(scan.lowest),
        });
    }
    files
}

/// Returns the addresses of the hook's doors in a process with this region.
pub fn doors(hook: &Hook, region: u64) -> Doors {
    let start = region + region::HOOK;
    Doors {
        c: start + hook.before_syscall,
        go: start + hook.before_syscall_go.unwrap_or(hook.before_syscall),
    }
}

/// Returns whether the death of fastpath could cut a write in two.
fn crosses_a_page(first: u64, bytes: usize) -> bool {
    first / PAGE != (first + bytes as u64 - 1) / PAGE
}

/// Marks a range as used, so that it is not chosen twice.
pub fn reserve(maps: &mut Vec<Mapping>, start: u64, size: u64) {
    let index = maps.partition_point(|m| m.start < start);
    maps.insert(
        index,
        Mapping {
            start,
            end: start + size,
            ..Mapping::default()
        },
    );
}
