//! All threads of a process, stopped at once, and resumed as they were.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::listing::{Listing, call_of, has_ended, is_uninterruptible, is_worker, list, number_of};
use super::priority::Priority;
use super::refusal::{Answer, Refusal};
use super::session::{Session, Thread};
use super::sharers;
use crate::abi::Registers;
use crate::abi::host::running;
use crate::error::{Error, Result};
use crate::remote::nap;
use crate::target::tracee::{Stop, Tracee};

/// Timeout for a thread that waits for a CPU on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for a thread that waits in the kernel uninterruptibly: the parent of a vfork until its child has started a
/// program, or a page fault for the lock of its process's memory, which a thread without a CPU may hold.
const UNINTERRUPTIBLE_TIMEOUT: Duration = Duration::from_millis(50);
/// Longest time for which a stop is tried again: waits of that kind end, and busy machines have their pauses.
const LONGEST: Duration = Duration::from_secs(10);
/// First pause between tries. Each pause is twice as long as the last, so that a timed wait that restarts when it is
/// stopped ends within one.
const BETWEEN_TRIES: Duration = Duration::from_millis(10);
const BETWEEN_LATE_TRIES: Duration = Duration::from_millis(640);

/// Number of threads that are looked at in vain before a pause. Threads stop about in the order in which they are asked.
const LOOKS: usize = 8;

/// Longest time for which threads whose call returns EINTR are stopped one by one. If it would take longer, because there
/// are thousands of them or the CPUs are busy, the deadline might pass. A few are always stopped one by one.
const ONE_BY_ONE: Duration = Duration::from_millis(20);
/// Number of them that are asked to stop at the same time then.
const MOST_TOGETHER: usize = 16;

/// Limit of incomplete listings that show no new thread. A listing is incomplete where a thread ended while it was
/// read; such a sequence normally ends soon.
const MOST_CUT: u32 = 1000;

/// Tries with pauses, for a limited time.
pub struct Tries {
    begun: Instant,
    next: Duration,
}

impl Tries {
    /// Starts the first try.
    pub fn start() -> Tries {
        Tries {
            begun: Instant::now(),
            next: BETWEEN_TRIES,
        }
    }

    /// Waits for the next try; returns false if there is none.
    pub fn wait(&mut self, session: &Session<'_>) -> bool {
        let is_left = self.begun.elapsed() < LONGEST;
        if is_left {
            session.rest(self.next);
            self.next = BETWEEN_LATE_TRIES.min(self.next * 2);
        }
        is_left
    }
}

/// Timeout for the stop of a thread, which should happen at once.
pub struct StopTimeout(Instant);

impl StopTimeout {
    /// Starts the timeout.
    pub fn start() -> StopTimeout {
        StopTimeout(Instant::now())
    }

    /// Waits a little for this thread to stop; refuses after the timeout.
    pub fn wait(&self, pid: i32, tid: i32) -> Answer<()> {
        self.check(pid, tid)?;
        nap(self.0);
        Ok(())
    }

    /// Refuses after the timeout for this thread.
    fn check(&self, pid: i32, tid: i32) -> Answer<()> {
        let waits = self.0.elapsed() > UNINTERRUPTIBLE_TIMEOUT && is_uninterruptible(pid, tid);
        if !waits && self.0.elapsed() <= TIMEOUT {
            return Ok(());
        }
        let place = fastpath_os::wchan(format!("{pid}/task/{tid}"));
        Err(Refusal::DoesNotStop { tid, place })
    }
}

/// A stopped thread.
pub struct Stopped {
    thread: Thread,
    pub registers: Registers,
    /// Stop in which it is.
    stop: Stop,
}

/// All threads of a process, stopped. They go on when this is dropped.
pub struct AllStopped<'s> {
    session: &'s Session<'s>,
    pub threads: Vec<Stopped>,
    /// Ids of the threads in all three lists, and of those that have ended meanwhile.
    known: HashSet<i32>,
    /// Threads that are traced and have not been asked to stop yet.
    waiting: Vec<Thread>,
    /// Threads that were asked to stop.
    running: VecDeque<Thread>,
    /// Time at which the first was asked to stop.
    begun: Option<Instant>,
    /// Priority of this thread since then.
    priority: Option<Priority>,
}

