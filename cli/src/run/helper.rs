//! The helper: it publishes the page, meets programs as they start, and ends when no process of the tree is left. It is
//! not a child that the program could ever see.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastpath_inject::Shared;
use fastpath_inject::attendant::{Attendant, Fate};
use fastpath_inject::{Cache, InjectionConfig};
use fastpath_publisher::evidence::{self, Trust};

use super::log::Log;
use super::selection::Selection;
use super::timeline::Timeline;
use super::title::Title;
use super::trial::Trial;
use crate::args;
use crate::output::{note, warn};
use crate::page_source::PageSource;

/// Longest delay of a program's start for its first anchor. The anchor takes about a millisecond; a program that starts
/// without one is on the kernel's path until it is there.
const FIRST_ANCHOR: Duration = Duration::from_millis(20);

/// Resources that this process was started with and that the helper must release.
pub struct Surroundings {
    /// Memory of the arguments.
    pub title: Title,
    /// Descriptors that were open.
    pub descriptors: Vec<RawFd>,
}

impl Surroundings {
    /// Records them. Must be called before this process opens anything.
    pub fn note(title: Title) -> Surroundings {
        let names = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let mut descriptors: Vec<_> = names
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        // The directory's own descriptor is among them, and closed by now.
        // SAFETY: fcntl with integers.
        descriptors.retain(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0);
        Surroundings { title, descriptors }
    }

    /// Closes all descriptors but standard error.
    fn close(&self) {
        for fd in self.descriptors.iter().filter(|fd| **fd != 2) {
            // SAFETY: no object of this process owns these numbers: they were open before it opened anything.
            unsafe { libc::close(*fd) };
        }
    }
}

/// Grant: the page and the mailbox for programs.
pub struct Goods {
    pub page: PageSource,
    pub mailbox: Shared,
    /// Mailbox, opened so that it counts as in use: until a program maps it, this keeps a daemon's page.
    pub kept: OwnedFd,
}

/// Starts the helper; returns when it traces this process, which must then exec.
pub fn leave_behind(
    options: &args::Run,
    selection: &Selection,
    trial: Trial,
    goods: Goods,
    timeline: Timeline,
    surroundings: Surroundings,
) -> Result<(), String> {
    let failed = |what: &'static str| move |e: std::io::Error| format!("{what}: {e}");
    let (mut ours, theirs) = UnixStream::pair().map_err(failed("socketpair"))?;
    let program = std::process::id() as i32;
    let helper = Helper {
        program,
        channel: theirs,
        page: goods.page,
        mailbox: Arc::new(goods.mailbox),
        kept: Some(goods.kept),
        timeline,
        require: options.require,
        quiet: options.quiet,
        trust: super::trust(options),
        without_vdso: options.without_vdso,
        serve: selection.serves(),
        trial,
        name: options.command[0].to_string_lossy().into_owned(),
    };

    // If the program is PID 1, or has inherited the role of a subreaper, it would get the orphaned helper as a child
    // and might wait for it. A direct child that was made without an exit signal is invisible to its waits (wait(2),
    // __WCLONE).
    let adopts = program == 1 || is_subreaper();
    let child = fork_without_signal().map_err(failed("clone"))?;
    if child == 0 {
        // SAFETY: the process that was just made has one thread.
        if adopts || unsafe { libc::fork() } == 0 {
            drop(ours);
            helper.live(surroundings);
        }
        // SAFETY: _exit ends the process without running anything of the parent's.
        unsafe { libc::_exit(0) }
    }
    drop(helper);
    if !adopts {
        // SAFETY: waits for the child just made, which exits at once and sends no signal; a null status is allowed.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) };
    }
    let ready = wait_until_ready(&mut ours);
    if ready.is_err() && adopts {
        // The helper is useless now, and would become a zombie that the program could not reap.
        // SAFETY: kill and waitpid of the child just made, which has not been waited for; a null status is allowed.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), libc::__WALL);
        }
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

fn is_subreaper() -> bool {
    let mut is: libc::c_int = 0;
    // SAFETY: PR_GET_CHILD_SUBREAPER stores one int, in a local.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &mut is) == 0 && is != 0 }
}

/// Forks (fork(2)) a child that sends no SIGCHLD when it ends: a program that blocks SIGCHLD would find it pending.
pub fn fork_without_signal() -> std::io::Result<i32> {
    // SAFETY: this process has one thread, and the child continues with a copy of everything.
    match unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } {
        -1 => Err(std::io::Error::last_os_error()),
        pid => Ok(pid as i32),
    }
}

/// Makes this process a helper: sets its name, closes what is the user's except standard error, and starts a session.
pub fn settle(surroundings: &Surroundings) {
    surroundings.title.set("fastpath-publisher");
    surroundings.close();
    // SAFETY: prctl with a C string; setsid takes nothing.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"fastpath".as_ptr());
        libc::setsid();
    }
    let _ = std::env::set_current_dir("/");
    reset_signals();
}

