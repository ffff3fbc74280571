//! The attendant's side of the mailbox.

use std::fs::File;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fastpath_os::foreign::{self, Identity};
use nix::errno::Errno;
use rustix::thread::futex;

use crate::error::{Error, Result, tried};
use crate::exec::lease::{self, Lease, MAILBOX_MAPPED_NAME};
use crate::exec::robust;
use crate::exec::unserved::Unserved;
pub use crate::plan::mailbox_layout::{HookState, Mailbox};
use crate::plan::mailbox_layout::{SLOTS, Slot};
use crate::target::maps::{self, Mapping};

/// State word of a slot; `hook/mailbox.h`.
mod state {
    pub const FREE: u32 = 0;
    pub const REQUEST: u32 = 2;
    pub const TAKEN: u32 = 3;
    pub const MASK: u32 = 7;
    pub const REFUSED: u32 = 8;
    pub const ONCE_FREED: u32 = 16;

    /// Returns the word of the same slot after it has been freed.
    pub fn freed(word: u32) -> u32 {
        (word & !(MASK | REFUSED)).wrapping_add(ONCE_FREED)
    }
}

/// Age at which an unchanged slot counts as abandoned: its owner was killed while it wrote its request, or has stopped
/// waiting (the hook waits for 5 s).
pub const ABANDONED: Duration = Duration::from_secs(6);

/// Request of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Asks to be served when its exec has happened.
    Exec {
        /// Address of the path in the thread's process.
        path: u64,
        /// Directory at which a relative path starts.
        dirfd: i32,
        /// AT_EMPTY_PATH and the like.
        flags: u32,
    },
    /// Asks for redirection of the calls in its libraries.
    Entry,
}

/// A request that was taken, and is answered once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    slot: usize,
    /// State word of the slot.
    word: u32,
    /// The thread, by its number in its own PID namespace.
    pub tid: i32,
    /// Request of the thread.
    pub request: Request,
}

impl Taken {
    /// Returns the offset in the mailbox of the word that the thread waits on.
    pub fn offset(&self) -> u64 {
        (offset_of!(Mailbox, slot) + self.slot * size_of::<Slot>() + offset_of!(Slot, state)) as u64
    }
}

/// Words of the slots that are not free, and the times since which they are unchanged.
#[derive(Debug)]
pub struct Held([Option<(u32, Instant)>; SLOTS]);

impl Default for Held {
    fn default() -> Held {
        Held([None; SLOTS])
    }
}

impl HookState {
    /// Returns the bytes as they lie in memory.
    pub fn bytes(&self) -> &[u8] {
        const _: () = assert!(size_of::<HookState>() == 3 * 8 + 6 * 4, "it has padding");
        // SAFETY: it consists of integers without padding, and is borrowed as long as the bytes are.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<HookState>()) }
    }
}

/// Flags of futexes whose waiters are in other processes: not FUTEX_PRIVATE_FLAG.
const BETWEEN_PROCESSES: futex::Flags = futex::Flags::empty();

const _: () = assert!(size_of::<Mailbox>() <= 4096);

/// The mapped mailbox. It stays mapped until the process ends.
pub struct Shared {
    map: NonNull<Mailbox>,
    file: OwnedFd,
    lease: Lease,
    inode: u64,
    kept: AtomicUsize,
}

/// A descriptor of the mailbox, which is in use until this is dropped.
pub struct InUse<'a> {
    shared: &'a Shared,
    /// The descriptor, for a process to map.
    pub file: OwnedFd,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.shared.kept.fetch_sub(1, Ordering::AcqRel);
    }
}

// SAFETY: the mapping is valid in every thread until the process ends, and the mailbox is only accessed through its
// atomics.
unsafe impl Send for Shared {}
// SAFETY: all shared accesses go through atomics, as `Send` says.
unsafe impl Sync for Shared {}

