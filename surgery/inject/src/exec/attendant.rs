//! Injects into programs as they start: the first one, and every descendant that asks through its mailbox.
//!
//! A thread is traced only from just before its exec to just after it, so debuggers, job control and waits work as
//! without fastpath. Each visit has a thread of its own, because ptrace(2) belongs to a thread.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use nix::sys::ptrace::Options;

use crate::abi::{self, Call};
use crate::error::{Error, Result};
use crate::exec::install::{self, InjectionConfig};
use crate::exec::mailbox::{ABANDONED, Held, InUse, Request, Shared, Taken};
use crate::exec::unserved::Unserved;
use crate::plan::region;
use crate::target::credentials::{Assumed, Credentials};
use crate::target::maps;
use crate::target::tracee::{Stop, Tracee, Until};
use crate::target::view::View;
use crate::target::{self, Status};

/// Longest path that execve takes (limits.h: PATH_MAX).
const PATH_MAX: usize = 4096;
/// Limit of system calls that a thread may make between its request and its exec before it is let go: a signal handler
/// may run there.
const MOST_CALLS: u32 = 256;

/// Shortest and longest time between two checks whether the requesting thread waits already. Between ringing and
/// waiting it executes a few instructions, and may lose its CPU.
const FIRST_NAP: Duration = Duration::from_micros(50);
const LONGEST_NAP: Duration = Duration::from_millis(5);

/// Shortest and longest time between two checks whether an attendant is still needed.
const FIRST_LOOK: Duration = Duration::from_millis(8);
const LATE_LOOKS: Duration = Duration::from_secs(1);
/// Time after which a thread without a request ends, if another one waits for the next.
const IDLE: Duration = Duration::from_secs(2);
/// Most ancestors that are looked at.
const MOST_GENERATIONS: u32 = 64;

/// Most threads that wait for requests; a thread that has answered one ends if there are as many.
const MOST_IDLE: usize = 2;

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
    config: InjectionConfig,
    mailbox: Arc<Shared>,
    /// Number of threads that wait for requests.
    idle: AtomicUsize,
    /// Thread that waits for a request where no other does ([`Attendant::serve_while`]).
    keeper: OnceLock<Thread>,
    /// Process of the first program; 0: none.
    first: AtomicI32,
}

impl Attendant {
    /// Creates an attendant that installs `config` for the threads that ask in `mailbox`.
    pub fn new(config: InjectionConfig, mailbox: Arc<Shared>) -> Arc<Attendant> {
        Arc::new(Attendant {
            config,
            mailbox,
            idle: AtomicUsize::new(0),
            keeper: OnceLock::new(),
            first: AtomicI32::new(0),
        })
    }

    /// Plans what the first program most likely needs, before it is stopped.
    pub fn prepare(&self) {
        install::prepare(&self.config);
    }

