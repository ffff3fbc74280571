//! All threads of a process, stopped at once, and as they were when they go on.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::refusal::{Answer, Refusal};
use super::session::{Session, Thread};
use crate::abi::Registers;
use crate::error::{Error, Result};
use crate::tracee::{Event, Tracee};

/// Between two looks at threads that have not stopped yet: a thread that runs does so within some microseconds.
const NAP: Duration = Duration::from_micros(20);
/// For a thread that is waiting for a CPU on a busy machine.
const PATIENCE: Duration = Duration::from_secs(1);
/// For one that waits in the kernel where nothing interrupts it: the parent of a vfork does until its child has started a program.
const PATIENCE_WITH_A_WAIT: Duration = Duration::from_millis(5);
/// Waits of that kind end, as a rule.
const TRIES: u32 = 200;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// Listings that are not whole though they show nobody new: one is, where a thread ended meanwhile, and these end.
const MOST_CUT: u32 = 1000;

/// Waits a little.
pub fn nap() {
    std::thread::sleep(NAP);
}

/// How long something that should happen at once is waited for.
pub struct Patience(Instant);

impl Patience {
    /// From now on.
    pub fn start() -> Patience {
        Patience(Instant::now())
    }

    /// Whether it will not happen any more.
    pub fn is_over(&self) -> bool {
        self.0.elapsed() > PATIENCE
    }
}

/// Thread numbers of a process.
pub fn of(pid: i32) -> Vec<i32> {
    let names = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    names
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// The threads of a process as a directory shows them, and how many there were when it had been read.
///
/// The kernel walks from thread to thread: where one ends under its feet, it takes that for the end (fs/proc/base.c: next_tid).
struct Listing {
    tids: Vec<i32>,
    alive: usize,
}

impl Listing {
    fn of(pid: i32) -> Listing {
        /// A directory's own two; each thread has one more.
        const OWN_LINKS: u64 = 2;
        let tids = of(pid);
        let links = std::fs::metadata(format!("/proc/{pid}/task")).map_or(0, |meta| meta.nlink());
        Listing {
            tids,
            alive: links.saturating_sub(OWN_LINKS) as usize,
        }
    }

    /// Whether there are no others, if all that it shows are there to stay.
    fn is_whole(&self) -> bool {
        self.tids.len() == self.alive
    }
}

/// The threads of a process, those first that are in no system call, those last that a stop would not reach or that would be disturbed most.
pub fn by_convenience(pid: i32) -> Vec<i32> {
    let rank = |tid: i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
        match text.split_whitespace().next().map(str::parse::<i64>) {
            // "running", or -1: in the kernel for another reason.
            Some(Err(_) | Ok(-1)) => 0,
            Some(Ok(libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3)) => 3,
            // A rest of a sleep is known to the kernel alone.
            Some(Ok(libc::SYS_nanosleep | libc::SYS_clock_nanosleep | libc::SYS_poll)) => 2,
            Some(Ok(_)) => 1,
            None => 4,
        }
    };
    let mut all: Vec<_> = of(pid).into_iter().map(|tid| (rank(tid), tid)).collect();
    all.sort_unstable();
    all.into_iter().map(|(_, tid)| tid).collect()
}

/// One that stands.
pub struct Stopped {
    thread: Thread,
    pub registers: Registers,
    /// Where it stands.
    at: Event,
}

/// All threads of a process. They go on when this is dropped.
pub struct AllStopped {
    pub threads: Vec<Stopped>,
    /// Those that were asked to stop.
    running: Vec<Thread>,
    /// Those that had ended by then.
    ended: Vec<i32>,
    /// When the first was stopped.
    begun: Instant,
}

impl AllStopped {
    /// Stops all threads of the process and keeps them if `judge` says so; else they are let go, and it is tried again after a while. The
    /// refusal is the last that `judge` gave.
    pub fn of<T>(
        session: &Session,
        mut judge: impl FnMut(&mut AllStopped) -> Answer<Option<T>>,
    ) -> Answer<(AllStopped, T)> {
        let mut last = None;
        for _ in 0..TRIES {
            match AllStopped::try_of(session) {
                Ok(mut all) => {
                    if let Some(answer) = judge(&mut all)? {
                        return Ok((all, answer));
                    }
                    last = None;
                }
                Err(refusal @ Refusal::DoesNotStop { .. }) => last = Some(refusal),
                Err(refusal) => return Err(refusal),
            }
            session.rest(BETWEEN_TRIES);
        }
        Err(last.unwrap_or(Refusal::InTheWay { tid: session.pid() }))
    }

    fn try_of(session: &Session) -> Answer<AllStopped> {
        let pid = session.pid();
        let mut all = AllStopped {
            threads: Vec::new(),
            running: Vec::new(),
            ended: Vec::new(),
            begun: Instant::now(),
        };
        let patience = Patience::start();
        let mut cut = 0;
        loop {
            let listing = Listing::of(pid);
            let is_whole = listing.is_whole();
            let mut knows_all = true;
            for tid in listing.tids {
                if !all.knows(tid) {
                    knows_all = false;
                    all.ask_to_stop(session, tid)?;
                }
            }
            if knows_all && is_whole {
                let nobody = all.threads.is_empty();
                return if nobody { Err(Error::Gone.into()) } else { Ok(all) };
            }
            if knows_all {
                cut += 1;
                if cut > MOST_CUT {
                    return Err(
                        Error::Unsupported(format!("/proc/{pid}/task does not show all of its threads")).into(),
                    );
                }
                nap();
            }
            all.collect(pid, &patience)?;
        }
    }

