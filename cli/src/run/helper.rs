//! The helper: it publishes the page, injects programs at their exec, and ends when no process of the tree is left. The
//! program never sees it as a child.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastpath_helper::grant;
use fastpath_helper::log::Log;
use fastpath_helper::policy::DaemonsPolicy;
use fastpath_helper::process::{self, Surroundings};
use fastpath_inject::Shared;
use fastpath_inject::attendant::{Attendant, Fate, First};
use fastpath_inject::{Cache, InjectionConfig, Permissions};
use fastpath_page::{ClockSet, Grant};
use fastpath_publish::evidence::Trust;
use fastpath_publish::{Offsets, Publisher};

use super::selection::Selection;
use super::timeline::Timeline;
use super::trial::Trial;
use crate::args;
use crate::output::{note, warn};

/// Longest delay of a program's start for its first anchor, with `--require`. The anchor takes about a millisecond; a
/// program that starts without one is on the kernel's path until it is there.
const FIRST_ANCHOR: Duration = Duration::from_millis(20);
/// Time between the program's start and the examination of the counter, which takes time on all CPUs. A program that has
/// ended by then, as `true` has, needs neither that nor a publisher.
const UNDISTURBED: Duration = Duration::from_millis(1);

/// Source of the page and the mailbox for programs.
pub struct Source {
    pub clocks: ClockSet,
    pub mailbox: Shared,
    /// The grant of the host's daemon; `None`: the helper publishes.
    pub grant: Option<Grant>,
    /// The policy of the host's daemon, if one runs.
    pub policy: Option<DaemonsPolicy>,
}