impl AllStopped<'_> {
    /// Stops all threads of the process and keeps them stopped if `judge` does not refuse; else lets them go, and tries
    /// again after a while: its refusal is returned at last. An error of `judge` is returned at once.
    pub fn stop<'s, T>(
        session: &'s Session<'s>,
        mut judge: impl FnMut(&mut AllStopped<'_>) -> Answer<Answer<T>>,
    ) -> Answer<(AllStopped<'s>, T)> {
        let mut tries = Tries::start();
        loop {
            let refusal = match AllStopped::try_of(session) {
                Ok(mut all) => {
                    let answer = judge(&mut all)?;
                    // After the deadline no further step is started.
                    match answer {
                        _ if session.stop_time.is_over() => all.stopped_too_long(),
                        Ok(answer) => return Ok((all, answer)),
                        Err(refusal) => refusal,
                    }
                }
                Err(
                    refusal @ (Refusal::DoesNotStop { .. } | Refusal::StoppedTooLong { .. } | Refusal::Shares { .. }),
                ) => refusal,
                Err(refusal) => return Err(refusal),
            };
            if !tries.wait(session) {
                return Err(refusal);
            }
        }
    }

    /// Returns the process id.
    pub fn pid(&self) -> i32 {
        self.session.pid()
    }

    fn try_of<'s>(session: &'s Session<'s>) -> Answer<AllStopped<'s>> {
        let pid = session.pid();
        refuse_uninterruptible(session)?;
        let mut all = AllStopped {
            session,
            threads: Vec::new(),
            known: HashSet::new(),
            waiting: Vec::new(),
            running: VecDeque::new(),
            begun: None,
            priority: None,
        };
        let begun = Instant::now();
        let mut cut = 0;
        loop {
            all.are_in_time()?;
            // Stopped threads start no others.
            if !all.threads.is_empty() && all.threads.len() == number_of(pid) {
                return sharers::refuse_new(session).map(|()| all);
            }
            let listing = Listing::read(pid);
            let is_whole = listing.is_whole();
            let is_new = |tid: &i32| !all.known.contains(tid);
            let new: Vec<_> = listing.tids.into_iter().filter(is_new).collect();
            if new.is_empty() && is_whole {
                return match all.threads.is_empty() {
                    true => Err(Error::Gone.into()),
                    false => sharers::refuse_new(session).map(|()| all),
                };
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
            // Traced before the first thread stops: PTRACE_SEIZE waits for an execve that has begun.
            for tid in new {
                let traced = all.trace(tid)?;
                all.waiting.extend(traced);
            }
            all.stop_waiting()?;
        }
    }

    /// Stops the threads that are traced already.
    fn stop_waiting(&mut self) -> Answer<()> {
        let pid = self.pid();
        let answers_eintr = |thread: &mut Thread| {
            let call = call_of(pid, thread.tracee.pid());
            call.is_some_and(|number| running::ANSWERS_EINTR.contains(&number))
        };
        // The first threads are asked while all run.
        let (at_once, one_by_one) = match self.begun {
            None => {
                let with_care: Vec<Thread> = self.waiting.extract_if(.., answers_eintr).collect();
                (std::mem::take(&mut self.waiting), with_care)
            }
            Some(_) => (std::mem::take(&mut self.waiting), Vec::new()),
        };
        let count = at_once.len() + one_by_one.len();
        self.threads.reserve(count);
        self.running.reserve(count);
        self.waiting = one_by_one;
        self.begun.get_or_insert_with(Instant::now);
        self.session.stop_time.begin();
        let priority = self.priority.get_or_insert_with(Priority::of_this_thread);
        priority.before_all();
        let mut asked = Ok(());
        for thread in at_once {
            asked = asked.and(self.ask_to_stop(thread));
        }
        asked?;
        self.priority.iter().for_each(Priority::above_others);
        self.collect(0)?;
        // One by one: if fastpath dies, at most one of them gets EINTR. Their stops are the shortest, and do not
        // happen if the others do not stop: a stop restarts their timeouts.
        let begun = Instant::now();
        let mut together = 1;
        let mut stopped = 0;
        while let Some(thread) = self.waiting.pop() {
            self.ask_to_stop(thread)?;
            self.collect(together - 1)?;
            stopped += 1;
            let left = self.waiting.len();
            if left > MOST_TOGETHER && begun.elapsed() / stopped * left as u32 > ONE_BY_ONE {
                together = MOST_TOGETHER;
            }
        }
        self.collect(0)?;
        self.priority.iter().for_each(Priority::before_all);
        Ok(())
    }

    /// Traces a thread; returns `None` for one that need not stop.
    fn trace(&mut self, tid: i32) -> Answer<Option<Thread>> {
        self.known.insert(tid);
        match self.session.thread(tid) {
            Err(_) if self.need_not_stop(tid) => Ok(None),
            traced => traced.map(Some),
        }
    }

    fn ask_to_stop(&mut self, thread: Thread) -> Answer<()> {
        let tid = thread.tracee.pid();
        let asked = thread.tracee.interrupt();
        self.running.push_back(thread);
        match asked {
            Err(_) if self.need_not_stop(tid) => Ok(()),
            asked => Ok(asked?),
        }
    }

    fn are_in_time(&self) -> Answer<()> {
        if self.session.stop_time.is_over() {
            return Err(self.stopped_too_long());
        }
        Ok(())
    }

    fn stopped_too_long(&self) -> Refusal {
        Refusal::StoppedTooLong {
            threads: self.threads.len(),
        }
    }

    /// Returns whether a thread need not stop. A first thread that has ended is listed for as long as there are others.
    fn need_not_stop(&self, tid: i32) -> bool {
        has_ended(self.session.pid(), tid) || is_worker(self.session.pid(), tid)
    }

    /// Waits until no more than `left` of the threads that were asked to stop have not stopped.
    fn collect(&mut self, left: usize) -> Answer<()> {
        let timeout = StopTimeout::start();
        let mut last = Instant::now();
        let mut in_vain = 0;
        while self.running.len() > left
            && let Some(thread) = self.running.pop_front()
        {
            match thread.tracee.event_with_registers(false) {
                Ok(None) => {
                    let tid = thread.tracee.pid();
                    self.running.push_back(thread);
                    in_vain += 1;
                    if in_vain >= LOOKS.min(self.running.len()) {
                        in_vain = 0;
                        self.are_in_time()?;
                        timeout.check(self.pid(), tid)?;
                        nap(last);
                    }
                    continue;
                }
                // The end of a thread is reported to its tracer only.
                Ok(Some((Stop::Exited, _))) => {}
                Err(_) if self.need_not_stop(thread.tracee.pid()) => {}
                Err(e) => {
                    self.session.keep(thread);
                    return Err(e.into());
                }
                // A thread without registers has been killed since its stop.
                Ok(Some((stop, registers))) => {
                    let registers = registers.or_else(|| thread.tracee.registers().ok());
                    self.threads.extend(registers.map(|registers| Stopped {
                        thread,
                        registers,
                        stop,
                    }));
                }
            }
            in_vain = 0;
            last = Instant::now();
        }
        self.are_in_time()
    }
}

