//! The helper of `run`: it publishes the page, injects programs at their exec, and ends when no process of the tree is
//! left. The program never sees it as a child.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastpath_daemon::Service;
use fastpath_daemon::record::{Record, Requester, Target, What, executable_of};
use fastpath_inject::attendant::{Attendant, First, Outcome};
use fastpath_inject::{Installed, Shared};
use fastpath_page::{ClockSet, Grant};
use fastpath_publish::{Offsets, Publisher};

use crate::attendant;
use crate::grant::{self, Purpose};
use crate::log::Log;
use crate::parent;
use crate::policy::DaemonsPolicy;
use crate::process::{self, Surroundings};
use crate::timeline::Timeline;
use crate::trial::{self, Trial};

/// Exit status where `--require` is not met; `env` uses it for its own failures.
pub const REQUIREMENT_NOT_MET: u8 = 125;

/// Longest delay of a program's start for its first anchor, with `--require`. The anchor takes about a millisecond; a
/// program that starts without one is on the kernel's path until it is there.
const FIRST_ANCHOR: Duration = Duration::from_millis(20);
/// Time between the program's start and its record, and the examination of the counter, which takes time on all CPUs. A
/// program that has ended by then, as `true` has, needs no examination, and no publisher.
const UNDISTURBED: Duration = Duration::from_millis(2);

/// The program that this process becomes, and how it is served.
pub struct Program {
    /// Its name for messages.
    pub name: String,
    /// What it and its descendants get. Without clocks, they only get the hook.
    pub service: Service,
    /// Whether programs start as on a host whose kernel gives them no vDSO.
    pub without_vdso: bool,
    /// Whether it is not started if it cannot be served.
    pub require: bool,
    /// Durations of its start.
    pub timeline: Timeline,
    /// Tells the user something.
    pub note: fn(&dyn Display),
    /// Warns the user, unless that is not wanted.
    pub warn: fn(&dyn Display),
}

/// Starts the helper; returns when it traces this process, which must then exec.
///
/// The host's daemon grants the page if it has one for this process. Otherwise the helper publishes: it still has to
/// compare the CPUs' counters, as the daemon did. Where programs only get the hook, no process reads the page.
pub fn leave_behind(mut program: Program, surroundings: &Surroundings) -> Result<(), String> {
    let failed = |what: &'static str| move |e: std::io::Error| format!("{what}: {e}");
    let trial = trial::seccomp_allows_surgery()?;
    let mailbox = Shared::create().map_err(|e| e.to_string())?;
    let clocks = program.service.set();
    let purpose = Purpose { clocks, process: None };
    let asks = clocks != ClockSet::NONE;
    let grant = asks.then(|| grant::of_host(purpose, Some(&mailbox)).ok()).flatten();
    program.timeline.mark("ask fastpathd");
    let (mut ours, theirs) = UnixStream::pair().map_err(failed("socketpair"))?;
    let helper = Helper {
        pid: std::process::id() as i32,
        start_time: fastpath_os::Stat::read("self").ok().map(|stat| stat.start_time),
        program,
        channel: theirs,
        mailbox: Arc::new(mailbox),
        grant,
        trial,
        is_declared: process::tracer_must_be_declared(),
    };
    let is_declared = helper.is_declared;
    let ours_there = ours.as_raw_fd();
    let started = process::start(|| {
        // SAFETY: the number is this process's copy of a descriptor that it never uses.
        unsafe { libc::close(ours_there) };
        helper.run(surroundings)
    })
    .map_err(failed("clone"))?;
    let ready = wait_until_ready(&mut ours, is_declared);
    if ready.is_err() {
        started.end();
    }
    ready
}

/// Waits until the helper traces this process; first allows that, if it must be declared.
fn wait_until_ready(channel: &mut UnixStream, is_declared: bool) -> Result<(), String> {
    let gone = |_| "the helper ended before it was ready".to_owned();
    if is_declared {
        let mut pid = [0; 4];
        channel.read_exact(&mut pid).map_err(gone)?;
        // Yama (Documentation/admin-guide/LSM/Yama.rst).
        // SAFETY: prctl with integers.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, u32::from_le_bytes(pid) as libc::c_ulong, 0, 0, 0) };
        channel.write_all(b"g").map_err(gone)?;
    }
    let mut answer = String::new();
    channel.read_to_string(&mut answer).map_err(gone)?;
    match answer.as_str() {
        "ok" => Ok(()),
        "" => Err(gone(std::io::Error::last_os_error())),
        why => Err(why.to_owned()),
    }
}

