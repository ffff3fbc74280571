//! The thread of a running program that makes the remote calls, while all other threads run.

use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::ptrace::Options;

use super::listing;
use super::notes;
use super::refusal::{Answer, Refusal};
use super::session::{Session, Thread, go_on};
use super::sharers;
use super::thread_state::{dispatches_calls, prepare};
use super::threads::{StopTimeout, Tries};
use crate::abi::Registers;
use crate::abi::host::{MOST_TAILS, NATIVE};
use crate::error::{Error, Result};
use crate::remote::tail::{self, Tail};
use crate::remote::{Policy, RemoteCalls};
use crate::target::maps::Mapping;
use crate::target::memory::Memory;
use crate::target::tracee::{Stop, Tracee};

/// Timeout for a call, and for the thread's stop after one; on a busy machine the thread may have to wait for a CPU.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Time that the program waits for remote calls before it runs for a while: the calls take milliseconds, on a busy
/// machine longer.
const LONGEST_STOP: Duration = Duration::from_millis(40);

/// Does `work` with remote calls in a thread of the process, then lets the thread go as it was found, whatever the
/// result.
pub fn with_calls<T>(
    session: &Session<'_>,
    maps: &[Mapping],
    work: impl FnOnce(&mut RemoteCalls<'_>) -> Answer<T>,
) -> Answer<T> {
    let mut caller = Caller::stop(session, maps)?;
    let done = caller.with_calls(session, work);
    session.stop_time.end();
    done
}

/// A stopped thread that can make remote calls.
struct Caller {
    thread: Thread,
    /// Program's own registers, as they were at the stop.
    program: Registers,
    stop: Stop,
    tail: Tail,
    /// All tails, that one included.
    tails: Vec<Tail>,
}

impl Caller {
    /// Stops a thread of the process, one that is not in a system call if there is any.
    fn stop(session: &Session<'_>, maps: &[Mapping]) -> Answer<Caller> {
        let pid = session.pid();
        let mut tries = Tries::start();
        loop {
            let mut last = Refusal::Failed(Error::Gone);
            // Where the kernel does not report restartable sequences, a thread that may be in one comes last.
            for even_in_sequence in [false, true] {
                for tid in listing::by_convenience(pid)
                    .into_iter()
                    .filter(|tid| !listing::is_worker(pid, *tid) && !sharers::has_own_descriptors(pid, *tid))
                {
                    match Caller::on(session, tid, maps, even_in_sequence) {
                        Ok(Some(caller)) => return Ok(caller),
                        Ok(None) => {}
                        Err(refusal) => last = refusal,
                    }
                }
            }
            if !matches!(last, Refusal::DoesNotStop { .. }) || !tries.wait(session) {
                return Err(last);
            }
        }
    }

    /// Stops the thread `tid`. Returns `None` if it may be in a restartable sequence, unless `even_in_sequence`.
    fn on(session: &Session<'_>, tid: i32, maps: &[Mapping], even_in_sequence: bool) -> Answer<Option<Caller>> {
        // Before the thread stops: these reads may be slow.
        let memory = Rc::new(Memory::writable(session.pid())?);
        let tails = Tail::all(memory, session.pid(), maps, session.tails_are_free.get());
        let tails: Vec<Tail> = tails.take(MOST_TAILS).collect();
        let mut thread = session.thread(tid)?;
        thread.tracee.interrupt()?;
        let (mut program, stop) = match wait_for_interrupt(&thread.tracee) {
            Ok(stopped) => stopped,
            Err(refusal) => {
                session.keep(thread);
                return Err(refusal);
            }
        };
        session.stop_time.begin();
        let near = tail::near(&tails, NATIVE, program.pc()).cloned();
        let prepared = near.map_err(Refusal::from).and_then(|tail| {
            let is_it = prepare(&mut thread.tracee, &mut program, even_in_sequence)?;
            Ok(is_it.then_some(tail))
        });
        match prepared {
            Ok(Some(tail)) => Ok(Some(Caller {
                thread,
                program,
                stop,
                tail,
                tails,
            })),
            refused => {
                thread.go_on(stop);
                session.stop_time.end();
                refused.map(|_| None)
            }
        }
    }

    fn with_calls<T>(
        &mut self,
        session: &Session<'_>,
        work: impl FnOnce(&mut RemoteCalls<'_>) -> Answer<T>,
    ) -> Answer<T> {
        let is_held = self.thread.is_held();
        let policy = &Running {
            session,
            is_held,
            tails: &self.tails,
        };
        let tail = self.tail.clone();
        let mut calls = match RemoteCalls::begin(&mut self.thread.tracee, policy, tail, self.program, self.stop) {
            Ok(calls) => calls,
            Err(e) => {
                self.thread.go_on(self.stop);
                return Err(Refusal::Sealed { why: e.to_string() });
            }
        };
        let done = work(&mut calls);
        self.stop = calls.finish()?;
        self.thread.tracee.set_options(Options::empty())?;
        self.thread.go_on(self.stop);
        done
    }
}

/// Waits for an interrupted thread to stop, and returns its registers and the stop.
pub fn wait_for_interrupt(tracee: &Tracee) -> Answer<(Registers, Stop)> {
    let timeout = StopTimeout::start();
    tracee.wait_for_interrupt(Some(&|| timeout.wait(tracee.process(), tracee.pid())))
}

fn to_error(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Failed(e) => e,
        other => Error::Unsupported(other.to_string()),
    }
}

/// Policy for a thread of a running program.
struct Running<'s> {
    session: &'s Session<'s>,
    /// Whether the session traces the thread until its own end.
    is_held: bool,
    tails: &'s [Tail],
}

impl Policy for Running<'_> {
    fn tails(&self) -> &[Tail] {
        self.tails
    }

    fn timeout(&self) -> Option<Duration> {
        Some(TIMEOUT)
    }

    fn wait_for_interrupt(&self, tracee: &Tracee) -> Result<(Registers, Stop)> {
        wait_for_interrupt(tracee).map_err(to_error)
    }

    fn prepare(&self, tracee: &mut Tracee, program: &mut Registers) -> Result<()> {
        self.session.stop_time.begin();
        prepare(tracee, program, true).map(drop).map_err(to_error)
    }

    fn must_run(&self) -> bool {
        self.session.stop_time.elapsed() >= LONGEST_STOP
    }

    /// Lets the program run for as long as it was stopped.
    fn run(&self, tracee: &Tracee, stop: Stop) -> Result<()> {
        let stopped_for = self.session.stop_time.elapsed();
        // The program's filters must apply to its own system calls.
        tracee.set_options(Options::PTRACE_O_TRACEEXEC)?;
        go_on(tracee, stop, true);
        self.session.stop_time.end();
        let begun = Instant::now();
        while begun.elapsed() < stopped_for {
            match tracee.event(false)? {
                None => std::thread::sleep(Duration::from_micros(200)),
                Some(Stop::Exited | Stop::Exec) => return Err(Error::Gone),
                Some(stop) => go_on(tracee, stop, true),
            }
            if !self.is_held {
                self.session.rest(Duration::ZERO);
            }
        }
        tracee.interrupt()
    }

    fn refuse_signal(&self, tracee: &Tracee, signal: i32, after_call: u64) -> Result<()> {
        if signal == libc::SIGSYS && tracee.dispatched_call(after_call)? {
            return Err(dispatches_calls());
        }
        Ok(())
    }

    fn record(&self, tracee: &mut Tracee, scratch: u64, descriptors: [u64; 2]) -> Result<()> {
        notes::record(tracee, scratch, descriptors)
    }
}
