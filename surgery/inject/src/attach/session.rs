//! The hold on a process while it is being changed: its first thread is traced, from before the first look to after the
//! last change. A thread has one tracer, so no second fastpath, and no debugger, changes the process meanwhile.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace::Options;

use super::checks;
use super::listing;
use super::refusal::{Answer, Refusal};
use super::watchdog::{self, LastResort, StopTime};
use crate::error::Error;
use crate::remote::nap;
use crate::target::tracee::{Stop, Tracee, Until};

/// A process that no other tracer changes now.
pub struct Session<'s> {
    pid: i32,
    held: Tracee,
    /// Time since which its threads are stopped, for the deadline.
    pub stop_time: &'s StopTime,
    /// Threads that were asked to stop and have not yet: they wait in the kernel uninterruptibly.
    late: RefCell<Vec<Tracee>>,
    pauses: Cell<Pauses>,
    /// Whether tails that a killed fastpath left in use may be overwritten: no thread is in them.
    pub tails_are_free: Cell<bool>,
    /// Last number that a process had when this one was compared with others: see [`super::sharers`].
    pub last_compared: Cell<Option<i32>>,
}

/// Number and length of the stops of all threads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pauses {
    /// More than one if a try failed: a thread did not stop, or was stopped in code that changes.
    pub times: u32,
    /// Sum of all.
    pub together: Duration,
    /// Longest of them.
    pub longest: Duration,
}

