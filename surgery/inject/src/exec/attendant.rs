//! Injects into programs as they start: the first one, and every descendant that asks through its mailbox.
//!
//! A thread is traced only from just before its exec to just after it, so debuggers, job control and waits work as
//! without fastpath. Each visit has a thread of its own, because ptrace(2) belongs to a thread.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use nix::sys::ptrace::Options;

use super::install::{self, InjectionConfig, Installed};
use super::mailbox::{ABANDONED, Held, Shared, Taken};
use super::unserved::Unserved;
use crate::error::{Error, Result};
use crate::target::tracee::Tracee;
use crate::target::{Allowed, read_status};

/// Shortest and longest time between two checks whether an attendant is still needed.
const FIRST_LOOK: Duration = Duration::from_millis(8);
const LATE_LOOKS: Duration = Duration::from_secs(1);
/// Time after which a thread without a request ends, if another one waits for the next.
const IDLE: Duration = Duration::from_secs(2);

/// Most threads that wait for requests; a thread that has answered one ends if there are as many. A program that is executed
/// asks twice in a row: with fewer, a thread would begin and end each time.
const MOST_IDLE: usize = 3;

/// Outcome of a program in which nothing could be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It starts.
    Run,
    /// It ends with this status instead. It must have been traced as one that must be served.
    Exit(u8),
}

/// The process that the calling thread traces, and that becomes the first program.
pub struct First(Tracee);

impl First {
    /// Traces the process `pid`. If `must_be_served`, the kernel kills it if this thread ends before it has let the
    /// program go on.
    pub fn seize(pid: i32, must_be_served: bool) -> Result<First> {
        let mut options = Options::PTRACE_O_TRACEEXEC;
        options.set(Options::PTRACE_O_EXITKILL, must_be_served);
        Tracee::seize(pid, pid, options).map(First)
    }
}

/// Serves one tree of processes.
pub struct Attendant {
    pub(super) config: InjectionConfig,
    pub(super) mailbox: Arc<Shared>,
    pub(super) allowed: Allowed,
    /// Whether this process may not look at single mappings of others (proc_pid_map_files(5)).
    pub(super) reads_all_maps: AtomicBool,
    /// Number of threads that wait for requests.
    idle: AtomicUsize,
    /// Thread that waits for a request where no other does ([`Attendant::serve_while`]).
    keeper: OnceLock<Thread>,
    /// Process of the first program; 0: none.
    pub(super) first: AtomicI32,
    /// Number of programs, besides the first, that it was installed in.
    pub(super) served: AtomicU64,
}

impl Attendant {
    /// Creates an attendant that installs `config` for the threads that ask in `mailbox`.
    pub fn new(config: InjectionConfig, mailbox: Arc<Shared>) -> Arc<Attendant> {
        Arc::new(Attendant {
            config,
            mailbox,
            allowed: Allowed::default(),
            reads_all_maps: AtomicBool::new(false),
            idle: AtomicUsize::new(0),
            keeper: OnceLock::new(),
            first: AtomicI32::new(0),
            served: AtomicU64::new(0),
        })
    }

    /// Returns how many programs that its tree has executed are served so far.
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Plans what the first program most likely needs, before it is stopped.
    pub fn prepare(&self) {
        install::prepare(&self.config);
    }

    /// Serves the first program: waits for its exec, then calls `before`, installs, and asks `installed` what to do with
    /// the result. Returns whether the program runs, untraced. If not, it has ended, or the end of this thread releases it.
    /// `must_see_execs`: it counts as an error if the exec of another program would not be noticed.
    pub fn inject_first(
        &self,
        first: First,
        must_see_execs: bool,
        before: impl FnOnce(),
        installed: impl FnOnce(&Result<Installed>) -> Outcome,
    ) -> bool {
        let First(mut tracee) = first;
        self.first.store(tracee.pid(), Ordering::Relaxed);
        let done = match self.wait_for_exec(&mut tracee, false) {
            // The process ended without an exec, and reported the reason itself.
            Ok(false) => return false,
            Ok(true) => {
                before();
                self.mailbox.keep_in_use().and_then(|mailbox| {
                    let status = read_status(tracee.pid())?;
                    install::install(&mut tracee, &status, &self.config, &mailbox.file, must_see_execs)
                        .map_err(Error::at_exec)
                })
            }
            Err(e) => Err(e),
        };
        if let Outcome::Exit(status) = installed(&done) {
            // If even that fails, the end of this thread kills it.
            let _ = tracee.exit(status);
            return false;
        }
        let runs = tracee.detach(0).is_ok();
        if runs {
            // Its first request is for its libraries. They are scanned while it loads them: before, that would take a CPU
            // from this thread, for which the program waits.
            crate::target::program::scan_own_libraries(&self.config.scans);
        }
        runs
    }

