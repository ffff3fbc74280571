//! What is watched in a run, and how it ended.

use crate::trace::command::Started;
use crate::trace::report::{Method, TraceReport};
use std::ffi::OsString;
use std::io;
use std::time::Duration;

/// Selection of the processes to watch.
#[derive(Clone, Debug)]
pub enum Whom {
    /// All processes.
    All,
    /// A process, and its descendants that start from now on.
    Process(u32),
    /// A new program and its descendants.
    Command(Vec<OsString>),
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    /// The processes to watch.
    pub whom: Whom,
    /// Method of counting; `None` means BPF, or ptrace if BPF is not allowed.
    pub method: Option<Method>,
    /// Whether to find callers.
    pub stacks: bool,
    /// Most sites (process, call, clock, place in the code) that are counted at once.
    pub sites: u32,
    /// Longest duration.
    pub duration: Option<Duration>,
}

/// Result of a run.
#[derive(Debug)]
pub struct TraceOutcome {
    /// The calls.
    pub report: TraceReport,
    /// End of the command, if there was one and it has ended.
    pub end: Option<CommandEnd>,
    /// The command, if it continues.
    pub running: Option<UnwatchedCommand>,
}

/// A command that continues unwatched.
#[derive(Debug)]
pub struct UnwatchedCommand(pub(crate) Started);

impl UnwatchedCommand {
    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.0.pid
    }

    /// Waits for its end. `None` if its status is not available, because another thread has waited for it.
    pub fn wait(mut self) -> Option<CommandEnd> {
        ended(&mut self.0, true)
    }
}

/// End of a command.
#[derive(Debug)]
pub enum CommandEnd {
    /// With this exit status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// It could not be executed.
    NotStarted(io::Error),
}

/// The caller's interface to a run.
pub trait Observer {
    /// Returns whether counting must end.
    fn is_to_stop(&self) -> bool;
    /// Reports a message immediately.
    fn note(&mut self, text: String);
    /// Reports the state about once a second, while `is_looking` returns true.
    fn show(&mut self, report: TraceReport);
    /// Returns whether reports are displayed; otherwise they are not made.
    fn is_looking(&self) -> bool;
}

/// Returns how the command ended, if it has.
pub(crate) fn ended(started: &mut Started, wait: bool) -> Option<CommandEnd> {
    let mut status = 0;
    loop {
        // SAFETY: stores into a local variable; the child belongs to this process.
        let pid = unsafe { libc::waitpid(started.pid as i32, &mut status, if wait { 0 } else { libc::WNOHANG }) };
        if pid == started.pid as i32 {
            break;
        }
        if pid == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
    Some(CommandEnd::from_status(status, started))
}

impl CommandEnd {
    pub(crate) fn from_status(status: i32, started: &mut Started) -> CommandEnd {
        if let Some(error) = started.failure() {
            return CommandEnd::NotStarted(error);
        }
        if libc::WIFSIGNALED(status) {
            CommandEnd::Killed(libc::WTERMSIG(status))
        } else {
            CommandEnd::Exited(libc::WEXITSTATUS(status))
        }
    }
}

pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: stores into a local variable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