/// Does `work` on a process that no other tracer changes meanwhile, in a thread that ends with it: the kernel then
/// detaches all tracees of that thread, and does not stop those that run or wait. The calling thread watches it: see
/// [`watchdog`].
pub fn hold<T: Send>(
    pid: i32,
    last_resort: LastResort,
    work: impl FnOnce(&Session<'_>) -> Answer<T> + Send,
) -> Answer<T> {
    let stop_time = &StopTime::default();
    let (done, over) = std::sync::mpsc::channel::<()>();
    let session = move || {
        // Dropped on every exit, panics included.
        let _done = done;
        work(&Session::open(pid, stop_time)?)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("fastpath-session".into());
        let started = thread.spawn_scoped(scope, session);
        let started = started.map_err(|e| Error::io("a thread that traces the process", e))?;
        watchdog::watch(pid, stop_time, &over, last_resort);
        let answer = started.join();
        // The kernel reports a thread's end a moment before it detaches its tracees.
        wait_until_gone(stop_time.tracer());
        answer.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Waits until a thread of this process that has ended is not listed any more.
fn wait_until_gone(tid: i32) {
    const LONGEST: Duration = Duration::from_secs(1);
    let begun = Instant::now();
    while std::path::Path::new(&format!("/proc/self/task/{tid}")).exists() && begun.elapsed() < LONGEST {
        nap(begun);
    }
}

impl Session<'_> {
    fn open(pid: i32, stop_time: &StopTime) -> Answer<Session<'_>> {
        // The first thread may have ended before the others: then the one with the lowest id is held.
        let mut tids = listing::list(pid);
        tids.sort_by_key(|tid| (*tid != pid, *tid));
        let tid = tids.into_iter().find(|tid| !listing::has_ended(pid, *tid));
        let held = seize(pid, tid.ok_or(Error::Gone)?, stop_time)?;
        Ok(Session {
            pid,
            held,
            stop_time,
            late: RefCell::default(),
            pauses: Cell::default(),
            tails_are_free: Cell::default(),
            last_compared: Cell::default(),
        })
    }

    /// Returns the process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Traces a thread of the process. For the held thread, returns a second `Tracee`.
    pub fn thread(&self, tid: i32) -> Answer<Thread> {
        let is_held = tid == self.held.pid();
        let mut late = self.late.borrow_mut();
        let place = late.iter().position(|tracee| tracee.pid() == tid);
        let tracee = match place {
            Some(place) => late.swap_remove(place),
            None if is_held => Tracee::already(self.pid, tid),
            None => seize(self.pid, tid, self.stop_time)?,
        };
        Ok(Thread { tracee, is_held })
    }

    /// Keeps a thread that was asked to stop, to let it go once it has stopped. A tracer cannot let it go earlier.
    pub fn keep(&self, thread: Thread) {
        if !thread.is_held {
            self.late.borrow_mut().push(thread.tracee);
        }
    }

    /// Counts a stop of all threads.
    pub fn note_pause(&self, length: Duration) {
        let Pauses {
            times,
            together,
            longest,
        } = self.pauses.get();
        self.pauses.set(Pauses {
            times: times + 1,
            together: together + length,
            longest: longest.max(length),
        });
    }

    /// Returns the stops so far.
    pub fn pauses(&self) -> Pauses {
        self.pauses.get()
    }

    /// Waits, and delivers signals to the traced threads meanwhile. Returns early if a late thread has stopped: what it
    /// waited for may begin again.
    pub fn rest(&self, duration: Duration) {
        let begun = Instant::now();
        loop {
            let mut has_stopped = false;
            match self.held.event(false) {
                Ok(Some(Stop::Exited)) | Err(_) => return,
                Ok(Some(stop)) => {
                    go_on(&self.held, stop, true);
                    has_stopped = matches!(stop, Stop::Interrupt);
                }
                Ok(None) => {}
            }
            let mut late = self.late.borrow_mut();
            let were_late = late.len();
            late.retain(|tracee| match tracee.event(false) {
                Ok(None) => true,
                Ok(Some(Stop::Exited)) | Err(_) => false,
                Ok(Some(stop)) => {
                    go_on(tracee, stop, false);
                    false
                }
            });
            has_stopped |= late.len() < were_late;
            if has_stopped || begun.elapsed() >= duration {
                return;
            }
            std::thread::sleep(duration.min(Duration::from_micros(200)));
        }
    }
}

/// A thread that only this session traces.
pub struct Thread {
    pub tracee: Tracee,
    /// Whether the session traces it until its own end.
    is_held: bool,
}

impl Thread {
    /// Returns whether the session traces the thread until its own end.
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// Lets the thread go on from the stop `from`.
    pub fn go_on(&self, from: Stop) {
        go_on(&self.tracee, from, self.is_held);
    }
}

/// Lets a thread go on from the stop `from` as it would without a tracer. With `is_held` it stays traced.
pub fn go_on(tracee: &Tracee, from: Stop, is_held: bool) {
    // A thread that is gone needs nothing.
    let _ = match from {
        Stop::Group if is_held => tracee.listen(),
        _ if is_held => tracee.resume(Until::Event, from.signal()),
        _ => tracee.detach(from.signal()),
    };
}

fn seize(pid: i32, tid: i32, stop_time: &StopTime) -> Answer<Tracee> {
    // Recorded before: the thread may end while PTRACE_SEIZE waits.
    stop_time.traces(tid);
    let refused = |e| match e {
        Error::System {
            errno: Errno::EPERM, ..
        } => match checks::tracer_of(pid) {
            Some((by, name)) => Refusal::Traced { by, name },
            None => Refusal::NotPermitted {
                why: "PTRACE_SEIZE: EPERM; run as root, or see ptrace(2)".into(),
            },
        },
        e => e.into(),
    };
    let attempt = || Tracee::seize(pid, tid, Options::empty()).map_err(refused);
    let seized = attempt().or_else(|refusal| match refusal {
        // Its tracer may have detached just before it was looked for.
        Refusal::NotPermitted { .. } => attempt(),
        refusal => Err(refusal),
    })?;
    if std::path::Path::new(&format!("/proc/{pid}/task/{tid}")).exists() {
        return Ok(seized);
    }
    // The number now belongs to a thread of another process, or to none.
    let begun = Instant::now();
    let _ = seized.interrupt();
    while begun.elapsed() < watchdog::DEADLINE {
        match seized.event(false) {
            Ok(None) => nap(begun),
            Ok(Some(stop)) => {
                go_on(&seized, stop, false);
                break;
            }
            Err(_) => break,
        }
    }
    Err(Error::Gone.into())
}
