//! System calls of a program that are redirected: to the hook ([`crate::target::sites`]), so that the programs that it executes are
//! served as they start, and to the image ([`crate::plan::rescued_calls`]).

use fastpath_code::rescue::thunk::Thunk;

use crate::abi::Hook;
use crate::abi::sites::{THUNK_BYTES, expected};
use crate::plan::hooked_files::HookedFile;
use crate::plan::redirection::{Change, JournalRecord, Moved, Purpose, RegionPlan};
use crate::plan::region;
use crate::target::maps::Mapping;
use crate::target::memory::{CodePages, PAGE};
use crate::target::sites::{self, Doors};

/// A page of thunks beside the code of a file.
#[derive(Debug)]
pub struct ThunkPage {
    /// Address of the page.
    pub at: u64,
    pub bytes: Vec<u8>,
    /// Number of its bytes that are used.
    pub used: usize,
}

impl ThunkPage {
    /// Returns the page at an address with these bytes.
    pub fn new(at: u64, bytes: Vec<u8>) -> ThunkPage {
        let used = sites::thunks_in_use(&bytes) * THUNK_BYTES;
        ThunkPage { at, bytes, used }
    }

    /// Returns the address of the next thunk.
    pub fn next(&self) -> u64 {
        self.at + self.used as u64
    }

    /// Returns whether there is room for a thunk of this size.
    pub fn has_room(&self, bytes: usize) -> bool {
        (self.used + bytes).next_multiple_of(THUNK_BYTES) <= self.bytes.len()
    }

    /// Puts the next thunk. There must be room for it.
    pub fn put(&mut self, thunk: &[u8]) {
        self.bytes[self.used..self.used + thunk.len()].copy_from_slice(thunk);
        self.used = (self.used + thunk.len()).next_multiple_of(THUNK_BYTES);
    }
}

/// System calls of a process that are redirected.
#[derive(Debug, Default)]
pub struct Calls {
    /// Pages of thunks, each within a jump's reach of the file whose calls it serves.
    pub pages: Vec<ThunkPage>,
    pub records: Vec<JournalRecord>,
    /// Number of records that there may be.
    most: usize,
    /// Instructions that will be overwritten, or that an interrupted call returns to so that it is made again.
    pub moved: Vec<Moved>,
    /// Sites for the hook that are left alone, each with the reason.
    pub left_alone: Vec<String>,
    /// The first of them whose bytes are not those of its file, or cannot be read.
    pub changed_by_others: Option<String>,
    /// Mappings of the process, and what it will map: the lowest first.
    taken: Vec<Mapping>,
}

/// Returns a range of addresses that is used, as the search for gaps takes it.
fn taken(start: u64, end: u64) -> Mapping {
    Mapping {
        start,
        end,
        ..Mapping::default()
    }
}

impl Calls {
    /// Returns no calls yet, of which the journal of a region may have so many.
    pub fn at_most(most: usize) -> Calls {
        Calls {
            most,
            ..Calls::default()
        }
    }

    /// Returns the calls of these files of the process with this code and these mappings, through pages of thunks beside
    /// them.
    pub fn plan(
        code: &CodePages<'_>,
        maps: &[Mapping],
        region: &RegionPlan,
        hook: &Hook,
        files: &[HookedFile],
    ) -> Calls {
        let mut calls = Calls::at_most(region.journal.room());
        calls.taken = maps.iter().map(|mapping| taken(mapping.start, mapping.end)).collect();
        calls.reserve(region.at, region::SIZE_WITH_OWN_IMAGE);
        for file in files {
            let Some(mut page) = calls.page_beside(file.loaded) else {
                for site in &file.sites {
                    calls.leave_alone(file.bias.wrapping_add(site.address), "there is no room near its file");
                }
                continue;
            };
            calls.add(code, file, &mut page, doors(hook, region.at));
            calls.keep(page);
        }
        calls
    }

    /// Returns a page of thunks within a jump's reach of code, where nothing is mapped; [`Calls::keep`] reserves it.
    pub fn page_beside(&self, code: u64) -> Option<ThunkPage> {
        let at = region::place_beside(&self.taken, code, region::LARGEST_PAGE)?;
        Some(ThunkPage::new(at, vec![0; PAGE as usize]))
    }

    /// Adds a page of thunks.
    pub fn keep(&mut self, page: ThunkPage) {
        self.reserve(page.at, region::LARGEST_PAGE);
        self.pages.push(page);
    }

    /// Marks a range as used, so that it is not chosen twice.
    fn reserve(&mut self, start: u64, size: u64) {
        let index = self.taken.partition_point(|m| m.start < start);
        self.taken.insert(index, taken(start, start + size));
    }

    /// Returns whether there is room for so many records.
    pub fn has_room(&self, records: usize) -> bool {
        self.records.len() + records <= self.most
    }

    /// Adds the calls of a file that the hook must see, through the free thunks of a page. Leaves alone a site whose bytes
    /// differ from those in its file.
    pub fn add(&mut self, code: &CodePages<'_>, file: &HookedFile, page: &mut ThunkPage, doors: Doors) {
        for site in &file.sites {
            let place = file.bias.wrapping_add(site.address);
            let thunk = match sites::redirect(site, file.bias, page.next(), doors) {
                Ok(thunk) => thunk,
                Err(why) => {
                    self.leave_alone(place, &why);
                    continue;
                }
            };
            let crosses = |change: &Change| crosses_a_page(change.address, change.original.len());
            let obstacles = [
                (
                    !page.has_room(THUNK_BYTES),
                    "there are more calls than one page of thunks holds",
                ),
                (!self.has_room(thunk.changes.len()), "the region's journal is full"),
                (thunk.changes.iter().any(crosses), "its code lies in two pages"),
            ];
            if let Some((_, why)) = obstacles.into_iter().find(|(is_one, _)| *is_one) {
                self.leave_alone(place, why);
                continue;
            }
            let expected = expected(&site.shape);
            let differs = |(offset, bytes): &(i64, Vec<u8>)| match code.has(place.wrapping_add_signed(*offset), bytes) {
                Ok(true) => None,
                Ok(false) => Some(
                    "its code is not that of its file (a probe or a breakpoint of another tool is there)".to_owned(),
                ),
                Err(e) => Some(format!("its code cannot be read: {e}")),
            };
            if let Some(why) = expected.iter().find_map(differs) {
                self.leave_alone(place, &why);
                if self.changed_by_others.is_none() {
                    self.changed_by_others = self.left_alone.last().cloned();
                }
                continue;
            }
            let at = thunk.changes.first().map_or(place, |change| change.address);
            self.put(thunk, at, page, |_| Purpose::Hook);
        }
    }

    fn leave_alone(&mut self, place: u64, why: &str) {
        self.left_alone
            .push(format!("the system call at {place:#x} cannot be redirected: {why}"));
    }

    /// Puts a thunk of the code at `place` on a page that has room for it, and adds its changes.
    pub fn put(&mut self, thunk: Thunk, place: u64, page: &mut ThunkPage, purpose: impl Fn(&Change) -> Purpose) {
        let at = page.next();
        let (in_thunk, in_place) = thunk.in_call.unwrap_or_default();
        self.records
            .extend(thunk.changes.into_iter().map(|change| JournalRecord {
                thunk: thunk.in_call.map_or(0, |_| at),
                in_thunk,
                in_place,
                purpose: purpose(&change),
                change,
            }));
        self.moved.extend(thunk.moved.iter().map(|(from, to)| Moved {
            from: place + u64::from(*from),
            to: at + u64::from(*to),
        }));
        page.put(&thunk.code);
    }
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