    /// Answers requests for as long as the process lives.
    pub fn serve(self: Arc<Self>) {
        self.idle.fetch_add(1, Ordering::AcqRel);
        self.follow();
    }

    /// Answers requests as long as `needed`, called from time to time, returns true. Other threads exist only while there
    /// are requests: trees that execute nothing take one task each.
    pub fn serve_while(self: &Arc<Self>, mut needed: impl FnMut() -> bool) {
        let _ = self.keeper.set(thread::current());
        let mut held = Held::default();
        let (mut looked, mut every) = (Instant::now(), FIRST_LOOK);
        loop {
            if looked.elapsed() >= every {
                if !needed() {
                    return;
                }
                (looked, every) = (Instant::now(), (every * 2).min(LATE_LOOKS));
            }
            if self.idle.load(Ordering::Acquire) > 0 {
                thread::park_timeout(every);
                continue;
            }
            let Some(taken) = self.next(&mut held, Some(every)) else {
                continue;
            };
            let next = self.clone();
            // Its end releases a thread that it may still trace.
            let answers = move || {
                if next.answer(taken).is_ok() {
                    next.serve();
                }
            };
            if start(answers).is_err() {
                self.mailbox.count(Unserved::Failed);
                self.mailbox.go(&taken);
            }
        }
    }

    /// Answers requests as long as it is one of a few idle threads. The thread that takes a request answers it: handing
    /// it to another would take as long as some steps of the answer. `idle` counts it already.
    fn follow(self: Arc<Self>) {
        let mut held = Held::default();
        let mut idle_since = Instant::now();
        loop {
            // The last one waits without an end.
            let is_spare = self.keeper.get().is_some() || self.idle.load(Ordering::Acquire) > 1;
            let Some(taken) = self.next(&mut held, is_spare.then_some(IDLE)) else {
                if is_spare && idle_since.elapsed() >= IDLE && self.leave() {
                    return;
                }
                continue;
            };
            if self.idle.fetch_sub(1, Ordering::AcqRel) == 1 && !self.wake_keeper() {
                self.idle.fetch_add(1, Ordering::AcqRel);
                let next = self.clone();
                if start(move || next.follow()).is_err() {
                    // Without a thread that would wait for the next request, this one does.
                    self.mailbox.count(Unserved::Failed);
                    self.mailbox.go(&taken);
                    continue;
                }
            }
            if self.answer(taken).is_err() {
                // The end of this thread releases a thread that it may still trace.
                return;
            }
            let was_idle = self.idle.fetch_add(1, Ordering::AcqRel);
            if was_idle >= MOST_IDLE {
                self.idle.fetch_sub(1, Ordering::AcqRel);
                return;
            }
            idle_since = Instant::now();
        }
    }

    /// Counts an idle thread off, unless it is the last one that waits for requests.
    fn leave(&self) -> bool {
        if self.keeper.get().is_some() {
            self.idle.fetch_sub(1, Ordering::AcqRel);
            return self.wake_keeper();
        }
        let without_this = |idle: usize| (idle > 1).then(|| idle - 1);
        self.idle
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, without_this)
            .is_ok()
    }

    /// Takes a request; without one, waits until one may be there, for `longest` at the longest.
    fn next(&self, held: &mut Held, longest: Option<Duration>) -> Option<Taken> {
        let seen = self.mailbox.doorbell();
        self.mailbox.runs();
        let taken = self.mailbox.take();
        if taken.is_none() {
            let are_held = self.mailbox.free_abandoned(held, ABANDONED);
            let until_abandoned = are_held.then_some(ABANDONED / 2);
            self.mailbox
                .wait(seen, until_abandoned.into_iter().chain(longest).min());
        }
        taken
    }

    /// Makes the keeper wait for requests again; returns false if there is none.
    fn wake_keeper(&self) -> bool {
        self.keeper.get().map(Thread::unpark).is_some()
    }
}

/// Starts a thread that answers requests.
fn start(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    thread::Builder::new().stack_size(256 << 10).spawn(work).map(drop)
}