    /// Serves the first program: waits for its exec, then calls `before`, installs, and asks `installed` what to do with
    /// the result (without an error: why the programs that it executes will not be served, if so). Returns whether the
    /// program runs, untraced. If not, it has ended, or the end of this thread releases it.
    /// `must_see_execs`: it counts as an error if the exec of another program would not be noticed.
    pub fn inject_first(
        &self,
        first: First,
        must_see_execs: bool,
        before: impl FnOnce(),
        installed: impl FnOnce(&Result<Option<String>>) -> Outcome,
    ) -> bool {
        let First(mut tracee) = first;
        self.first.store(tracee.pid(), Ordering::Relaxed);
        let done = match self.wait_for_exec(&mut tracee, false) {
            // The process ended without an exec, and reported the reason itself.
            Ok(false) => return false,
            Ok(true) => {
                before();
                self.mailbox.keep_in_use().and_then(|mailbox| {
                    let status = status(tracee.pid())?;
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
            let seen = self.mailbox.doorbell();
            self.mailbox.runs();
            let Some(taken) = self.mailbox.take() else {
                let are_held = self.mailbox.free_abandoned(&mut held, ABANDONED);
                let longest = if are_held { ABANDONED / 2 } else { every };
                self.mailbox.wait(seen, Some(longest.min(every)));
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
            let seen = self.mailbox.doorbell();
            self.mailbox.runs();
            let Some(taken) = self.mailbox.take() else {
                let are_held = self.mailbox.free_abandoned(&mut held, ABANDONED);
                let until_end = self.keeper.get().map(|_| IDLE);
                self.mailbox.wait(seen, are_held.then_some(ABANDONED / 2).or(until_end));
                if until_end.is_some() && idle_since.elapsed() >= IDLE {
                    self.idle.fetch_sub(1, Ordering::AcqRel);
                    self.wake_keeper();
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

    /// Makes the keeper wait for requests again; returns false if there is none.
    fn wake_keeper(&self) -> bool {
        self.keeper.get().map(Thread::unpark).is_some()
    }

    /// An error leaves a program on the kernel's path: correct, only slower.
    fn answer(&self, taken: Taken) -> Result<()> {
        let mut waiting = Waiting {
            mailbox: &self.mailbox,
            taken: Some(taken),
        };
        let asker = match self.find(&taken) {
            Ok(asker) => asker,
            Err(unserved) => {
                if let Some(why) = unserved {
                    waiting.refuse(why);
                }
                return Ok(());
            }
        };
        let answered = match taken.request {
            Request::Exec { path, dirfd, flags } => self.inject(&mut waiting, asker, path, dirfd, flags),
            Request::Entry => self.second_visit(asker),
        };
        answered.inspect_err(|why| {
            if let Some(why) = unserved(why) {
                self.mailbox.count(why);
            }
        })
    }

    /// Returns the thread that asked. The mailbox may contain anything, so a thread counts as the one that asked only if
    /// it waits for the answer, on the futex of that slot: no other thread is stopped. The error: why none will be
    /// found, unless it has ended.
    fn find(&self, taken: &Taken) -> std::result::Result<Asker, Option<Unserved>> {
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
            pid = status(pid).map_or(0, |status| status.number("PPid").unwrap_or(0));
        }
        pid > 0 && pid == first
    }

    /// Looks whether a thread waits for the answer to this request. Where the kernel does not show the futex, a thread
    /// that maps the mailbox and waits on any counts, and its registers decide once it is stopped.
    fn look(&self, tid: i32, taken: &Taken) -> Look {
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

    /// Returns the address of the region in a process that maps this mailbox.
    fn region(&self, maps: &[maps::Mapping]) -> Option<u64> {
        self.mailbox.mapping(maps)?.start.checked_sub(region::MAILBOX)
    }

    /// Traces a thread that waits in the hook, and stops it there.
    fn stop(asker: Asker) -> Result<(Tracee, Vec<maps::Mapping>)> {
        let Asker { tid, futex, maps } = asker;
        let mut tracee = Tracee::seize(tid, tid, Options::PTRACE_O_TRACEEXEC)?;
        tracee.interrupt()?;
        loop {
            match tracee.wait()? {
                Stop::Interrupt => break,
                Stop::Group => tracee.listen()?,
                Stop::Exited => return Err(Error::Gone),
                stop => tracee.resume(Until::Syscall, stop.signal())?,
            }
        }
        // The thread may have stopped waiting meanwhile, or the number may be another thread's.
        if tracee.registers()?.repeats_wait_on_futex(futex)
            || target::waits_on_futex(tid, futex).is_ok_and(|waits| waits == Some(true))
        {
            return Ok((tracee, maps));
        }
        tracee.detach(0)?;
        Err(Error::Gone)
    }

    fn inject(&self, waiting: &mut Waiting<'_>, asker: Asker, path: u64, dirfd: i32, flags: u32) -> Result<()> {
        let (mut tracee, _) = Self::stop(asker)?;
        let pid = tracee.pid().to_string();
        let target = read_path(&mut tracee, path, flags);
        let checked = target.and_then(|path| {
            let before = Credentials::from_status(&status(tracee.pid())?)?;
            let view = View::read(&pid, dirfd)?;
            // The target names the file: it must not get a file opened that it could not open itself.
            let _rights = Assumed::assume(&before)?;
            view.may_serve(&path).map(|_| before)
        });
        let (before, mailbox) = match checked.and_then(|before| Ok((before, self.mailbox.keep_in_use()?))) {
            Ok(checked) => checked,
            Err(e) => {
                tracee.detach(0)?;
                return Err(e);
            }
        };
        waiting.go();
        let mut registers = tracee.registers()?;
        if registers.end_wait_on_futex() {
            // The hook looks at its slot again; otherwise the kernel would make the call again, and stop for it twice.
            tracee.set_registers(&registers)?;
        }
        tracee.resume(Until::Syscall, 0)?;
        let met = self
            .wait_for_exec(&mut tracee, true)
            .and_then(|happened| match happened {
                true => self.install(&mut tracee, &before, &mailbox),
                false => Ok(()),
            });
        tracee.detach(0).and(met)
    }

    /// Installs in a program that has just started, unless it has rights beyond `before`, those of the program before
    /// it: another file may have replaced the one that was checked.
    fn install(&self, tracee: &mut Tracee, before: &Credentials, mailbox: &InUse<'_>) -> Result<()> {
        let status = status(tracee.pid())?;
        if before.have_grown_to(&Credentials::from_status(&status)?) {
            return Err(Error::Unsupported(
                "it runs with other privileges than its caller's".into(),
            ));
        }
        let unseen = install::install(tracee, &status, &self.config, &mailbox.file, false)?;
        if unseen.is_some() {
            self.mailbox.count(Unserved::Refused);
        }
        Ok(())
    }

    /// Waits until the exec has happened and the new program is stopped before its first instruction. Returns false if
    /// it did not happen; the caller must then let the thread go, if it still exists.
    fn wait_for_exec(&self, tracee: &mut Tracee, asked: bool) -> Result<bool> {
        let mut calls = 0;
        let mut happened = false;
        loop {
            match tracee.wait()? {
                Stop::Exited => return Ok(false),
                // The registers are the new program's, except for the result of the execve, which is set later.
                Stop::Exec if asked => return Ok(true),
                Stop::Exec => happened = true,
                // The exit of the execve itself: its registers are the new program's.
                Stop::Syscall if happened => return Ok(true),
                Stop::Syscall => {
                    let registers = tracee.registers()?;
                    let is = |call| abi::for_registers(&registers).number(call) == registers.system_call();
                    let failed = (is(Call::Execve) || is(Call::Execveat)) && tracee.leaving_call()?.is_some();
                    calls += 1;
                    if asked && (failed || calls > MOST_CALLS) {
                        return Ok(false);
                    }
                }
                Stop::Group => {
                    tracee.listen()?;
                    continue;
                }
                stop @ (Stop::Interrupt | Stop::Signal(_) | Stop::Other) => {
                    tracee.resume(Until::Syscall, stop.signal())?;
                    continue;
                }
            }
            tracee.resume(Until::Syscall, 0)?;
        }
    }

    fn second_visit(&self, asker: Asker) -> Result<()> {
        let (mut tracee, maps) = Self::stop(asker)?;
        let done = self.handle_libraries(&mut tracee, &maps);
        // Detach before the program is released.
        tracee.detach(0)?;
        done
    }

    fn handle_libraries(&self, tracee: &mut Tracee, maps: &[maps::Mapping]) -> Result<()> {
        let region = self.region(maps).ok_or(Error::Gone)?;
        // Only a program that was started through its hook still needs its libraries redirected. In an attached
        // program, the journal lists the changes.
        let entry = tracee.read_words(region + region::STATE, 1, 8)?;
        if entry == [0] {
            return Err(Error::Gone);
        }
        install::install_in_libraries(tracee, &self.config, maps, region)
    }
}

/// Starts a thread that answers requests.
fn start(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    thread::Builder::new().stack_size(256 << 10).spawn(work).map(drop)
}

/// Reads the status of a process or thread.
fn status(pid: i32) -> Result<fastpath_os::Status> {
    fastpath_os::Status::read(pid).map_err(|e| Error::io(format!("/proc/{pid}/status"), e))
}

/// Returns threads, by their numbers here, of processes in inner PID namespaces, in which they have the number `inner`.
fn threads_of_inner_namespaces(inner: i32) -> impl Iterator<Item = i32> {
    let status = |pid: i32| Status::read(&pid.to_string()).ok();
    let processes = fastpath_os::processes().into_iter().flatten();
    let nested = processes.filter(move |pid| status(*pid).is_some_and(|status| status.is_nested));
    let threads = nested.flat_map(|pid| fastpath_os::threads(pid).into_iter().flatten());
    threads.filter(move |tid| status(*tid).is_some_and(|status| status.inner_pid == inner))
}

fn read_path(tracee: &mut Tracee, address: u64, flags: u32) -> Result<OsString> {
    let mut path = Vec::new();
    while path.len() < PATH_MAX {
        let at = address + path.len() as u64;
        let mut chunk = vec![0; (256 - at % 256) as usize];
        tracee.read(at, &mut chunk)?;
        let end = chunk.iter().position(|b| *b == 0);
        path.extend(&chunk[..end.unwrap_or(chunk.len())]);
        if end.is_some() {
            break;
        }
    }
    if path.is_empty() && flags & libc::AT_EMPTY_PATH as u32 == 0 {
        return Err(Error::Gone);
    }
    Ok(OsString::from_vec(path))
}

/// Returns why a program is not served, for the counts. Nothing was to be served if the process has ended, or its exec
/// fails as well: the shell's search for a program asks for each directory.
fn unserved(why: &Error) -> Option<Unserved> {
    match why {
        Error::Gone => None,
        Error::Io { source, .. } => match source.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied => None,
            _ => Some(Unserved::Failed),
        },
        Error::Unsupported(_) | Error::CounterForbidden => Some(Unserved::Refused),
        Error::System { .. } | Error::Remote { .. } | Error::PlaceTaken => Some(Unserved::Failed),
    }
}

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
struct Asker {
    /// Its number in this PID namespace.
    tid: i32,
    /// Address of the word that it waits on.
    futex: u64,
    /// Mappings of its process.
    maps: Vec<maps::Mapping>,
}

/// A thread that waits in its slot. Dropping this releases it, on every exit.
struct Waiting<'a> {
    mailbox: &'a Shared,
    taken: Option<Taken>,
}

impl Waiting<'_> {
    fn go(&mut self) {
        if let Some(taken) = self.taken.take() {
            self.mailbox.go(&taken);
        }
    }

    fn refuse(&mut self, why: Unserved) {
        self.mailbox.count(why);
        if let Some(taken) = self.taken.take() {
            self.mailbox.refuse(&taken);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.go();
    }
}
