//! The system calls of a running program that are redirected to the hook (`sites.rs`), so that the programs that it
//! executes are served as they start.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use crate::abi;
use crate::abi::sites::{behind_call, copied};
use crate::error::Result;
use crate::maps::{self, Mapping};
use crate::memory::Memory;
use crate::program;
use crate::redirection::{Moved, Purpose, Record};
use crate::region;
use crate::sites::{self, Cache, Redirect, Role, Site};
use crate::surgery::doors;

/// Size of a page of thunks.
const PAGE: u64 = 4096;

/// System calls of a process, redirected to the hook.
#[derive(Debug, Default)]
pub struct HookedCalls {
    /// Addresses and bytes of the pages of thunks, each within a jump's reach of the file whose calls it serves.
    pub pages: Vec<(u64, Vec<u8>)>,
    pub records: Vec<Record>,
    /// Instructions that will be overwritten, or that an interrupted call returns to so that it is made again.
    pub moved: Vec<Moved>,
}

impl HookedCalls {
    /// Returns the calls of the process `pid`, whose region will be at `region_at`. A file that cannot be read has
    /// none.
    /// Marks the pages as used in `taken`.
    pub fn of(
        pid: i32,
        maps: &[Mapping],
        region_at: u64,
        scans: &Cache,
        taken: &mut Vec<Mapping>,
    ) -> Result<HookedCalls> {
        let mut calls = HookedCalls::default();
        let (_, hook) = abi::of_this_build(abi::of_isa_of_this_host()?)?;
        let doors = doors(hook, region_at);
        let memory = Memory::of(pid);
        for (sites, bias, near) in searched(pid, maps, scans) {
            let Some(at) = page_near(taken, near) else {
                continue;
            };
            let mut page = vec![0; PAGE as usize];
            let redirects = sites::redirects(&sites, bias, at, 0, doors);
            for (redirect, site) in redirects
                .iter()
                .filter_map(|redirect| Some((redirect, site_of(redirect, &sites, bias)?)))
            {
                if !is_as_expected(memory.as_ref().ok(), redirect) || crosses_a_page(redirect) {
                    continue;
                }
                let offset = (redirect.thunk.address - at) as usize;
                page[offset..offset + redirect.thunk.bytes.len()].copy_from_slice(&redirect.thunk.bytes);
                calls.note(redirect, site);
            }
            calls.pages.push((at, page));
        }
        Ok(calls)
    }

    fn note(&mut self, redirect: &Redirect, site: &Site) {
        let (place, thunk) = (redirect.jump.address, redirect.thunk.address);
        let behind = behind_call(site.shape);
        let (in_thunk, in_place) = behind.unwrap_or_default();
        self.records.push(Record {
            address: place,
            original: redirect.expected.clone(),
            replacement: redirect.jump.bytes.clone(),
            thunk: behind.map_or(0, |_| thunk),
            in_thunk,
            in_place,
            purpose: Purpose::Hook,
        });
        let call = abi::CALL_BYTES;
        // An interrupted call is made again from the address of its instruction.
        let behind = [in_place, in_place.saturating_sub(call)].into_iter();
        let behind = behind
            .filter(|behind| *behind > 0)
            .map(|behind| (behind, in_thunk - (in_place - behind)));
        self.moved
            .extend(behind.chain(copied(site.shape)).map(|(from, to)| Moved {
                from: place + u64::from(from),
                to: thunk + u64::from(to),
            }));
    }
}

/// Returns the sites of the files whose calls matter, their load biases, and an address in each file.
fn searched(pid: i32, maps: &[Mapping], scans: &Cache) -> Vec<(Vec<Site>, u64, u64)> {
    let mut found: Vec<(Vec<Site>, u64, u64)> = Vec::new();
    let exe = File::open(format!("/proc/{pid}/exe"));
    let exe_inode = exe
        .as_ref()
        .ok()
        .and_then(|file| file.metadata().ok())
        .map(|meta| meta.ino());
    for mapping in maps.iter().filter(|m| m.executable && m.inode != 0) {
        let is_library = program::is_c_library(&mapping.name) || mapping.name.contains("/ld-musl-");
        let scanned = if is_library {
            program::library(pid, scans, maps, mapping)
        } else if Some(mapping.inode) == exe_inode {
            let scan = exe.as_ref().ok().and_then(|file| scans.scan(file, Role::Program).ok());
            scan.zip(program::file_start(maps, mapping.start))
                .map(|(scan, start)| (scan.clone(), start.wrapping_sub(scan.lowest)))
        } else {
            None
        };
        let Some((scan, bias)) = scanned.filter(|(scan, _)| !scan.sites.is_empty()) else {
            continue;
        };
        // One file may have several mappings with code.
        if found.iter().all(|(_, known, _)| *known != bias) {
            let near = program::file_start(maps, mapping.start).unwrap_or(mapping.start);
            found.push((scan.sites.clone(), bias, near));
        }
    }
    found
}

fn site_of<'s>(redirect: &Redirect, sites: &'s [Site], bias: u64) -> Option<&'s Site> {
    sites
        .iter()
        .find(|site| bias.wrapping_add(site.address) == redirect.jump.address)
}

fn is_as_expected(memory: Option<&Memory>, redirect: &Redirect) -> bool {
    memory
        .and_then(|memory| memory.bytes(redirect.jump.address, redirect.expected.len()).ok())
        .is_some_and(|bytes| bytes == redirect.expected)
}

/// Returns whether the death of fastpath could cut the write of the jump in two.
fn crosses_a_page(redirect: &Redirect) -> bool {
    let first = redirect.jump.address;
    first / PAGE != (first + redirect.jump.bytes.len() as u64 - 1) / PAGE
}

/// Returns where a page of thunks can be mapped near a file, and marks it as used in `taken`.
pub fn page_near(taken: &mut Vec<Mapping>, file_at: u64) -> Option<u64> {
    let below = maps::gap_below(taken, file_at, PAGE, region::GUARD);
    let at = below.or_else(|| maps::gap_above(taken, file_at, PAGE, region::GUARD_ABOVE))?;
    reserve(taken, at, PAGE);
    Some(at)
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
