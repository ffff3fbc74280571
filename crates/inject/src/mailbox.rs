//! The attendant's side of the mailbox.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::error::{Error, Result, tried};
pub use crate::mailbox_layout::{HookState, Mailbox};
use crate::maps::{self, Mapping};

/// States of a slot; `hook/mailbox.h`.
pub mod state {
    pub const REQUEST: u32 = 2;
    pub const TAKEN: u32 = 3;
    pub const GO: u32 = 4;
}

/// A mailbox's name, for memfd_create(2) ...
pub const NAME: &std::ffi::CStr = c"fastpath-mailbox";
/// ... and what /proc/PID/maps shows of it, before ` (deleted)`.
pub const MAPPED_NAME: &str = "/memfd:fastpath-mailbox";

/// What a thread asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// To be met when its exec has happened.
    Exec {
        /// Address of the path in the thread's process.
        path: u64,
        /// Where a relative path starts.
        dirfd: i32,
        /// AT_EMPTY_PATH and the like.
        flags: u32,
    },
    /// To have its libraries seen to.
    Entry,
}

impl HookState {
    /// As it lies in memory.
    pub fn bytes(&self) -> Vec<u8> {
        let words = [
            self.entry,
            self.entry_cell,
            u64::from(self.filtered) | u64::from(self.stack_lock) << 32,
        ];
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }
}

const _: () = assert!(size_of::<Mailbox>() <= 4096);

/// The mapped mailbox. It stays mapped until the process ends.
pub struct Shared {
    map: NonNull<Mailbox>,
    file: OwnedFd,
    /// Opened for reading only, to ask for leases with.
    reader: OwnedFd,
    inode: u64,
}

// SAFETY: the mailbox is only touched through its atomics.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Makes an empty one.
    pub fn create() -> Result<Shared> {
        let fd =
            memfd_create(NAME, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).map_err(tried("memfd_create"))?;
        nix::unistd::ftruncate(&fd, 4096).map_err(tried("ftruncate"))?;
        // No reader may be made to fault by a page that somebody cuts off.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: fcntl with an int argument.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
            return Err(tried("F_ADD_SEALS")(Errno::last()));
        }
        let file = File::from(fd);
        let inode = file.metadata().map_err(|e| Error::io("memfd", e))?.ino();
        // SAFETY: a fresh shared mapping of a sealed file of this size; never unmapped.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(tried("mmap")(Errno::last()));
        }
        let map = NonNull::new(map.cast()).ok_or_else(|| tried("mmap")(Errno::EINVAL))?;
        let reader = open(&file, OFlag::O_RDONLY)?;
        Ok(Shared {
            map,
            file: file.into(),
            reader,
            inode,
        })
    }

    fn mailbox(&self) -> &Mailbox {
        // SAFETY: mapped for the life of the process, and made of atomics only.
        unsafe { self.map.as_ref() }
    }

    /// The file itself: mappings made from it are not counted.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Opens the file anew. Unlike the descriptor that memfd_create gave, this one is counted as a writer by the kernel until
    /// the last mapping made from it is gone.
    pub fn reopen(&self) -> Result<OwnedFd> {
        open(&self.file, OFlag::O_RDWR)
    }

    /// Whether any process still maps it: a read lease is refused as long as a writer exists (fcntl(2), F_SETLEASE).
    pub fn in_use(&self) -> bool {
        let lease = |kind: libc::c_int| {
            // SAFETY: fcntl with an int argument.
            let answer = unsafe { libc::fcntl(self.reader.as_raw_fd(), libc::F_SETLEASE, kind) };
            if answer < 0 { Err(Errno::last()) } else { Ok(()) }
        };
        match lease(libc::F_RDLCK) {
            Err(Errno::EAGAIN) => true,
            Ok(()) => {
                // A lease that is kept would hold up the next program.
                let _ = lease(libc::F_UNLCK);
                false
            }
            // Leases are not to be had here (LSM, a kernel without them on tmpfs): look for oneself.
            Err(_) => self.is_mapped_by_anybody(),
        }
    }

    fn is_mapped_by_anybody(&self) -> bool {
        let own = std::process::id() as i32;
        let Ok(mut processes) = fastpath_maps::processes() else {
            return true;
        };
        processes.any(|pid| pid != own && maps::of(pid).is_ok_and(|maps| self.mapping(&maps).is_some()))
    }

    /// Where a process with these mappings has it.
    pub fn mapping<'m>(&self, maps: &'m [Mapping]) -> Option<&'m Mapping> {
        maps.iter()
            .find(|m| m.inode == self.inode && m.name.starts_with(MAPPED_NAME))
    }

    /// Says that Yama wants `pid` declared as tracer by those who ask.
    pub fn declare_ptracer(&self, pid: u32) {
        self.mailbox().ptracer.store(pid, Ordering::Release);
    }

    /// Sleeps until a request may be there.
    pub fn wait(&self, seen: u32) {
        futex(&self.mailbox().doorbell, libc::FUTEX_WAIT, seen);
    }

    /// The doorbell's count.
    pub fn doorbell(&self) -> u32 {
        self.mailbox().doorbell.load(Ordering::Acquire)
    }

    /// Takes all requests that are there: slot, thread, request.
    pub fn take(&self) -> Vec<(usize, i32, Request)> {
        let mut taken = Vec::new();
        for (i, slot) in self.mailbox().slot.iter().enumerate() {
            let (old, new) = (state::REQUEST, state::TAKEN);
            if slot
                .state
                .compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            let tid = slot.tid.load(Ordering::Relaxed) as i32;
            let request = match slot.kind.load(Ordering::Relaxed) {
                1 => Request::Exec {
                    path: slot.path.load(Ordering::Relaxed),
                    dirfd: slot.dirfd.load(Ordering::Relaxed) as i32,
                    flags: slot.flags.load(Ordering::Relaxed),
                },
                _ => Request::Entry,
            };
            taken.push((i, tid, request));
        }
        taken
    }

    /// Lets the thread that asked go on.
    pub fn go(&self, slot: usize) {
        let state = &self.mailbox().slot[slot].state;
        state.store(state::GO, Ordering::Release);
        futex(state, libc::FUTEX_WAKE, i32::MAX as u32);
    }
}

fn open(file: &impl AsRawFd, flags: OFlag) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    nix::fcntl::open(path.as_str(), flags | OFlag::O_CLOEXEC, nix::sys::stat::Mode::empty())
        .map_err(|e| Error::io(path, e.into()))
}

fn futex(word: &AtomicU32, operation: i32, value: u32) {
    // SAFETY: the word outlives the call; no timeout.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation,
            value,
            std::ptr::null::<libc::timespec>(),
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mailbox_is_in_use_as_long_as_somebody_else_maps_it() {
        let shared = Shared::create().unwrap();
        assert!(!shared.in_use() && !shared.is_mapped_by_anybody());
        let given = shared.reopen().unwrap();
        assert!(shared.in_use(), "given, not yet mapped");
        let (mut here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        // SAFETY: the child makes system calls only; the mapping goes with it.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                libc::mmap(
                    std::ptr::null_mut(),
                    4096,
                    protection,
                    libc::MAP_SHARED,
                    given.as_raw_fd(),
                    0,
                );
                libc::write(there.as_raw_fd(), b"x".as_ptr().cast(), 1);
                libc::pause();
                libc::_exit(0)
            }
        }
        std::io::Read::read_exact(&mut here, &mut [0]).unwrap();
        drop(given);
        assert!(shared.in_use() && shared.is_mapped_by_anybody());
        // SAFETY: a child of ours.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert!(!shared.in_use() && !shared.is_mapped_by_anybody());
    }
}