impl Drop for AllStopped<'_> {
    fn drop(&mut self) {
        self.priority.iter().for_each(Priority::before_all);
        for stopped in &self.threads {
            stopped.thread.go_on(stopped.stop);
        }
        for thread in self.running.drain(..).chain(self.waiting.drain(..)) {
            self.session.keep(thread);
        }
        self.session.stop_time.end();
        if let Some(begun) = self.begun {
            self.session.note_pause(begun.elapsed());
        }
        self.priority = None;
    }
}

impl Stopped {
    /// Returns the thread id.
    pub fn tid(&self) -> i32 {
        self.thread.tracee.pid()
    }

    /// Returns the tracee, for access to the memory that all threads share.
    pub fn tracee(&mut self) -> &mut Tracee {
        &mut self.thread.tracee
    }

    /// Returns the tracee, for reading the thread's state.
    pub fn look(&self) -> &Tracee {
        &self.thread.tracee
    }

    /// Makes the thread go on at `pc`, even if fastpath dies.
    pub fn move_to(&mut self, pc: u64) -> Result<()> {
        self.stop = running::move_to(&self.thread.tracee, self.stop, &mut self.registers, pc)?;
        Ok(())
    }
}

/// Refuses if a thread waits in the kernel and would not stop, before any other thread is disturbed. That thread is
/// asked to stop as soon as it can.
fn refuse_uninterruptible(session: &Session<'_>) -> Answer<()> {
    let pid = session.pid();
    for tid in list(pid) {
        let timeout = StopTimeout::start();
        while is_uninterruptible(pid, tid) {
            if let Err(refusal) = timeout.wait(pid, tid) {
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