/// Resets signals: the helper must not be affected by those that the program chose to block or ignore, nor die of a
/// closed pipe.
fn reset_signals() {
    // SAFETY: signal sets and dispositions only, with valid pointers to locals.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        for signal in 1..=libc::SIGSYS {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
    }
}

struct Helper {
    program: i32,
    channel: UnixStream,
    page: PageSource,
    mailbox: Arc<Shared>,
    kept: Option<OwnedFd>,
    timeline: Timeline,
    require: bool,
    quiet: bool,
    trust: Trust,
    without_vdso: bool,
    serve: bool,
    trial: Trial,
    name: String,
}

impl Helper {
    fn live(mut self, surroundings: Surroundings) -> ! {
        settle(&surroundings);
        let status = match self.work() {
            Ok(()) => 0,
            Err(e) => {
                let _ = self.channel.write_all(e.as_bytes());
                1
            }
        };
        // SAFETY: _exit ends the process without running anything of the parent's.
        unsafe { libc::_exit(status) }
    }

    fn work(&mut self) -> Result<(), String> {
        self.channel
            .write_all(&std::process::id().to_le_bytes())
            .map_err(|e| e.to_string())?;
        self.channel.read_exact(&mut [0]).map_err(|e| e.to_string())?;
        self.take_care_of_page()?;
        let page = self.page.reader().map_err(|e| format!("the page: {e}"))?;
        let mailbox = self.mailbox.clone();
        let config = InjectionConfig {
            page,
            mailbox: Box::new({
                let mailbox = mailbox.clone();
                move || mailbox.reopen()
            }),
            without_vdso: self.without_vdso,
            serve: self.serve,
            allows: Box::new(|_| true),
            filters: self.trial.filters,
            refuses_32_bit: self.trial.refuses_32_bit.clone(),
            ptracer: ptracer(),
            scans: Cache::default(),
        };
        let attendant = Attendant::new(config, mailbox.clone());
        self.start_visits(&attendant)?;
        self.page.run(|| attendant.is_busy() || mailbox.in_use());
        Ok(())
    }

    /// Prepares to publish, if this process publishes.
    fn take_care_of_page(&mut self) -> Result<(), String> {
        let PageSource::Own(publisher) = &mut self.page else {
            return Ok(());
        };
        // Here and not in the program's process: the threads that this starts leave traces in that process's signal
        // handling.
        evidence::examine(self.trust).map_err(|e| e.refusal())?;
        publisher.watch_for_steps();
        publisher
            .compare_cpus()
            .map_err(|e| format!("a thread that compares the CPUs' counters: {e}"))?;
        let log = Log::new(self.program, &self.name);
        publisher.on_news(move |news| log.tell(news));
        Ok(())
    }

    /// Starts the thread that meets the program, and the one that serves its descendants.
    fn start_visits(&mut self, attendant: &Arc<Attendant>) -> Result<(), String> {
        let meeting = Meeting {
            _kept: self.kept.take(),
            channel: self.channel.try_clone().map_err(|e| e.to_string())?,
            seeded: self.page.seeded(),
            timeline: RefCell::new(std::mem::replace(&mut self.timeline, Timeline::start(false))),
            require: self.require,
            quiet: self.quiet,
            name: self.name.clone(),
        };
        let (first, visit, program) = (attendant.clone(), attendant.expect_visit(), self.program);
        spawn(move || {
            first.meet_first(
                visit,
                program,
                |r| meeting.seized(r),
                || meeting.before(),
                |r| meeting.installed(r),
            );
            let_go_of_standard_error();
        })?;
        let others = attendant.clone();
        spawn(move || others.serve())
    }
}

/// Starts a thread with a small stack.
pub fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let spawned = std::thread::Builder::new().stack_size(512 << 10).spawn(work);
    spawned.map(|_| ()).map_err(|e| format!("thread: {e}"))
}

/// Reports to the user while the first program starts.
struct Meeting {
    /// Keeps the mailbox in use until a program maps it.
    _kept: Option<OwnedFd>,
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
        let_go_of_standard_error();
        fate
    }
}

/// Replaces standard error by /dev/null: a pipe of the user's must close when the program ends, not when the helper
/// does.
pub fn let_go_of_standard_error() {
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        // SAFETY: replaces descriptor 2, which no object of this process owns, by one that is open.
        unsafe { libc::dup3(null.as_raw_fd(), 2, libc::O_CLOEXEC) };
    }
}

/// Returns this process, if Yama requires a tracer that is no ancestor to be declared (mode 1,
/// Documentation/admin-guide/LSM/Yama.rst); else 0.
pub fn ptracer() -> u32 {
    let is_restricted = std::fs::read_to_string(YAMA).is_ok_and(|mode| mode.trim() == "1");
    if is_restricted { std::process::id() } else { 0 }
}

const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Returns advice for a refused ptrace.
fn advice() -> String {
    match std::fs::read_to_string(YAMA).as_deref().map(str::trim) {
        Ok(mode @ ("2" | "3")) => format!(" ({YAMA} is {mode})"),
        _ => " (in a container: it needs a seccomp profile that allows ptrace, or the capability SYS_PTRACE)".into(),
    }
}
