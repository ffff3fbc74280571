//! All threads of a process, stopped at once, and as they were when they go on.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::checks;
use super::refusal::{Answer, Refusal};
use super::session::{Session, Thread};
use crate::abi::{Registers, running};
use crate::error::{Error, Result};
use crate::tracee::{Event, Tracee};

/// Within this most threads stop, and most calls are made: until then the CPU is only lent. A sleep takes as long at least.
const NAP: Duration = Duration::from_micros(100);
/// For a thread that is waiting for a CPU on a busy machine.
const PATIENCE: Duration = Duration::from_secs(1);
/// For a thread that waits in the kernel and cannot be interrupted: the parent of a vfork until its child has started a program, a page fault for
/// the lock of its process's memory, which a thread without a CPU may hold.
const PATIENCE_WITH_A_WAIT: Duration = Duration::from_millis(50);
/// Waits of that kind end, and busy machines have their pauses: for so long it is tried again.
const LONGEST: Duration = Duration::from_secs(10);
/// At first; each time twice as long as the last, so that what waits for a time, and begins anew when it is stopped, comes to its end in between.
const BETWEEN_TRIES: Duration = Duration::from_millis(10);
const BETWEEN_LATE_TRIES: Duration = Duration::from_millis(640);

/// Listings that are not whole though they show nobody new: one is, where a thread ended meanwhile, and these end.
const MOST_CUT: u32 = 1000;

/// Waits a little for something that was asked for at `begun`.
pub fn nap(begun: Instant) {
    if begun.elapsed() < NAP {
        std::thread::yield_now();
    } else {
        std::thread::sleep(NAP);
    }
}

/// What is tried again after a while, but not for ever.
pub struct Tries {
    begun: Instant,
    next: Duration,
}

impl Tries {
    /// The first.
    pub fn start() -> Tries {
        Tries {
            begun: Instant::now(),
            next: BETWEEN_TRIES,
        }
    }

    /// Waits for the next one; false: there is none.
    pub fn wait(&mut self, session: &Session<'_>) -> bool {
        let is_left = self.begun.elapsed() < LONGEST;
        if is_left {
            session.rest(self.next);
            self.next = BETWEEN_LATE_TRIES.min(self.next * 2);
        }
        is_left
    }
}

/// How long something that should happen at once is waited for.
pub struct Patience(Instant);

impl Patience {
    /// From now on.
    pub fn start() -> Patience {
        Patience(Instant::now())
    }

    /// Waits a little for this thread to stop; refuses if it will not any more.
    pub fn with_stop_of(&self, pid: i32, tid: i32) -> Answer<()> {
        let waits = self.0.elapsed() > PATIENCE_WITH_A_WAIT && is_uninterruptible(pid, tid);
        if !waits && self.0.elapsed() <= PATIENCE {
            nap(self.0);
            return Ok(());
        }
        let place = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/wchan")).unwrap_or_default();
        Err(Refusal::DoesNotStop { tid, place })
    }
}