/// Starts the helper; returns when it traces this process, which must then exec.
pub fn leave_behind(
    options: &args::Run,
    selection: &Selection,
    trial: Trial,
    source: Source,
    timeline: Timeline,
    surroundings: Surroundings,
) -> Result<(), String> {
    let failed = |what: &'static str| move |e: std::io::Error| format!("{what}: {e}");
    let (mut ours, theirs) = UnixStream::pair().map_err(failed("socketpair"))?;
    let program = std::process::id() as i32;
    let helper = Helper {
        program,
        channel: theirs,
        clocks: source.clocks,
        mailbox: Arc::new(source.mailbox),
        grant: source.grant,
        policy: source.policy,
        timeline,
        require: options.require,
        quiet: options.quiet,
        trust: super::trust(options),
        without_vdso: options.without_vdso,
        serve: selection.serves(),
        rescue: options.rescue && selection.serves(),
        trial,
        name: options.command[0].to_string_lossy().into_owned(),
        is_declared: process::tracer_must_be_declared(),
    };
    let is_declared = helper.is_declared;

    let ours_there = ours.as_raw_fd();
    let started = process::start(|| {
        // SAFETY: the number is this process's copy of a descriptor that it never uses.
        unsafe { libc::close(ours_there) };
        helper.run(&surroundings)
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

struct Helper {
    program: i32,
    channel: UnixStream,
    clocks: ClockSet,
    mailbox: Arc<Shared>,
    grant: Option<Grant>,
    policy: Option<DaemonsPolicy>,
    timeline: Timeline,
    require: bool,
    quiet: bool,
    trust: Trust,
    without_vdso: bool,
    serve: bool,
    rescue: bool,
    trial: Trial,
    name: String,
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
        if self.require {
            process::settle(surroundings);
            let (grant, mut publisher) = self.grant()?;
            if let Some(publisher) = &mut publisher {
                grant::begin(publisher, self.trust)?;
            }
            self.timeline.mark("start the helper, examine the counter");
            let first = self.trace()?;
            return self.meet(first, grant, publisher);
        }
        let first = self.trace()?;
        self.timeline.mark("start the helper");
        process::settle(surroundings);
        // The program runs from here on: without a grant it is released when this process ends.
        let (grant, publisher) = self.grant().inspect_err(|why| self.complain(why))?;
        self.meet(first, grant, publisher)
    }

    /// Traces the program, and lets it execute its file.
    fn trace(&mut self) -> Result<First, String> {
        let first = First::seize(self.program);
        let answer = match &first {
            Ok(_) => "ok".to_owned(),
            Err(e) => format!("tracing is not possible here: {e}{}", advice()),
        };
        let _ = self.channel.write_all(answer.as_bytes());
        let _ = self.channel.shutdown(std::net::Shutdown::Both);
        first.map_err(|e| e.to_string())
    }

    /// Returns the grant of the host's daemon, or one of a publisher. That one is made here and not in the program's
    /// process: its threads would leave traces in that process's signal handling.
    fn grant(&mut self) -> Result<(Grant, Option<Publisher>), String> {
        if let Some(grant) = self.grant.take() {
            return Ok((grant, None));
        }
        let log = Log::new(self.program, &self.name);
        // The helper runs in the program's time namespace, or in the one that the program enters by its exec.
        let (clocks, offsets) = (self.clocks, Offsets::default());
        let report = move |news: &_| log.tell(news);
        let (grant, publisher) = grant::publish(clocks, offsets, &self.mailbox, self.trust, report)?;
        Ok((grant, Some(publisher)))
    }

    /// Installs in the program at its exec, and serves it and its descendants as long as there are some.
    fn meet(&mut self, first: First, grant: Grant, mut publisher: Option<Publisher>) -> Result<(), String> {
        let Grant {
            page,
            mailbox: kept,
            clocks,
        } = grant;
        let seeded = grant::seeded(&page);
        let mailbox = self.mailbox.clone();
        let config = InjectionConfig {
            page,
            mailbox: Box::new({
                let mailbox = mailbox.clone();
                move || mailbox.reopen()
            }),
            clocks,
            without_vdso: self.without_vdso,
            serve: self.serve,
            rescue: self.rescue,
            allows: DaemonsPolicy::check(self.policy.take()),
            filters: self.trial.filters,
            permissions: Permissions::default(),
            refuses_32_bit: self.trial.refuses_32_bit.clone(),
            ptracer: if self.is_declared { std::process::id() } else { 0 },
            scans: Cache::default(),
        };
        fastpath_inject::prepare(&config);
        let attendant = Attendant::new(config, mailbox.clone());
        let timeline = RefCell::new(std::mem::replace(&mut self.timeline, Timeline::start(false)));
        let before = || {
            timeline.borrow_mut().mark("exec");
            if self.require {
                let begun = Instant::now();
                let waits = || !seeded() && begun.elapsed() < FIRST_ANCHOR;
                match &mut publisher {
                    Some(publisher) => publisher.run(waits),
                    None => {
                        while waits() {
                            std::thread::sleep(Duration::from_micros(50));
                        }
                    }
                }
                timeline.borrow_mut().mark("calibrate and publish");
            }
        };
        let is_served = Cell::new(false);
        let runs = attendant.meet_first(first, self.require, before, |result| {
            timeline.borrow_mut().mark("inject");
            timeline.borrow().report(note);
            is_served.set(result.is_ok());
            self.installed(result)
        });
        if !runs {
            return Ok(());
        }
        let others = attendant.clone();
        process::spawn(move || others.serve())?;
        // The mailbox was in use until the program mapped it.
        drop(kept);
        let is_needed = || attendant.is_busy() || mailbox.in_use();
        if let Some(publisher) = publisher.as_mut().filter(|_| !self.require) {
            std::thread::sleep(UNDISTURBED);
            if is_needed()
                && let Err(why) = grant::begin(publisher, self.trust)
            {
                mailbox.close();
                if is_served.get() && !self.quiet {
                    warn(format_args!("{why}; {} stays on the kernel's path", self.name));
                }
                return Ok(());
            }
        }
        process::let_go_of_standard_error();
        grant::stay_while(publisher.as_mut(), is_needed);
        Ok(())
    }

    fn installed(&self, result: &fastpath_inject::Result<Option<String>>) -> Fate {
        match result {
            Err(e) if self.require => {
                note(format_args!("{}: not started: {e}", self.name));
                Fate::Exit(super::REQUIREMENT_NOT_MET as u8)
            }
            Err(e) => {
                self.complain(&e.to_string());
                Fate::Run
            }
            Ok(without_children) => {
                if let Some(why) = without_children.as_ref().filter(|_| !self.quiet) {
                    let name = &self.name;
                    warn(format_args!(
                        "{name}: the programs that it executes will not be served: {why}"
                    ));
                }
                Fate::Run
            }
        }
    }

    fn complain(&self, why: &str) {
        if !self.quiet {
            warn(format_args!("{why}; running {} untouched", self.name));
        }
    }
}

/// Returns advice for a refused ptrace.
fn advice() -> String {
    match std::fs::read_to_string(process::YAMA).as_deref().map(str::trim) {
        Ok(mode @ ("2" | "3")) => format!(" ({} is {mode})", process::YAMA),
        _ => " (in a container: it needs a seccomp profile that allows ptrace, or the capability SYS_PTRACE)".into(),
    }
}
