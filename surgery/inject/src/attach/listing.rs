//! Threads of a process as /proc lists them.

use std::os::unix::fs::MetadataExt;

use crate::abi::host::running;

/// PF_IO_WORKER and PF_USER_WORKER, include/linux/sched.h: threads that do the kernel's work in the name of a process
/// (io_uring, vhost).
const WORKER: u32 = 0x10 | 0x4000;

/// Returns the thread ids of a process, those of its kernel workers included.
pub fn list(pid: i32) -> Vec<i32> {
    fastpath_os::threads(pid).into_iter().flatten().collect()
}

/// Returns the system call that a thread waits in; `None` if it runs, or is in the kernel for another reason.
pub fn call_of(pid: i32, tid: i32) -> Option<i64> {
    Some(fastpath_os::syscall(format!("{pid}/task/{tid}"))?.0)
}

/// Returns the number of threads of a process, its kernel workers and a first thread that has ended included; 0 if it
/// has none.
pub fn number_of(pid: i32) -> usize {
    /// Links of the directory itself; each thread adds one.
    const OWN_LINKS: u64 = 2;
    let links = std::fs::metadata(format!("/proc/{pid}/task")).map_or(0, |meta| meta.nlink());
    links.saturating_sub(OWN_LINKS) as usize
}

/// Threads of a process as a directory shows them, and their number after it had been read.
///
/// The kernel walks from thread to thread: if the thread that it has reached ends, it ends the listing there
/// (fs/proc/base.c: next_tid).
pub struct Listing {
    pub tids: Vec<i32>,
    alive: usize,
}

impl Listing {
    pub fn read(pid: i32) -> Listing {
        let tids = list(pid);
        Listing {
            tids,
            alive: number_of(pid),
        }
    }

    /// Returns whether there are no other threads, if all listed ones are still alive.
    pub fn is_whole(&self) -> bool {
        self.tids.len() == self.alive
    }
}

/// Returns the threads of a process: first those that are in no system call, last those that would not stop or would be
/// disturbed most.
pub fn by_convenience(pid: i32) -> Vec<i32> {
    let rank = |tid: i32| match call_of(pid, tid) {
        None => 0,
        Some(number) if running::MAKES_PROCESSES.contains(&number) => 4,
        // If fastpath dies, this call returns EINTR.
        Some(number) if running::ANSWERS_EINTR.contains(&number) => 3,
        // Only the kernel knows the rest of a sleep.
        Some(number) if running::SLEEPS.contains(&number) => 2,
        Some(_) => 1,
    };
    let mut all: Vec<_> = list(pid).into_iter().map(|tid| (rank(tid), tid)).collect();
    all.sort_unstable();
    all.into_iter().map(|(_, tid)| tid).collect()
}

/// Returns the state of a thread (proc_pid_stat(5)).
pub fn state(pid: i32, tid: i32) -> Option<char> {
    Some(fastpath_os::Stat::read(format!("{pid}/task/{tid}")).ok()?.state)
}

/// Returns whether a thread has ended.
pub fn has_ended(pid: i32, tid: i32) -> bool {
    matches!(state(pid, tid), None | Some('Z' | 'X'))
}

/// Returns whether a thread never executes the program's code. Such a thread cannot be traced.
pub fn is_worker(pid: i32, tid: i32) -> bool {
    fastpath_os::Stat::read(format!("{pid}/task/{tid}")).is_ok_and(|stat| stat.flags & WORKER != 0)
}

/// Returns whether a thread waits in the kernel, and does not stop.
pub fn is_uninterruptible(pid: i32, tid: i32) -> bool {
    state(pid, tid) == Some('D')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_of_which_the_end_is_missing_is_not_taken_for_whole() {
        let (wait, end) = std::sync::mpsc::channel::<()>();
        let another = std::thread::spawn(move || end.recv());
        let own = std::process::id() as i32;
        // Threads of other tests come and go.
        let mut whole = (0..10_000).map(|_| Listing::read(own)).filter(Listing::is_whole);
        let mut listing = whole.next().expect("a moment at which none came or went");
        assert!(listing.tids.len() >= 2, "{:?}", listing.tids);
        listing.tids.pop();
        assert!(!listing.is_whole());
        drop(wait);
        let _ = another.join();
    }
}