impl Shared {
    /// Creates an empty mailbox.
    pub fn create() -> Result<Shared> {
        let (lease, file) = Lease::create().map_err(|e| Error::io("a mailbox", e))?;
        let file = File::from(file);
        let inode = file.metadata().map_err(|e| Error::io("memfd", e))?.ino();
        // SAFETY: a fresh shared mapping of a sealed file of this size; never unmapped.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                lease::SIZE as usize,
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
        let file = file.into();
        Ok(Shared {
            map,
            file,
            lease,
            inode,
            kept: AtomicUsize::new(0),
        })
    }

    fn mailbox(&self) -> &Mailbox {
        // SAFETY: mapped for the life of the process, and made of atomics only.
        unsafe { self.map.as_ref() }
    }

    /// Opens the mailbox anew, for a process that maps it ([`lease::reopen`]).
    pub fn reopen(&self) -> Result<OwnedFd> {
        lease::reopen(&self.file).map_err(|e| Error::io("a mailbox", e))
    }

    /// Keeps the mailbox in use where no process may map it: during an exec, when the program before it is gone.
    pub fn keep_in_use(&self) -> Result<InUse<'_>> {
        let file = self.reopen()?;
        self.kept.fetch_add(1, Ordering::AcqRel);
        Ok(InUse { shared: self, file })
    }

    /// Returns whether any process still maps it, or it is kept in use.
    pub fn in_use(&self) -> bool {
        // Where leases are not available (LSM, a kernel without them on tmpfs), /proc is searched.
        self.lease.in_use().unwrap_or_else(|| self.is_found_in_use())
    }

    fn is_found_in_use(&self) -> bool {
        // An exec that ends behind the first search is found by the second.
        self.is_mapped_by_anybody() || self.kept.load(Ordering::Acquire) > 0 || self.is_mapped_by_anybody()
    }

    fn is_mapped_by_anybody(&self) -> bool {
        let own = std::process::id() as i32;
        let Ok(mut processes) = fastpath_os::processes() else {
            return true;
        };
        processes.any(|pid| pid != own && maps::read(pid).is_ok_and(|maps| self.mapping(&maps).is_some()))
    }

    /// Returns the mailbox's mapping among the mappings of a process.
    pub fn mapping<'m>(&self, maps: &'m [Mapping]) -> Option<&'m Mapping> {
        maps.iter()
            .find(|m| m.inode == self.inode && m.is_memory(MAILBOX_MAPPED_NAME))
    }

    /// Returns whether a process maps the mailbox at an address.
    pub fn is_mapped_at(&self, pid: i32, start: u64) -> std::io::Result<bool> {
        let mapping = Mapping {
            start,
            end: start.saturating_add(lease::SIZE),
            ..Mapping::default()
        };
        let link = foreign::link_of_mapped(&Path::new("/proc").join(pid.to_string()), &mapping);
        let found = Identity::of_link(&link)?;
        Ok((found.inode, found.device) == (self.inode, fastpath_os::device_of_memory()))
    }

    /// Makes the calling thread the one whose end tells the processes that no attendant answers. No request is made
    /// before. A thread does this for one mailbox.
    pub fn answer_until_this_thread_ends(&self) {
        // SAFETY: the mailbox is mapped until the process ends.
        unsafe { robust::own(&raw const self.mailbox().attendant) };
    }

    /// Lets processes wait for answers again: the attendant runs.
    pub fn runs(&self) {
        let late = &self.mailbox().late;
        if late.load(Ordering::Acquire) != 0 {
            late.store(0, Ordering::Release);
        }
    }

    /// Counts a request that is not served.
    pub fn count(&self, why: Unserved) {
        self.mailbox().unserved[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether some requests were not served for this reason.
    pub fn has_counted(&self, why: Unserved) -> bool {
        self.mailbox().unserved[why as usize].load(Ordering::Relaxed) > 0
    }

    /// Sleeps until a request may be there, for `at_most` at the longest.
    pub fn wait(&self, seen: u32, at_most: Option<Duration>) {
        let timeout = at_most.and_then(|at_most| at_most.try_into().ok());
        // Interrupted, timed out, or another count: the caller looks for requests in any case.
        let _ = futex::wait(&self.mailbox().doorbell, BETWEEN_PROCESSES, seen, timeout.as_ref());
    }

    /// Returns the doorbell's count.
    pub fn doorbell(&self) -> u32 {
        self.mailbox().doorbell.load(Ordering::Acquire)
    }

    /// Takes a request, if there is one.
    pub fn take(&self) -> Option<Taken> {
        self.mailbox().slot.iter().enumerate().find_map(|(i, slot)| {
            let old = slot.state.load(Ordering::Acquire);
            let word = old & !state::MASK | state::TAKEN;
            if old & state::MASK != state::REQUEST || !exchange(&slot.state, old, word) {
                return None;
            }
            let request = match slot.kind.load(Ordering::Relaxed) {
                1 => Request::Exec {
                    path: slot.path.load(Ordering::Relaxed),
                    dirfd: slot.dirfd.load(Ordering::Relaxed) as i32,
                    flags: slot.flags.load(Ordering::Relaxed),
                },
                _ => Request::Entry,
            };
            Some(Taken {
                slot: i,
                word,
                tid: slot.tid.load(Ordering::Relaxed) as i32,
                request,
            })
        })
    }

    /// Returns whether the slot of a request is still held for it.
    pub fn is_taken(&self, taken: &Taken) -> bool {
        self.mailbox().slot[taken.slot].state.load(Ordering::Acquire) == taken.word
    }

    /// Frees the slot of a request, and releases the thread that asked.
    pub fn go(&self, taken: &Taken) {
        self.free(taken.slot, taken.word, 0);
    }

    /// The same for a process in which nothing will ever be served.
    pub fn refuse(&self, taken: &Taken) {
        self.free(taken.slot, taken.word, state::REFUSED);
    }

    fn free(&self, slot: usize, word: u32, refused: u32) {
        let state = &self.mailbox().slot[slot].state;
        // If the word differs, the slot belongs to another thread, or was freed already.
        if exchange(state, word, state::freed(word) | refused) {
            // It fails only for an address that is not mapped.
            let _ = futex::wake(state, BETWEEN_PROCESSES, i32::MAX as u32);
        }
    }

    /// Frees the slots that have been as `held` records for longer than `age`. Returns whether some slots are
    /// still not free.
    pub fn free_abandoned(&self, held: &mut Held, age: Duration) -> bool {
        for (i, (slot, held)) in self.mailbox().slot.iter().zip(&mut held.0).enumerate() {
            let word = slot.state.load(Ordering::Acquire);
            *held = match *held {
                _ if word & state::MASK == state::FREE => None,
                Some((seen, since)) if seen == word => {
                    if since.elapsed() > age {
                        self.free(i, word, 0);
                    }
                    Some((seen, since))
                }
                _ => Some((word, Instant::now())),
            };
        }
        held.0.iter().any(Option::is_some)
    }
}

fn exchange(word: &AtomicU32, old: u32, new: u32) -> bool {
    word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn put(slot: &crate::plan::mailbox_layout::Slot, freed: u32, state: u32) {
        slot.tid.store(7, Ordering::Relaxed);
        slot.state.store(freed | state, Ordering::Release);
    }

    #[test]
    fn a_slot_is_free_once_its_request_was_answered() {
        let shared = Shared::create().unwrap();
        let slot = &shared.mailbox().slot[3];
        put(slot, 16, state::REQUEST);
        let taken = shared.take().unwrap();
        assert_eq!((taken.tid, shared.take()), (7, None));
        shared.go(&taken);
        assert_eq!(slot.state.load(Ordering::Relaxed), 32 | state::FREE);
        // The slot belongs to another thread by now.
        put(slot, 32, state::REQUEST);
        shared.go(&taken);
        assert_eq!(slot.state.load(Ordering::Relaxed), 32 | state::REQUEST);
        // The answer to one request is not that to the next.
        shared.refuse(&shared.take().unwrap());
        assert_eq!(slot.state.load(Ordering::Relaxed), 48 | state::REFUSED);
        put(slot, 48 | state::REFUSED, state::REQUEST);
        shared.go(&shared.take().unwrap());
        assert_eq!(slot.state.load(Ordering::Relaxed), 64);
    }

    #[test]
    fn a_slot_that_its_owner_left_is_freed_and_one_that_changes_is_not() {
        const FILLING: u32 = 1;
        let shared = Shared::create().unwrap();
        let [left, used] = [0, 5].map(|i| &shared.mailbox().slot[i]);
        let mut held = Held::default();
        assert!(!shared.free_abandoned(&mut held, ABANDONED));
        put(left, 16, FILLING);
        put(used, 16, FILLING);
        assert!(shared.free_abandoned(&mut held, ABANDONED));
        put(used, 32, FILLING);
        assert!(shared.free_abandoned(&mut held, Duration::ZERO));
        let words = [left, used].map(|slot| slot.state.load(Ordering::Relaxed));
        assert_eq!(words, [32 | state::FREE, 32 | FILLING]);
        shared.free_abandoned(&mut held, Duration::ZERO);
        assert!(!shared.free_abandoned(&mut held, ABANDONED));
    }

    #[test]
    fn whatever_is_in_a_mailbox_each_request_is_taken_once() {
        let shared = Shared::create().unwrap();
        let file = File::from(shared.reopen().unwrap());
        for (i, slot) in shared.mailbox().slot.iter().enumerate() {
            put(slot, 8 * i as u32, i as u32 % 4);
            slot.kind.store(i as u32 % 3, Ordering::Relaxed);
        }
        let mut full = vec![0; size_of::<Mailbox>()];
        file.read_exact_at(&mut full, 0).unwrap();
        let empty = vec![0; full.len()];
        let mut held = Held::default();
        crate::mutations::feed(&[full, empty], Duration::from_secs(5), 2, |bytes| {
            let length = bytes.len().min(size_of::<Mailbox>());
            file.write_all_at(&bytes[..length], 0).unwrap();
            // The count differs from the one that was seen, so this does not wait.
            shared.wait(shared.doorbell().wrapping_add(1), Some(Duration::from_secs(5)));
            let taken: Vec<_> = std::iter::from_fn(|| shared.take()).take(SLOTS + 1).collect();
            assert!(taken.len() <= SLOTS);
            for one in taken {
                assert!(shared.is_taken(&one) && one.offset() < size_of::<Mailbox>() as u64);
                shared.go(&one);
                assert!(!shared.is_taken(&one));
            }
            shared.free_abandoned(&mut held, ABANDONED);
            shared.free_abandoned(&mut held, Duration::ZERO);
            assert!(!shared.free_abandoned(&mut held, ABANDONED));
        });
    }

    #[test]
    fn a_mailbox_is_in_use_as_long_as_another_process_maps_it() {
        // Other tests of this process fork: a child has all of its mappings until it executes another program.
        let is_soon = |condition: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !condition() && begun.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
            condition()
        };
        let shared = Shared::create().unwrap();
        let is_nobodys = || !shared.in_use() && !shared.is_found_in_use();
        assert!(is_soon(&is_nobodys));
        let given = shared.keep_in_use().unwrap();
        assert!(shared.in_use() && shared.is_found_in_use(), "given, not yet mapped");
        let (mut here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        // SAFETY: the child makes system calls only; its mapping ends with it.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: mmap chooses the address of a new mapping, and write reads one byte of a static.
            unsafe {
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                libc::mmap(
                    std::ptr::null_mut(),
                    4096,
                    protection,
                    libc::MAP_SHARED,
                    given.file.as_raw_fd(),
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
        // SAFETY: the process is a child that is not waited for yet; waitpid accepts a null status.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert!(is_soon(&is_nobodys));
    }
}
