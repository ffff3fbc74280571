//! Maps a planned region in a stopped program, by remote calls.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{REGION_NAME, RegionPlan, is_region};
use crate::error::{Error, Result, tried};
use crate::mailbox_layout::HookState;
use crate::maps::{self, Mapping};
use crate::region;
use crate::remote::{self, RemoteCalls};

const PAGE: u64 = 4096;

/// A region to be mapped.
pub struct Region<'a> {
    /// Address of its start.
    pub at: u64,
    pub plan: &'a RegionPlan,
    /// Addresses and bytes of pages of thunks beside the program's code.
    pub thunk_pages: &'a [(u64, Vec<u8>)],
    /// Page, to be mapped read-only.
    pub page: &'a OwnedFd,
    pub mailbox: &'a OwnedFd,
    /// Initial state of the hook.
    pub state: HookState,
}

impl Region<'_> {
    /// Maps the whole region. Nothing in the program points to it yet.
    pub fn map(&self, calls: &mut RemoteCalls<'_>) -> Result<()> {
        let fds = remote::pass(calls, [self.page, self.mailbox, &self.file()?])?;
        let mapped = self.map_parts(calls, fds);
        for fd in fds {
            calls.close(fd)?;
        }
        mapped
    }

    /// Returns a file with the region's bytes, followed by the pages of thunks. Pages of zeros take no memory.
    fn file(&self) -> Result<OwnedFd> {
        /// MFD_EXEC, include/uapi/linux/memfd.h (Linux 6.3); older kernels refuse unknown flags.
        const EXECUTABLE: MFdFlags = MFdFlags::from_bits_retain(0x10);
        let state = self.state.bytes();
        let mut bytes = self.plan.code.clone();
        bytes[region::STATE as usize..][..state.len()].copy_from_slice(&state);
        bytes.extend(self.thunk_pages.iter().flat_map(|(_, bytes)| bytes));
        let make = |flags| memfd_create(REGION_NAME, MFdFlags::MFD_CLOEXEC | flags);
        let made = make(EXECUTABLE).or_else(|_| make(MFdFlags::empty()));
        let file = File::from(made.map_err(tried("memfd_create"))?);
        let in_file = |e| Error::io("memfd", e);
        file.set_len(bytes.len() as u64).map_err(in_file)?;
        for (page, at) in bytes.chunks(PAGE as usize).zip((0..).step_by(PAGE as usize)) {
            if page.iter().any(|byte| *byte != 0) {
                file.write_all_at(page, at).map_err(in_file)?;
            }
        }
        Ok(file.into())
    }

    fn map_parts(&self, calls: &mut RemoteCalls<'_>, [page, mailbox, code]: [u64; 3]) -> Result<()> {
        const READ: i32 = libc::PROT_READ;
        const WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
        const EXECUTE: i32 = libc::PROT_READ | libc::PROT_EXEC;
        const SHARED: i32 = libc::MAP_SHARED | libc::MAP_FIXED;
        const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_FIXED;
        const NEW: i32 = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE;
        let at = self.at;
        // The whole region first; the parts are mapped over it.
        let mapped = calls.mmap(at, region::SIZE, EXECUTE, NEW, code, 0)?;
        let parts = [
            (at + region::STATE, WRITE, PRIVATE, code, region::STATE),
            (at + region::PAGE, READ, SHARED, page, 0),
            (at + region::MAILBOX, WRITE, SHARED, mailbox, 0),
        ];
        let offsets = (region::SIZE..).step_by(PAGE as usize);
        let thunks = offsets.zip(self.thunk_pages);
        let thunks = thunks.map(|(offset, (at, _))| (*at, EXECUTE, NEW, code, offset));
        let mut map = |(at, protection, flags, fd, offset)| {
            // A kernel before 4.17 takes the address for a hint.
            match calls.mmap(at, PAGE, protection, flags, fd, offset)? {
                mapped if mapped == at => Ok(()),
                _ => Err(no_room("its code")),
            }
        };
        let done = match mapped == at {
            true => parts.into_iter().chain(thunks).try_for_each(&mut map),
            false => Err(no_room("its vDSO")),
        };
        if done.is_err() {
            unmap(calls, mapped)?;
        }
        done
    }
}

fn no_room(near: &str) -> Error {
    Error::Unsupported(format!("there is no room near {near}"))
}

/// Unmaps the region at `at`. Its thunks beside libraries go first, because they are found by the region.
pub fn unmap(calls: &mut RemoteCalls<'_>, at: u64) -> Result<()> {
    let mut parts = parts(at, &maps::of(calls.tracee().pid())?);
    parts.reverse();
    parts
        .into_iter()
        .try_for_each(|part| calls.munmap(part.start, part.end - part.start))
}

/// Returns the parts of the region at `at` in a process with these mappings.
pub fn parts(at: u64, maps: &[Mapping]) -> Vec<std::ops::Range<u64>> {
    let whole = at..at + region::SIZE;
    std::iter::once(whole).chain(thunk_pages(maps)).collect()
}

/// Returns the pages of thunks in a process with these mappings.
pub fn thunk_pages(maps: &[Mapping]) -> impl Iterator<Item = std::ops::Range<u64>> {
    let thunks = maps.iter().filter(|m| is_region(m) && m.offset >= region::SIZE);
    thunks.map(|m| m.start..m.end)
}