    fn knows(&self, tid: i32) -> bool {
        self.ended.contains(&tid) || self.threads.iter().any(|t| t.tid() == tid)
    }

    fn ask_to_stop(&mut self, session: &Session, tid: i32) -> Answer<()> {
        match session.thread(tid) {
            Ok(thread) => {
                let asked = thread.tracee.interrupt();
                self.running.push(thread);
                asked?;
            }
            // A first thread that has ended is shown for as long as there are others.
            Err(_) if has_ended(session.pid(), tid) => self.ended.push(tid),
            Err(refusal) => return Err(refusal),
        }
        Ok(())
    }

    /// Waits until all that were asked to stop do.
    fn collect(&mut self, pid: i32, patience: &Patience) -> Answer<()> {
        let begun = Instant::now();
        while !self.running.is_empty() {
            for thread in std::mem::take(&mut self.running) {
                match thread.tracee.event(false) {
                    Ok(None) => self.running.push(thread),
                    Ok(Some(Event::Exited)) | Err(Error::Gone) => {}
                    Err(e) => return Err(e.into()),
                    Ok(Some(event)) => {
                        // Between its stop and this it may have been killed.
                        let Ok(registers) = thread.tracee.registers() else {
                            continue;
                        };
                        self.threads.push(Stopped {
                            thread,
                            registers,
                            at: event,
                        });
                    }
                }
            }
            let Some(first) = self.running.first() else { break };
            let tid = first.tracee.pid();
            let waits = begun.elapsed() > PATIENCE_WITH_A_WAIT && is_uninterruptible(pid, tid);
            if waits || patience.is_over() {
                let place = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/wchan")).unwrap_or_default();
                return Err(Refusal::DoesNotStop { tid, place });
            }
            nap();
        }
        Ok(())
    }

    /// Since when the first of them stands still.
    pub fn since(&self) -> Instant {
        self.begun
    }
}

impl Drop for AllStopped {
    fn drop(&mut self) {
        for stopped in &self.threads {
            stopped.thread.go_on(stopped.at);
        }
        let patience = Patience::start();
        for thread in std::mem::take(&mut self.running) {
            if thread.is_held() {
                continue;
            }
            let_go_when_stopped(&thread.tracee, &patience);
        }
    }
}

impl Stopped {
    /// Its number.
    pub fn tid(&self) -> i32 {
        self.thread.tracee.pid()
    }

    /// For its memory, which is that of all.
    pub fn tracee(&mut self) -> &mut Tracee {
        &mut self.thread.tracee
    }

    /// For what it says of itself.
    pub fn look(&self) -> &Tracee {
        &self.thread.tracee
    }

    /// Makes it go on at `pc`, whatever becomes of us.
    pub fn move_to(&mut self, pc: u64) -> Result<()> {
        self.registers.set_pc(pc);
        self.thread.tracee.set_registers(&self.registers)
    }
}

/// A stop may end a system call with EINTR that would not have ended for anything else: such a call is made again. Whether it was.
/// `delivered`: the signal that the thread gets as it goes on.
fn undo_interruption(tracee: &Tracee, registers: &mut Registers, delivered: i32) -> Result<bool> {
    if !registers.would_see_eintr() {
        return Ok(false);
    }
    let path = format!("/proc/{}/status", tracee.pid());
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io(path, e))?;
    let mask = |name: &str| {
        let field = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(":"));
        field.and_then(|v| u64::from_str_radix(v.trim(), 16).ok()).unwrap_or(0)
    };
    let pending = (mask("SigPnd") | mask("ShdPnd")) & !mask("SigBlk");
    let delivered = if delivered > 0 { 1 << (delivered - 1) } else { 0 };
    if (pending | delivered) & mask("SigCgt") != 0 {
        return Ok(false);
    }
    registers.call_again();
    Ok(true)
}

/// Lets a thread go that was asked to stop: it can only be let go once it has. One that does not is let go by our own end.
pub fn let_go_when_stopped(tracee: &Tracee, patience: &Patience) {
    loop {
        match tracee.event(false) {
            Ok(None) if patience.is_over() => return,
            Ok(None) => nap(),
            Ok(Some(Event::Exited)) | Err(_) => return,
            Ok(Some(event)) => return go_on(tracee, event, false),
        }
    }
}

/// Lets a thread go on from where it stands, as it would without us; `is_held`: it stays traced.
pub fn go_on(tracee: &Tracee, from: Event, is_held: bool) {
    // One that is gone needs nothing any more.
    if let Ok(mut registers) = tracee.registers()
        && undo_interruption(tracee, &mut registers, from.signal()).unwrap_or(false)
    {
        let _ = tracee.set_registers(&registers);
    }
    let _ = match from {
        Event::JobStop if is_held => tracee.listen(),
        _ if is_held => tracee.resume(false, from.signal()),
        _ => tracee.let_go(from.signal()),
    };
}

/// The state of a thread (proc_pid_stat(5)).
fn state(pid: i32, tid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether it is none of the living.
pub fn has_ended(pid: i32, tid: i32) -> bool {
    matches!(state(pid, tid), None | Some('Z' | 'X'))
}

fn is_uninterruptible(pid: i32, tid: i32) -> bool {
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
        // Other tests' threads come and go.
        let mut whole = (0..10_000).map(|_| Listing::of(own)).filter(Listing::is_whole);
        let mut listing = whole.next().expect("a moment at which none came or went");
        assert!(listing.tids.len() >= 2, "{:?}", listing.tids);
        listing.tids.pop();
        assert!(!listing.is_whole());
        drop(wait);
        let _ = another.join();
    }
}
