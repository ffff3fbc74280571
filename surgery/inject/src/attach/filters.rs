//! Seccomp filters of a process's threads, and the calls on which they have no effect.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use fastpath_code::rescue::thunk::Routine;
use fastpath_image::Isa;
use nix::errno::Errno;

use super::calling_thread;
use super::listing;
use super::refusal::Answer;
use super::session::Session;
use crate::target::ThreadStatus;
use crate::target::permissions::{self, answer_other_than_allow};
use crate::target::seccomp_filter::{Filter, FilteredCall, Instruction, MOST_INSTRUCTIONS};
use crate::target::tracee::Tracee;

/// Time after which the filters of no further thread are read. One takes some tens of microseconds.
const LONGEST: Duration = Duration::from_secs(10);

/// Most different filters that are judged, which takes milliseconds for each in the worst case. A service of systemd
/// has about 20.
const MOST_FILTERS: usize = 256;

/// Returns whether any thread has a filter: each may have its own.
pub fn are_on(pid: i32) -> bool {
    let mut statuses = listing::list(pid)
        .into_iter()
        .filter_map(|tid| ThreadStatus::read(&format!("{pid}/task/{tid}")).ok());
    statuses.any(|status| status.filters > 0)
}

/// The filters of all threads, each once; or the reason why they are unknown.
pub type Known = Result<Vec<Filter>, String>;

/// Reads the filters of all threads. A thread that starts later inherits its filters from one of these. A filter that is
/// installed later is like one that is installed after an attach of a process without filters.
pub fn read_all(session: &Session<'_>) -> Answer<Known> {
    let mut reader = Reader::default();
    let read = reader.read_all(session)?;
    Ok(read.map(|()| reader.filters))
}

/// Removes the routines for calls that a filter may answer itself, and returns the reasons.
pub fn remove_answered(known: &Known, isa: Isa, routines: &mut Vec<Routine>) -> Vec<String> {
    let filters = match known {
        Err(why) => {
            routines.clear();
            return vec![why.clone()];
        }
        // The calls of a changed site are made from other addresses.
        Ok(filters) if filters.iter().any(Filter::reads_the_address) => {
            routines.clear();
            return vec!["it has a seccomp filter that tests the address of a call".to_owned()];
        }
        Ok(filters) => filters,
    };
    let mut reasons: Vec<String> = Vec::new();
    let answer = |name: &str, number: u32| {
        let arch = isa.audit_arch();
        answer_other_than_allow(filters, FilteredCall { arch, number }, name)
    };
    routines.retain(|routine| {
        // What no page answers of it is asked of the kernel by clock_gettime.
        let fallback = (routine.name == "gettimeofday").then_some(isa.facts().calls.clock_gettime);
        let of_fallback = || fallback.and_then(|number| answer("clock_gettime", number));
        let why = answer(routine.name, routine.number).or_else(of_fallback);
        let is_allowed = why.is_none();
        reasons.extend(why.filter(|why| !reasons.contains(why)));
        is_allowed
    });
    reasons
}

/// Returns why the hook must not make its calls in a process with these filters, if there is a reason.
pub fn obstacle(known: &Known, isa: Isa) -> Option<String> {
    match known {
        Ok(filters) => permissions::obstacle(filters, isa),
        Err(why) => Some(why.clone()),
    }
}

/// Filters that were read so far. Those that threads have in common are listed once.
#[derive(Default)]
struct Reader {
    filters: Vec<Filter>,
    /// Threads whose filters were read.
    read: HashSet<i32>,
}

impl Reader {
    /// Reads the filters of all threads, one after the other: each is stopped for some microseconds, and none with others,
    /// so it does not matter how many there are. An error is the reason why they stay unknown.
    fn read_all(&mut self, session: &Session<'_>) -> Answer<Result<(), String>> {
        let pid = session.pid();
        let begun = Instant::now();
        let mut buffer = vec![Instruction::default(); MOST_INSTRUCTIONS];
        loop {
            let is_new = |tid: &i32| !self.read.contains(tid) && !listing::is_worker(pid, *tid);
            let new: Vec<i32> = listing::list(pid).into_iter().filter(is_new).collect();
            if new.is_empty() {
                return Ok(Ok(()));
            }
            for tid in new {
                if begun.elapsed() > LONGEST {
                    return Ok(Err(
                        "its seccomp filters could not be read in time; try again".to_owned()
                    ));
                }
                match self.read_one(session, tid, &mut buffer) {
                    Ok(Ok(())) => {}
                    Ok(Err(why)) => return Ok(Err(why)),
                    Err(_) if listing::has_ended(pid, tid) => {}
                    Err(refusal) => return Err(refusal),
                }
                self.read.insert(tid);
            }
        }
    }

    /// Stops a thread, and reads its filters.
    fn read_one(&mut self, session: &Session<'_>, tid: i32, buffer: &mut [Instruction]) -> Answer<Result<(), String>> {
        let thread = session.thread(tid)?;
        thread.tracee.interrupt()?;
        let (_, stop) = match calling_thread::wait_for_interrupt(&thread.tracee) {
            Ok(stopped) => stopped,
            Err(refusal) => {
                session.keep(thread);
                return Err(refusal);
            }
        };
        let read = self.read_thread(session.pid(), &thread.tracee, buffer);
        thread.go_on(stop);
        Ok(read)
    }

    fn read_thread(&mut self, pid: i32, thread: &Tracee, buffer: &mut [Instruction]) -> Result<(), String> {
        for index in 0.. {
            match thread.seccomp_filter(index, buffer) {
                Ok(filter) if self.filters.iter().any(|known| known.is(filter)) => {}
                Ok(_) if self.filters.len() == MOST_FILTERS => {
                    return Err("it has too many seccomp filters to read all of them".to_owned());
                }
                Ok(filter) => self.filters.push(Filter::new(filter)),
                Err(Errno::ENOENT) => break,
                Err(errno) => return unreadable(pid, thread.pid(), errno).map_or(Ok(()), Err),
            }
        }
        Ok(())
    }
}

/// Returns why a thread's filters cannot be read; `None` if it has none.
fn unreadable(pid: i32, tid: i32, errno: Errno) -> Option<String> {
    const NONE: u32 = 0;
    const STRICT: u32 = 1;
    let status = fastpath_os::Status::read(format!("{pid}/task/{tid}"));
    match status.ok().and_then(|status| status.number("Seccomp")) {
        Some(NONE) => None,
        Some(STRICT) => Some("seccomp kills it for these calls (SECCOMP_MODE_STRICT)".to_owned()),
        _ => Some(permissions::unreadable(errno)),
    }
}