/// What is recorded of a program at its exec: the number of changed places, or a word and a sentence; how long it was
/// stopped; and a handle of its file.
type Recorded = (Result<usize, (&'static str, String)>, Option<Duration>, Option<OwnedFd>);

struct Helper {
    pid: i32,
    start_time: Option<u64>,
    program: Program,
    channel: UnixStream,
    mailbox: Arc<Shared>,
    grant: Option<Grant>,
    trial: Trial,
    /// Whether this process must be declared as a tracer.
    is_declared: bool,
}

impl Helper {
    fn run(mut self, surroundings: &Surroundings) -> i32 {
        match self.work(surroundings) {
            Ok(()) => 0,
            Err(e) => {
                let _ = self.channel.write_all(e.as_bytes());
                1
            }
        }
    }

    /// Traces the program before anything else, so that its exec goes on. With `--require`, the program waits until the
    /// counter is examined.
    fn work(&mut self, surroundings: &Surroundings) -> Result<(), String> {
        if self.is_declared {
            self.channel
                .write_all(&std::process::id().to_le_bytes())
                .map_err(|e| e.to_string())?;
            self.channel.read_exact(&mut [0]).map_err(|e| e.to_string())?;
        }
        process::require_room()?;
        if self.program.require {
            let policy = self.policy();
            let is_scheduled = process::settle(surroundings);
            let (grant, mut publisher) = self.grant()?;
            if let Some(publisher) = &mut publisher {
                is_scheduled?;
                grant::begin(publisher, self.program.service.trust)?;
            }
            self.program.timeline.mark("start the helper, examine the counter");
            let attendant = self.attendant(policy, &grant)?;
            // The last that may fail. From here on, the program is served or does not run.
            let first = self.trace()?;
            return self.inject(first, &attendant, grant, publisher);
        }
        let first = self.trace()?;
        self.program.timeline.mark("start the helper");
        let policy = self.policy();
        let is_scheduled = process::settle(surroundings);
        // The program runs from here on: without a grant it is released when this process ends.
        let prepared = self.grant().and_then(|(grant, publisher)| {
            let attendant = self.attendant(policy, &grant)?;
            Ok((attendant, grant, publisher))
        });
        let (attendant, grant, publisher) = prepared.inspect_err(|why| {
            self.complain(why);
            self.record_refusal("failed", why, self.target());
        })?;
        if let (Some(_), Err(why)) = (&publisher, is_scheduled) {
            let name = &self.program.name;
            (self.program.warn)(&format_args!(
                "{name}: {why}: while it uses that, its clocks are the kernel's"
            ));
        }
        self.inject(first, &attendant, grant, publisher)
    }

    /// Returns the policy of the host's daemon, which decides at each exec. The path of its socket may be relative to the
    /// user's directory.
    fn policy(&self) -> Option<DaemonsPolicy> {
        if self.program.service.set() == ClockSet::NONE {
            return None;
        }
        DaemonsPolicy::find().unwrap_or_else(|failure| {
            (self.program.warn)(&format_args!("{failure}; fastpath publishes for this program itself"));
            None
        })
    }

    /// Traces the program, and lets it execute its file.
    fn trace(&mut self) -> Result<First, String> {
        let first = First::seize(self.pid, self.program.require);
        let answer = match &first {
            Ok(_) => "ok".to_owned(),
            Err(e) => format!("tracing is not possible here: {e}{}", advice()),
        };
        // A program that never gets an answer ends with this process.
        let told = self.channel.write_all(answer.as_bytes());
        told.and_then(|()| self.channel.shutdown(std::net::Shutdown::Both))
            .map_err(|e| format!("the program's channel: {e}"))?;
        first.map_err(|e| e.to_string())
    }

    /// Returns the grant of the host's daemon, or one of a publisher. That one is made here and not in the program's
    /// process: its threads would leave traces in that process's signal handling.
    fn grant(&mut self) -> Result<(Grant, Option<Publisher>), String> {
        if let Some(grant) = self.grant.take() {
            return Ok((grant, None));
        }
        let log = Log::new(self.identity());
        // The helper runs in the program's time namespace, or in the one that the program enters by its exec.
        let (clocks, offsets) = (self.program.service.set(), Offsets::default());
        let report = move |news: &_| log.record_news(news);
        let (grant, publisher) = grant::publish(clocks, offsets, &self.mailbox, self.program.service.trust, report)?;
        Ok((grant, Some(publisher)))
    }

    /// Starts the attendant that gives programs the page of the grant.
    fn attendant(&mut self, policy: Option<DaemonsPolicy>, grant: &Grant) -> Result<Arc<Attendant>, String> {
        let page = grant.page.try_clone().map_err(|e| format!("the page: {e}"))?;
        let (service, without_vdso) = (&self.program.service, self.program.without_vdso);
        let trial = std::mem::take(&mut self.trial);
        let attendant = attendant::new(page, grant.clocks, &self.mailbox, service, policy, trial, without_vdso);
        attendant::start(attendant, &self.mailbox)
    }

    /// Installs in the program at its exec, and serves it and its descendants as long as there are some.
    fn inject(
        &mut self,
        first: First,
        attendant: &Attendant,
        grant: Grant,
        mut publisher: Option<Publisher>,
    ) -> Result<(), String> {
        let Grant {
            page: shown,
            mailbox: kept,
            ..
        } = grant;
        let process = grant::pidfd(self.pid);
        let mailbox = self.mailbox.clone();
        let timeline = RefCell::new(std::mem::replace(&mut self.program.timeline, Timeline::start(false)));
        let stopped = Cell::new(None);
        let before = || {
            stopped.set(Some(Instant::now()));
            timeline.borrow_mut().mark("exec");
            if self.program.require {
                match &mut publisher {
                    Some(publisher) => publisher.run(grant::awaits_anchor(&shown, FIRST_ANCHOR)),
                    None => drop(grant::wait_for_anchor(&shown, FIRST_ANCHOR)),
                }
                timeline.borrow_mut().mark("calibrate and publish");
            }
        };
        let is_served = Cell::new(false);
        let mut outcome = None;
        let runs = attendant.inject_first(first, self.program.require, before, |result| {
            timeline.borrow_mut().mark("inject");
            timeline.borrow().report(|line| (self.program.note)(&line));
            is_served.set(result.is_ok());
            outcome = Some((
                result
                    .as_ref()
                    .map(|installed| installed.sites)
                    .map_err(|e| (e.word(), e.to_string())),
                stopped.get().map(|since: Instant| since.elapsed()),
                executable_of(self.pid),
            ));
            self.installed(result)
        });
        // The mailbox was in use until the program mapped it.
        drop(kept);
        if runs && !self.program.require {
            std::thread::sleep(UNDISTURBED);
        }
        let mut target = self.target();
        if let Some(outcome) = outcome {
            self.record(&mut target, outcome);
        }
        if !runs {
            return Ok(());
        }
        if let Some(publisher) = publisher.as_mut().filter(|_| !self.program.require)
            && mailbox.in_use()
            && let Err(why) = grant::begin(publisher, self.program.service.trust)
        {
            if is_served.get() {
                self.record_refusal("counter-distrusted", &why, target);
                (self.program.warn)(&format_args!("{why}; {} stays on the kernel's path", self.program.name));
            }
            return Ok(());
        }
        process::release_standard_error();
        process::trim_heap();
        let mut log = Log::new(target);
        let is_needed = || {
            log.record_served(attendant.served(), false);
            log.record_unserved(&mailbox);
            mailbox.in_use() && !parent::waits_for_helpers_only()
        };
        grant::stay_while(publisher.as_mut(), process.as_ref(), is_needed);
        log.record_served(attendant.served(), true);
        Ok(())
    }

    /// Names the program's process. No more is read before its exec, for which that would take time.
    fn identity(&self) -> Target {
        Target {
            pid: Some(self.pid),
            start_time: self.start_time,
            ..Target::default()
        }
    }

    /// Returns what is known of the program's process, though it may have ended: its user and cgroup are this process's.
    fn target(&self) -> Target {
        let own = Target::read(std::process::id() as i32);
        Target {
            uid: own.uid,
            cgroup: own.cgroup,
            ..self.identity()
        }
    }

    /// Puts on record what became of the program.
    fn record(&self, target: &mut Target, (result, stopped, file): Recorded) {
        if let Some(file) = &file {
            target.set_executable(file);
        }
        match result {
            Ok(sites) => Record {
                sites: Some(sites),
                stopped_us: stopped.map(|time| time.as_micros() as u64),
                ..Record::done(What::Run, self.by(), target.clone())
            }
            .write(),
            Err((word, why)) => self.record_refusal(word, &why, target.clone()),
        }
    }

    fn record_refusal(&self, word: &str, why: &str, target: Target) {
        Record::refused(What::Run, word, why, self.by(), target).write();
    }

    /// Returns who asked: the process became the program.
    fn by(&self) -> Requester {
        Requester {
            by_pid: self.pid,
            ..Requester::this_process()
        }
    }

    fn installed(&self, result: &fastpath_inject::Result<Installed>) -> Outcome {
        match result {
            Err(e) if self.program.require => {
                (self.program.note)(&format_args!("{}: not started: {e}", self.program.name));
                Outcome::Exit(REQUIREMENT_NOT_MET)
            }
            Err(e) => {
                self.complain(&e.to_string());
                Outcome::Run
            }
            Ok(installed) => {
                if let Some(why) = &installed.without_children {
                    let name = &self.program.name;
                    (self.program.warn)(&format_args!(
                        "{name}: the programs that it executes will not be served: {why}"
                    ));
                }
                Outcome::Run
            }
        }
    }

    fn complain(&self, why: &str) {
        (self.program.warn)(&format_args!("{why}; running {} untouched", self.program.name));
    }
}

/// Returns advice for a refused ptrace.
fn advice() -> String {
    match std::fs::read_to_string(process::YAMA).as_deref().map(str::trim) {
        Ok(mode @ ("2" | "3")) => format!(" ({} is {mode})", process::YAMA),
        _ => " (in a container: it needs a seccomp profile that allows ptrace, or the capability SYS_PTRACE)".into(),
    }
}
