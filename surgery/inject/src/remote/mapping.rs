//! Maps a planned region in a stopped program, by remote calls.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{Indirect, RemoteCall, RemoteCalls, descriptors};
use crate::abi::Call;
use crate::error::{Error, Result, tried};
use crate::plan::Plan;
use crate::plan::mailbox_layout::HookState;
use crate::plan::redirection::{REGION_NAME, is_region};
use crate::plan::region;
use crate::target::maps::{self, Mapping};
use crate::target::memory::PAGE;

/// Offsets in the region's memory of what is mapped apart: an image that is a program's vDSO, and the pages of thunks.
const VDSO_IN_FILE: u64 = region::SIZE;
const THUNK_PAGES_IN_FILE: u64 = VDSO_IN_FILE + region::IMAGE_ROOM;

/// A region to be mapped.
pub struct Region<'a> {
    pub plan: &'a Plan,
    /// Page, to be mapped read-only.
    pub page: &'a OwnedFd,
    pub mailbox: &'a OwnedFd,
    /// Initial state of the hook.
    pub state: HookState,
}

impl Region<'_> {
    /// Maps the whole region, by few stops of the program. Nothing in the program points to it yet.
    pub fn map(&self, calls: &mut RemoteCalls<'_>) -> Result<()> {
        let passed = descriptors::send(calls, [self.page, self.mailbox, &self.file()?])?;
        let abi = calls.abi();
        let mappings = self
            .mappings(passed.stored_at)
            .into_iter()
            .map(|[at, size, protection, flags, fd, offset]| RemoteCall {
                what: "mmap",
                call: Call::Mmap,
                arguments: [at, size, protection, flags, fd, abi.mmap_offset(offset)],
                indirect: Indirect::Fifth,
                expected: at,
            });
        let closes = passed.pair.map(RemoteCall::close);
        let first = 1 + closes.len();
        let mut all: Vec<RemoteCall> = std::iter::once(passed.receive).chain(closes).chain(mappings).collect();
        let mapped = first..all.len();
        all.extend(passed.stored_at.iter().map(|at| RemoteCall::close_at(*at)));
        let Err(other) = calls.call_all_with(&passed.message, &all) else {
            return Ok(());
        };
        // Unmaps what was mapped, also elsewhere: a kernel before 4.17 takes the address for a hint.
        let elsewhere = other.result.filter(|_| mapped.contains(&other.call));
        if let Some(elsewhere) = elsewhere {
            calls.munmap(elsewhere, all[other.call].arguments[1])?;
        }
        if other.call > first {
            unmap(calls, self.plan.region.at)?;
        }
        let is_incomplete = passed.is_incomplete(calls)?;
        // Not those that are closed: their numbers may be the program's own by now. Nor those that were not received: nothing
        // says then that their numbers were stored.
        let are_received = other.call > 0 || other.result.is_some();
        let open = all.chunks(1).skip(other.call + 1);
        let open =
            open.filter(|call| call[0].call == Call::Close && (are_received || call[0].indirect == Indirect::None));
        open.for_each(|close| drop(calls.call_all(close)));
        Err(match other.error {
            _ if elsewhere.is_some() => Error::PlaceTaken,
            Error::Remote {
                errno: Errno::EEXIST, ..
            } => Error::PlaceTaken,
            // Fewer arrive if the program may open no more.
            Error::Remote { what: "mmap", .. } if is_incomplete => Error::Remote {
                what: "recvmsg",
                errno: Errno::EMFILE,
            },
            error => error,
        })
    }

    /// Returns a file with the region's bytes, followed by those that are mapped apart from it. Pages of zeros take no memory.
    fn file(&self) -> Result<OwnedFd> {
        /// MFD_EXEC, include/uapi/linux/memfd.h (Linux 6.3); older kernels refuse unknown flags.
        const EXECUTABLE: MFdFlags = MFdFlags::from_bits_retain(0x10);
        let make = |flags| memfd_create(REGION_NAME, MFdFlags::MFD_CLOEXEC | flags);
        let made = make(EXECUTABLE).or_else(|_| make(MFdFlags::empty()));
        let file = File::from(made.map_err(tried("memfd_create"))?);
        let in_file = |e| Error::io("memfd", e);
        let size = THUNK_PAGES_IN_FILE + region::LARGEST_PAGE * self.plan.calls.pages.len() as u64;
        let mut bytes = vec![0; size as usize];
        let mut put = |at: u64, part: &[u8]| bytes[at as usize..][..part.len()].copy_from_slice(part);
        put(0, &self.plan.region.code);
        put(region::STATE, self.state.bytes());
        put(VDSO_IN_FILE, &self.plan.region.vdso);
        for (at, page) in thunk_offsets().zip(&self.plan.calls.pages) {
            put(at, &page.bytes);
        }
        let (pages, _) = bytes.as_chunks::<{ PAGE as usize }>();
        if pages.last().is_some_and(is_zeros) {
            // Otherwise the last write does.
            file.set_len(size).map_err(in_file)?;
        }
        let mut at = 0;
        for pages in pages.chunk_by(|one, other| is_zeros(one) == is_zeros(other)) {
            if !is_zeros(&pages[0]) {
                file.write_all_at(pages.as_flattened(), at).map_err(in_file)?;
            }
            at += PAGE * pages.len() as u64;
        }
        Ok(file.into())
    }

    /// Returns the mappings of the page, the mailbox and the code, in this order: the whole region first, the others over
    /// it and beside the program's code.
    fn mappings(&self, [page, mailbox, code]: [u64; 3]) -> Vec<[u64; 6]> {
        const READ: i32 = libc::PROT_READ;
        const WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
        const EXECUTE: i32 = libc::PROT_READ | libc::PROT_EXEC;
        const SHARED: i32 = libc::MAP_SHARED | libc::MAP_FIXED;
        const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_FIXED;
        const NEW: i32 = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE;
        let at = self.plan.region.at;
        let parts = [
            (at, region::SIZE, EXECUTE, NEW, code, 0),
            (at + region::STATE, PAGE, WRITE, PRIVATE, code, region::STATE),
            (at + region::PAGE, PAGE, READ, SHARED, page, 0),
            (at + region::MAILBOX, PAGE, WRITE, SHARED, mailbox, 0),
        ];
        let images = [
            (
                at + region::IMAGE,
                region::IMAGE_ROOM,
                EXECUTE,
                PRIVATE,
                code,
                VDSO_IN_FILE,
            ),
            (
                at + region::OWN_IMAGE,
                region::IMAGE_ROOM,
                EXECUTE,
                NEW,
                code,
                region::IMAGE,
            ),
        ];
        let images = images.into_iter().filter(|_| !self.plan.region.vdso.is_empty());
        let thunks = thunk_offsets().zip(&self.plan.calls.pages);
        let thunks = thunks.map(|(offset, page)| (page.at, PAGE, EXECUTE, NEW, code, offset));
        let all = parts.into_iter().chain(images).chain(thunks);
        all.map(|(at, size, protection, flags, fd, offset)| [at, size, protection as u64, flags as u64, fd, offset])
            .collect()
    }
}

