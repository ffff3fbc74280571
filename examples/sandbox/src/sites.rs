//! The guest's own system call instructions: those that the image may answer are led to it, in each file when it is
//! mapped, before any thread executes its code.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;

use fastpath_code::rescue::thunk::to_entry;
use fastpath_code::rescue::{AnySite, analyse_all};
use fastpath_image::Isa;
use fastpath_os::maps::{self, Mapping};
use nix::unistd::Pid;
use syscalls::Sysno;

use crate::memory::Memory;
use crate::remote::RemoteCalls;

/// Room for a thunk, and what they are aligned to.
const THUNK_BYTES: u64 = 64;
const PAGE: u64 = 4096;
/// Largest file that is analysed.
const MOST_BYTES: u64 = 64 << 20;

/// A file's sites that are led to the image.
struct Sites {
    sites: Vec<AnySite>,
    lowest: u64,
}

/// The files that guests have mapped.
#[derive(Default)]
pub struct Files {
    /// By device, inode, size and time of the last change.
    known: HashMap<[u64; 4], Rc<Sites>>,
}

impl Files {
    /// Leads the sites of a mapped file to the entry point of the image. Returns how many.
    ///
    /// `remote` makes a call in the guest.
    pub fn lead(
        &mut self,
        guest: Pid,
        memory: &Memory,
        address: u64,
        entry: u64,
        remote: &mut RemoteCalls<'_>,
    ) -> io::Result<u64> {
        let all = maps::read(guest)?;
        let Some(mapping) = all.iter().find(|mapping| mapping.range().contains(&address)) else {
            return Ok(0);
        };
        let is_file = mapping.executable && mapping.inode != 0 && !mapping.name.starts_with("/memfd:");
        let Some(sites) = is_file.then(|| self.sites(guest, mapping)).flatten() else {
            return Ok(0);
        };
        let same = |other: &&Mapping| other.inode == mapping.inode && other.device == mapping.device;
        let Some(start) = all.iter().filter(same).map(|other| other.start).min() else {
            return Ok(0);
        };
        let bias = start.wrapping_sub(sites.lowest);
        let in_mapping = |site: &&AnySite| mapping.range().contains(&bias.wrapping_add(site.address));
        let sites: Vec<&AnySite> = sites.sites.iter().filter(in_mapping).collect();
        let size = (sites.len() as u64 * THUNK_BYTES).next_multiple_of(PAGE);
        let Some(room) = room_below(&all, start, size).filter(|_| !sites.is_empty()) else {
            return Ok(0);
        };
        let thunks = map_thunks(remote, room, size)?;
        let mut led = 0;
        for (site, at) in sites.into_iter().zip((thunks..).step_by(THUNK_BYTES as usize)) {
            led += u64::from(lead_site(memory, site, bias, at, entry)?);
        }
        Ok(led)
    }

    /// Returns the sites of the file that is mapped, if it can be read.
    fn sites(&mut self, guest: Pid, mapping: &Mapping) -> Option<Rc<Sites>> {
        let path = format!("/proc/{guest}/root{}", mapping.name);
        let status = std::fs::metadata(&path).ok()?;
        if status.ino() != mapping.inode || status.size() > MOST_BYTES || !status.is_file() {
            return None;
        }
        let key = [status.dev(), status.ino(), status.size(), status.mtime() as u64];
        if let Some(known) = self.known.get(&key) {
            return Some(Rc::clone(known));
        }
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut File::open(&path).ok()?, &mut bytes).ok()?;
        let mut all = analyse_all(&bytes);
        all.sites.retain(|site| site.window.is_ok() && may_be_answered(site));
        let sites = Rc::new(Sites {
            sites: all.sites,
            lowest: all.lowest,
        });
        self.known.insert(key, Rc::clone(&sites));
        Some(sites)
    }
}

/// Returns whether the image answers a call that a site makes. Where the number is not known, only the functions for any
/// call are led there: code for one group of calls may compare the program counter with its own addresses, as musl's
/// cancellation points do.
fn may_be_answered(site: &AnySite) -> bool {
    let facts = Isa::HOST.facts();
    let clocks = ["clock_gettime", "clock_getres", "gettimeofday"];
    let others = ["getpid", "gettid", "read"];
    let calls = facts
        .calls
        .list()
        .filter(|(name, _)| clocks.contains(name) || others.contains(name));
    let further = facts.answered.iter().flat_map(|calls| calls.list());
    match site.number {
        None => site.is_argument,
        Some(number) => calls.chain(further).any(|(_, answered)| answered == number),
    }
}

/// Returns an address below the file that is free. Above it the heap grows.
fn room_below(all: &[Mapping], start: u64, size: u64) -> Option<u64> {
    /// Nothing is mapped below (vm.mmap_min_addr).
    const LOWEST: u64 = 64 << 10;
    let mut end = start;
    for mapping in all.iter().rev().filter(|mapping| mapping.start < start) {
        if end.saturating_sub(mapping.end) >= size {
            return Some(end - size);
        }
        end = mapping.start;
    }
    end.checked_sub(size).filter(|address| *address >= LOWEST)
}

fn map_thunks(remote: &mut RemoteCalls<'_>, address: u64, size: u64) -> io::Result<u64> {
    const EXECUTE: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    const OWN: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
    remote.call(Sysno::mmap, [address, size, EXECUTE, OWN, u64::MAX, 0])
}

fn lead_site(memory: &Memory, site: &AnySite, bias: u64, at: u64, entry: u64) -> io::Result<bool> {
    let Ok(window) = &site.window else {
        return Ok(false);
    };
    let Some(thunk) = to_entry(window, bias, at, entry).filter(|thunk| thunk.code.len() as u64 <= THUNK_BYTES) else {
        return Ok(false);
    };
    let mut found = vec![0; window.bytes.len()];
    memory.read(bias.wrapping_add(window.address), &mut found)?;
    // The file may have been changed since it was mapped.
    if found != window.bytes {
        return Ok(false);
    }
    memory.write(at, &thunk.code)?;
    for change in &thunk.changes {
        memory.write(change.address, &change.replacement)?;
    }
    Ok(true)
}
