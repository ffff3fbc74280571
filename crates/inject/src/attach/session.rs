//! The hold on a process for as long as it is being changed: its first thread is traced, from before the first look to after the last
//! change. A thread has one tracer, so no two fastpaths, and no debugger, change a process at a time.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace::Options;

use super::checks;
use super::refusal::{Answer, Refusal};
use super::threads::{self, Patience};
use crate::error::Error;
use crate::tracee::{Event, Tracee};

/// A process that nobody else changes now.
pub struct Session {
    pid: i32,
    held: Tracee,
}

impl Session {
    /// Begins one.
    pub fn open(pid: i32) -> Answer<Session> {
        // The first thread may have ended before the others: then it is the one with the lowest number.
        let mut tids = threads::of(pid);
        tids.sort_by_key(|tid| (*tid != pid, *tid));
        let tid = tids.into_iter().find(|tid| !threads::has_ended(pid, *tid));
        let held = seize(pid, tid.ok_or(Error::Gone)?)?;
        Ok(Session { pid, held })
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Traces a thread of the process; the one that is held, once more by another name.
    pub fn thread(&self, tid: i32) -> Answer<Thread> {
        if tid == self.held.pid() {
            return Ok(Thread {
                tracee: Tracee::already(self.pid, tid),
                is_held: true,
            });
        }
        Ok(Thread {
            tracee: seize(self.pid, tid)?,
            is_held: false,
        })
    }

    /// Waits, and lets the held thread have its signals meanwhile.
    pub fn rest(&self, duration: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < duration {
            match self.held.event(false) {
                Ok(Some(Event::Exited)) | Err(_) => return,
                Ok(Some(event)) => threads::go_on(&self.held, event, true),
                Ok(None) => {}
            }
            std::thread::sleep(duration.min(Duration::from_micros(200)));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.held.interrupt().is_ok() {
            threads::let_go_when_stopped(&self.held, &Patience::start());
        }
    }
}

/// A thread that is traced, by us alone.
pub struct Thread {
    pub tracee: Tracee,
    /// By the session, and for as long as it.
    is_held: bool,
}

impl Thread {
    /// Whether it stays traced.
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// Lets it go on from the stop in which it is.
    pub fn go_on(&self, from: Event) {
        threads::go_on(&self.tracee, from, self.is_held);
    }
}

fn seize(pid: i32, tid: i32) -> Answer<Tracee> {
    Tracee::seize_thread(pid, tid, Options::empty()).map_err(|e| match e {
        Error::System {
            errno: Errno::EPERM, ..
        } => match checks::tracer_of(pid) {
            Some((by, name)) => Refusal::Traced { by, name },
            None => Refusal::NotPermitted {
                why: "PTRACE_SEIZE: EPERM; run as root, or see ptrace(2)".into(),
            },
        },
        e => e.into(),
    })
}