/// Returns the offsets of the pages of thunks in the region's memory.
fn thunk_offsets() -> impl Iterator<Item = u64> {
    (THUNK_PAGES_IN_FILE..).step_by(region::LARGEST_PAGE as usize)
}

fn is_zeros(page: &[u8; PAGE as usize]) -> bool {
    *page == [0; PAGE as usize]
}

/// Unmaps the region at `at`. What is mapped apart from it goes first, because it is found by the region.
pub fn unmap(calls: &mut RemoteCalls<'_>, at: u64) -> Result<()> {
    let mut parts = parts(at, &maps::read(calls.tracee().pid())?);
    parts.reverse();
    parts
        .into_iter()
        .try_for_each(|part| calls.munmap(part.start, part.end - part.start))
}

/// Returns the parts of the region at `at` in a process with these mappings.
pub fn parts(at: u64, maps: &[Mapping]) -> Vec<std::ops::Range<u64>> {
    let whole = at..at + region::SIZE;
    let parts = std::iter::once(whole).chain(own_image(at, maps));
    parts.chain(from(maps, region::SIZE)).collect()
}

/// Returns the second image of the region at `at`, if it has one.
fn own_image(at: u64, maps: &[Mapping]) -> Option<std::ops::Range<u64>> {
    let is_there = maps.iter().any(|m| is_region(m) && m.start == at + region::OWN_IMAGE);
    is_there.then_some(at + region::OWN_IMAGE..at + region::SIZE_WITH_OWN_IMAGE)
}

/// Returns the parts with code of the region at `at`. Addresses of its data are left on stacks by code that has returned.
pub fn code(at: u64, maps: &[Mapping]) -> Vec<std::ops::Range<u64>> {
    let own = [region::IMAGE..region::STATE, region::JOURNAL..region::SIZE];
    let own = own.map(|part| at + part.start..at + part.end);
    own.into_iter()
        .chain(own_image(at, maps))
        .chain(from(maps, region::SIZE))
        .collect()
}

/// Returns the pages of thunks in a process with these mappings.
pub fn thunk_pages(maps: &[Mapping]) -> impl Iterator<Item = std::ops::Range<u64>> {
    from(maps, THUNK_PAGES_IN_FILE)
}

/// Returns the mappings of a region's memory from `offset` on.
fn from(maps: &[Mapping], offset: u64) -> impl Iterator<Item = std::ops::Range<u64>> {
    let parts = maps.iter().filter(move |m| is_region(m) && m.offset >= offset);
    parts.map(|m| m.start..m.end)
}
