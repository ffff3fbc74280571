//! Finds the thread that asked.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::attendant::Attendant;
use super::mailbox::{ABANDONED, Request, Taken};
use super::unserved::Unserved;
use crate::error::Error;
use crate::target::maps::{self, Mapping};
use crate::target::{self, ThreadStatus};

/// Shortest and longest time between two checks whether the requesting thread waits already. Between ringing and
/// waiting it executes a few instructions, and may lose its CPU.
const FIRST_NAP: Duration = Duration::from_micros(50);
const LONGEST_NAP: Duration = Duration::from_millis(5);
/// Most ancestors that are looked at.
const MOST_GENERATIONS: u32 = 64;

/// What /proc shows of a thread.
enum Look {
    /// It waits for the answer.
    Waits(Asker),
    /// It maps the mailbox, and does not wait yet.
    Runs,
    /// This process may not look at it.
    Hidden,
    /// It is gone, or another process's.
    Other,
}

impl Look {
    fn is_waiting(&self) -> bool {
        matches!(self, Look::Waits(_))
    }
}

/// The thread that asked.
pub struct Asker {
    /// Its number in this PID namespace.
    pub tid: i32,
    /// Address of the word that it waits on.
    pub futex: u64,
    /// Mappings of its process; empty if its request is for an exec, after which it has others.
    pub maps: Vec<Mapping>,
}

impl Attendant {
    /// Returns the thread that asked. The mailbox may contain anything, so a thread counts as the one that asked only if
    /// it waits for the answer, on the futex of that slot: no other thread is stopped. The error: why none will be
    /// found, unless it has ended.
    pub(super) fn find(&self, taken: &Taken) -> std::result::Result<Asker, Option<Unserved>> {
        let begun = Instant::now();
        let mut nap = FIRST_NAP;
        while begun.elapsed() < ABANDONED {
            let named = self.look(taken.tid, taken);
            let is_ours = matches!(named, Look::Runs);
            match named {
                Look::Waits(asker) => return Ok(asker),
                Look::Hidden if self.is_descendant(taken.tid) => return Err(Some(Unserved::Hidden)),
                _ => {}
            }
            // A thread in another PID namespace has a different number here. If two threads match, neither is accepted.
            // The search reads all of /proc: a thread of this number that maps the mailbox gets time to start waiting
            // first.
            if nap == LONGEST_NAP || !is_ours {
                let inner = threads_of_inner_namespaces(taken.tid).map(|tid| self.look(tid, taken));
                let mut looks: Vec<Look> = inner.chain([named]).collect();
                let (waits, is_there) = (Look::is_waiting, |look: &Look| {
                    look.is_waiting() || matches!(look, Look::Runs)
                });
                if looks.iter().filter(|look| waits(look)).count() == 1
                    && let Some(Look::Waits(asker)) = looks.iter().position(waits).map(|i| looks.swap_remove(i))
                {
                    return Ok(asker);
                }
                // It asked before it was looked for, and waits for the answer: nothing will show it later.
                if !looks.iter().any(is_there) {
                    let is_hidden = looks.iter().any(|look| matches!(look, Look::Hidden));
                    return Err(is_hidden.then_some(Unserved::Hidden));
                }
            }
            // The thread rings before it waits. Once it has stopped waiting, the slot is no longer taken, or is about
            // to be freed.
            if !self.mailbox.is_taken(taken) {
                return Err(None);
            }
            thread::sleep(nap);
            nap = (nap * 2).min(LONGEST_NAP);
        }
        Err(Some(Unserved::Failed))
    }

    /// Returns whether a thread belongs to a descendant of the first program, which is most likely the one that asked: an
    /// answer to a process that this one may not look at must not take the time of a search.
    fn is_descendant(&self, mut pid: i32) -> bool {
        let first = self.first.load(Ordering::Relaxed);
        for _ in 0..MOST_GENERATIONS {
            if pid <= 0 || pid == first {
                break;
            }
            pid = fastpath_os::Status::read(pid).map_or(0, |status| status.number("PPid").unwrap_or(0));
        }
        pid > 0 && pid == first
    }

    /// Returns a thread that waits for the answer already, without a look at all mappings of its process: a mapping that has the
    /// futex where the slot's would be must be the mailbox. `None`: the mappings say more.
    fn look_at_mailbox(&self, tid: i32, taken: &Taken) -> Option<Asker> {
        if taken.request == Request::Entry || self.reads_all_maps.load(Ordering::Relaxed) {
            return None;
        }
        let futex = target::futex_of(tid)?;
        match self.mailbox.is_mapped_at(tid, futex.checked_sub(taken.offset())?) {
            Ok(true) => Some(Asker {
                tid,
                futex,
                maps: Vec::new(),
            }),
            Ok(false) => None,
            Err(e) => {
                let may_not = e.kind() == ErrorKind::PermissionDenied;
                self.reads_all_maps.fetch_or(may_not, Ordering::Relaxed);
                None
            }
        }
    }

    /// Looks whether a thread waits for the answer to this request. Where the kernel does not show the futex, a thread
    /// that maps the mailbox and waits on any counts, and its registers decide once it is stopped.
    fn look(&self, tid: i32, taken: &Taken) -> Look {
        if let Some(asker) = self.look_at_mailbox(tid, taken) {
            return Look::Waits(asker);
        }
        let maps = match maps::read(tid) {
            Ok(maps) => maps,
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => return Look::Hidden,
            Err(_) => return Look::Other,
        };
        let Some(mailbox) = self.mailbox.mapping(&maps) else {
            return Look::Other;
        };
        let futex = mailbox.start + taken.offset();
        // With CAP_PERFMON, this process may read the mappings of processes that it may not trace.
        let Ok(waits) = target::waits_on_futex(tid, futex) else {
            return Look::Hidden;
        };
        match waits.unwrap_or_else(|| target::waits_on_some_futex(tid)) {
            true => Look::Waits(Asker { tid, futex, maps }),
            false => Look::Runs,
        }
    }
}

/// Returns threads, by their numbers here, of processes in inner PID namespaces, in which they have the number `inner`.
fn threads_of_inner_namespaces(inner: i32) -> impl Iterator<Item = i32> {
    let status = |pid: i32| ThreadStatus::read(&pid.to_string()).ok();
    let processes = fastpath_os::processes().into_iter().flatten();
    let nested = processes.filter(move |pid| status(*pid).is_some_and(|status| status.is_nested));
    let threads = nested.flat_map(|pid| fastpath_os::threads(pid).into_iter().flatten());
    threads.filter(move |tid| status(*tid).is_some_and(|status| status.inner_pid == inner))
}
