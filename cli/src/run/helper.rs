//! The helper: it publishes the page, injects programs at their exec, and ends when no process of the tree is left. The
//! program never sees it as a child.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastpath_helper::grant::{self, Purpose};
use fastpath_helper::log::Log;
use fastpath_helper::process::{self, Surroundings};
use fastpath_inject::Shared;
use fastpath_inject::attendant::{Attendant, Fate};
use fastpath_inject::{Cache, InjectionConfig};
use fastpath_page::{ClockSet, Grant};
use fastpath_publisher::evidence::Trust;

use super::selection::Selection;
use super::timeline::Timeline;
use super::trial::Trial;
use crate::args;
use crate::output::{note, warn};

/// Longest delay of a program's start for its first anchor. The anchor takes about a millisecond; a program that starts
/// without one is on the kernel's path until it is there.
const FIRST_ANCHOR: Duration = Duration::from_millis(20);

/// Source of the page and the mailbox for programs.
pub struct Source {
    pub clocks: ClockSet,
    pub mailbox: Shared,
    /// The grant of the host's daemon; `None`: the helper publishes.
    pub grant: Option<Grant>,
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
        timeline,
        require: options.require,
        quiet: options.quiet,
        trust: super::trust(options),
        without_vdso: options.without_vdso,
        serve: selection.serves(),
        rescue: options.rescue && selection.serves(),
        trial,
        name: options.command[0].to_string_lossy().into_owned(),
    };

    let ours_there = ours.as_raw_fd();
    let started = process::start(|| {
        // SAFETY: the number is this process's copy of a descriptor that it never uses.
        unsafe { libc::close(ours_there) };
        helper.run(&surroundings)
    })
    .map_err(failed("clone"))?;
    let ready = wait_until_ready(&mut ours);
    if ready.is_err() {
        started.end();
    }
    ready
}

/// Allows the helper to trace this process, and waits until it does.
fn wait_until_ready(channel: &mut UnixStream) -> Result<(), String> {
    let gone = |_| "the helper ended before it was ready".to_owned();
    let mut pid = [0; 4];
    channel.read_exact(&mut pid).map_err(gone)?;
    // Where Yama restricts ptrace to ancestors (Documentation/admin-guide/LSM/Yama.rst), this allows the one helper.
    // Elsewhere the call fails, and is not needed.
    // SAFETY: prctl with integers.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, u32::from_le_bytes(pid) as libc::c_ulong, 0, 0, 0) };
    channel.write_all(b"g").map_err(gone)?;
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
    timeline: Timeline,
    require: bool,
    quiet: bool,
    trust: Trust,
    without_vdso: bool,
    serve: bool,
    rescue: bool,
    trial: Trial,
    name: String,
}

impl Helper {
    fn run(mut self, surroundings: &Surroundings) -> i32 {
        process::settle(surroundings);
        match self.work() {
            Ok(()) => 0,
            Err(e) => {
                let _ = self.channel.write_all(e.as_bytes());
                1
            }
        }
    }

    fn work(&mut self) -> Result<(), String> {
        self.channel
            .write_all(&std::process::id().to_le_bytes())
            .map_err(|e| e.to_string())?;
        self.channel.read_exact(&mut [0]).map_err(|e| e.to_string())?;
        let Grant {
            page,
            mailbox: kept,
            clocks,
        } = match self.grant.take() {
            Some(grant) => grant,
            None => self.publish()?,
        };
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
            allows: Box::new(|_| true),
            filters: self.trial.filters,
            refuses_32_bit: self.trial.refuses_32_bit.clone(),
            ptracer: process::ptracer(),
            scans: Cache::default(),
        };
        let attendant = Attendant::new(config, mailbox.clone());
        self.start_visits(&attendant, kept, Box::new(seeded))?;
        grant::stay_while(|| attendant.is_busy() || mailbox.in_use());
        Ok(())
    }

    /// Returns the grant of a private daemon. The daemon is started here and not in the program's process: its threads
    /// would leave traces in that process's signal handling.
    fn publish(&self) -> Result<Grant, String> {
        let purpose = Purpose {
            clocks: self.clocks,
            process: None,
        };
        let log = Log::new(self.program, &self.name);
        grant::of_private(purpose, &self.mailbox, self.trust, self.program, move |news| {
            log.tell(news)
        })
    }

    /// Starts the thread that injects the program, and the thread that serves its descendants.
    fn start_visits(
        &mut self,
        attendant: &Arc<Attendant>,
        kept: OwnedFd,
        seeded: Box<dyn Fn() -> bool + Send>,
    ) -> Result<(), String> {
        let meeting = Meeting {
            _kept: kept,
            channel: self.channel.try_clone().map_err(|e| e.to_string())?,
            seeded,
            timeline: RefCell::new(std::mem::replace(&mut self.timeline, Timeline::start(false))),
            require: self.require,
            quiet: self.quiet,
            name: self.name.clone(),
        };
        let (first, visit, program) = (attendant.clone(), attendant.expect_visit(), self.program);
        process::spawn(move || {
            first.meet_first(
                visit,
                program,
                |r| meeting.seized(r),
                || meeting.before(),
                |r| meeting.installed(r),
            );
            process::let_go_of_standard_error();
        })?;
        let others = attendant.clone();
        process::spawn(move || others.serve())
    }
}

/// Reports to the user while the first program starts.
struct Meeting {
    /// Keeps the mailbox in use until a program maps it.
    _kept: OwnedFd,
    channel: UnixStream,
    seeded: Box<dyn Fn() -> bool + Send>,
    timeline: RefCell<Timeline>,
    require: bool,
    quiet: bool,
    name: String,
}

impl Meeting {
    fn seized(&self, result: &fastpath_inject::Result<()>) {
        self.timeline.borrow_mut().mark("start the helper, examine the counter");
        let answer = match result {
            Ok(()) => "ok".to_owned(),
            Err(e) => format!("tracing is not possible here: {e}{}", advice()),
        };
        let _ = (&self.channel).write_all(answer.as_bytes());
        let _ = self.channel.shutdown(std::net::Shutdown::Both);
    }

    fn before(&self) {
        self.timeline.borrow_mut().mark("exec");
        let begun = Instant::now();
        while !(self.seeded)() && begun.elapsed() < FIRST_ANCHOR {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.timeline.borrow_mut().mark("calibrate and publish");
    }

    fn installed(&self, result: &fastpath_inject::Result<()>) -> Fate {
        self.timeline.borrow_mut().mark("inject");
        self.timeline.borrow().report(note);
        let fate = match result {
            Err(e) if self.require => {
                note(format_args!("{}: not started: {e}", self.name));
                Fate::Exit(super::REQUIREMENT_NOT_MET as u8)
            }
            Err(_) if self.quiet => Fate::Run,
            Err(e) => {
                warn(format_args!("{e}; running {} untouched", self.name));
                Fate::Run
            }
            Ok(()) => Fate::Run,
        };
        process::let_go_of_standard_error();
        fate
    }
}

/// Returns advice for a refused ptrace.
fn advice() -> String {
    match std::fs::read_to_string(process::YAMA).as_deref().map(str::trim) {
        Ok(mode @ ("2" | "3")) => format!(" ({} is {mode})", process::YAMA),
        _ => " (in a container: it needs a seccomp profile that allows ptrace, or the capability SYS_PTRACE)".into(),
    }
}