/// Thread numbers of a process; those of workers that the kernel has in it, too.
pub fn of(pid: i32) -> Vec<i32> {
    let names = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    names
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// The system call that a thread waits in. None: it runs, or is in the kernel for another reason.
fn call_of(pid: i32, tid: i32) -> Option<i64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    text.split_whitespace()
        .next()?
        .parse()
        .ok()
        .filter(|number| *number >= 0)
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
    let rank = |tid: i32| match call_of(pid, tid) {
        None => 0,
        Some(libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3) => 4,
        // Should we die, it would see an EINTR.
        Some(number) if running::answers_eintr(number) => 3,
        // A rest of a sleep is known to the kernel alone.
        Some(libc::SYS_nanosleep | libc::SYS_clock_nanosleep | libc::SYS_poll) => 2,
        Some(_) => 1,
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
pub struct AllStopped<'s> {
    session: &'s Session<'s>,
    pub threads: Vec<Stopped>,
    /// Those of them, and those that have ended meanwhile.
    known: HashSet<i32>,
    /// Those that are traced, and were not asked to stop yet.
    waiting: Vec<Thread>,
    /// Those that were asked to stop.
    running: Vec<Thread>,
    /// When the first was asked to stop.
    begun: Option<Instant>,
}

impl AllStopped<'_> {
    /// Stops all threads of the process and keeps them if `judge` says so; else they are let go, and it is tried again after a while. The
    /// refusal is the last that `judge` gave.
    pub fn of<'s, T>(
        session: &'s Session<'s>,
        mut judge: impl FnMut(&mut AllStopped<'_>) -> Answer<Option<T>>,
    ) -> Answer<(AllStopped<'s>, T)> {
        let mut tries = Tries::start();
        loop {
            let refusal = match AllStopped::try_of(session) {
                Ok(mut all) => {
                    let answer = judge(&mut all)?;
                    // Then nothing more is begun.
                    match answer.filter(|_| !session.standing.is_over()) {
                        Some(answer) => return Ok((all, answer)),
                        None if session.standing.is_over() => all.stand_too_long(),
                        None => Refusal::InTheWay { tid: session.pid() },
                    }
                }
                Err(refusal @ (Refusal::DoesNotStop { .. } | Refusal::StandsTooLong { .. })) => refusal,
                Err(refusal) => return Err(refusal),
            };
            if !tries.wait(session) {
                return Err(refusal);
            }
        }
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.session.pid()
    }

    fn try_of<'s>(session: &'s Session<'s>) -> Answer<AllStopped<'s>> {
        let pid = session.pid();
        ask_those_that_nothing_interrupts(session)?;
        let answers_eintr = |tid: &i32| call_of(pid, *tid).is_some_and(running::answers_eintr);
        let with_care: HashSet<i32> = of(pid).into_iter().filter(answers_eintr).collect();
        let mut all = AllStopped {
            session,
            threads: Vec::new(),
            known: HashSet::new(),
            waiting: Vec::new(),
            running: Vec::new(),
            begun: None,
        };
        let begun = Instant::now();
        let mut cut = 0;
        loop {
            all.are_in_time()?;
            let listing = Listing::of(pid);
            let is_whole = listing.is_whole();
            let is_new = |tid: &i32| !all.known.contains(tid);
            let new: Vec<_> = listing.tids.into_iter().filter(is_new).collect();
            if new.is_empty() && is_whole {
                let nobody = all.threads.is_empty();
                return if nobody { Err(Error::Gone.into()) } else { Ok(all) };
            }
            if new.is_empty() {
                cut += 1;
                if cut > MOST_CUT {
                    let why = format!("/proc/{pid}/task does not show all of its threads");
                    return Err(Error::Unsupported(why).into());
                }
                nap(begun);
                continue;
            }
            // Traced before the first stands: PTRACE_SEIZE waits for an execve that has begun.
            for tid in new {
                let traced = all.trace(tid)?;
                all.waiting.extend(traced);
            }
            let is_one_by_one = |thread: &mut Thread| with_care.contains(&thread.tracee.pid());
            let one_by_one: Vec<Thread> = all.waiting.extract_if(.., is_one_by_one).collect();
            let at_once = std::mem::replace(&mut all.waiting, one_by_one);
            all.begun.get_or_insert_with(Instant::now);
            session.standing.begin();
            let mut asked = Ok(());
            for thread in at_once {
                asked = asked.and(all.ask_to_stop(thread));
            }
            asked?;
            all.collect()?;
            // Should we die, no more than one of them is told EINTR. And they stand for the shortest time, if the others do not stop not at all:
            // their timeouts begin anew.
            while let Some(thread) = all.waiting.pop() {
                all.ask_to_stop(thread)?;
                all.collect()?;
            }
        }
    }

    /// `None`: it is none of those that have to stand.
    fn trace(&mut self, tid: i32) -> Answer<Option<Thread>> {
        self.known.insert(tid);
        match self.session.thread(tid) {
            Err(_) if self.needs_not_stand(tid) => Ok(None),
            traced => traced.map(Some),
        }
    }

    fn ask_to_stop(&mut self, thread: Thread) -> Answer<()> {
        let tid = thread.tracee.pid();
        let asked = thread.tracee.interrupt();
        self.running.push(thread);
        match asked {
            Err(_) if self.needs_not_stand(tid) => Ok(()),
            asked => Ok(asked?),
        }
    }

    fn are_in_time(&self) -> Answer<()> {
        if self.session.standing.is_over() {
            return Err(self.stand_too_long());
        }
        Ok(())
    }

    fn stand_too_long(&self) -> Refusal {
        Refusal::StandsTooLong {
            threads: self.threads.len(),
        }
    }

    /// A first thread that has ended is shown for as long as there are others.
    fn needs_not_stand(&self, tid: i32) -> bool {
        has_ended(self.session.pid(), tid) || checks::is_worker(self.session.pid(), tid)
    }

    /// Waits until all that were asked to stop do.
    fn collect(&mut self) -> Answer<()> {
        let patience = Patience::start();
        while !self.running.is_empty() {
            for thread in std::mem::take(&mut self.running) {
                match thread.tracee.event(false) {
                    Ok(None) => self.running.push(thread),
                    // Of ours alone: nobody else is told its end.
                    Ok(Some(Event::Exited)) | Err(_) => {}
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
            self.are_in_time()?;
            if let Some(first) = self.running.first() {
                patience.with_stop_of(self.session.pid(), first.tracee.pid())?;
            }
        }
        Ok(())
    }
}

impl Drop for AllStopped<'_> {
    fn drop(&mut self) {
        for stopped in &self.threads {
            stopped.thread.go_on(stopped.at);
        }
        for thread in self.running.drain(..).chain(self.waiting.drain(..)) {
            self.session.keep(thread);
        }
        self.session.standing.end();
        if let Some(begun) = self.begun {
            self.session.note_pause(begun.elapsed());
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

/// Lets a thread go on from where it stands, as it would without us; `is_held`: it stays traced.
pub fn go_on(tracee: &Tracee, from: Event, is_held: bool) {
    // One that is gone needs nothing any more.
    let _ = match from {
        Event::JobStop if is_held => tracee.listen(),
        _ if is_held => tracee.resume(false, from.signal()),
        _ => tracee.let_go(from.signal()),
    };
}

/// The state of a thread (proc_pid_stat(5)).
pub fn state(pid: i32, tid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether it is none of the living.
pub fn has_ended(pid: i32, tid: i32) -> bool {
    matches!(state(pid, tid), None | Some('Z' | 'X'))
}

/// Refuses where a thread waits in the kernel and would not stop, before any other thread has been disturbed. That one is asked to stop as soon
/// as it can.
fn ask_those_that_nothing_interrupts(session: &Session<'_>) -> Answer<()> {
    let pid = session.pid();
    for tid in of(pid) {
        let patience = Patience::start();
        while is_uninterruptible(pid, tid) {
            if let Err(refusal) = patience.with_stop_of(pid, tid) {
                if let Ok(thread) = session.thread(tid) {
                    // If it has ended, the next try shows it.
                    let _ = thread.tracee.interrupt();
                    session.keep(thread);
                }
                return Err(refusal);
            }
        }
    }
    Ok(())
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
