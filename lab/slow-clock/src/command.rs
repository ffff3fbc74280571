//! The command: its start in the cgroup, the signals that are passed on to it, its end.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, pthread_sigmask};
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;

use crate::cgroup::Cgroup;

/// The signals that are passed on.
const PASSED_ON: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// How the command ended.
pub enum End {
    /// It ran and ended.
    Ended(ExitStatus),
    /// It did not run.
    NotRun(ExitCode),
}

/// The signals that are blocked in order to be passed on.
pub struct Blocked {
    signals: SigSet,
    before: SigSet,
}

/// Blocks the signals that are passed on, and SIGCHLD.
pub fn block_signals() -> Result<Blocked, String> {
    let mut signals = SigSet::from_iter(PASSED_ON);
    signals.add(Signal::SIGCHLD);
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&signals), Some(&mut before)).map_err(|e| e.to_string())?;
    Ok(Blocked { signals, before })
}

/// Runs the command in the cgroup, and passes signals on to it until it ends. It is killed if this process is.
pub fn run(words: &[OsString], cgroup: &Cgroup, blocked: Blocked) -> Result<End, String> {
    let mut procs = cgroup.procs().map_err(|e| format!("cgroup.procs: {e}"))?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let before = blocked.before;
    // SAFETY: write, prctl and rt_sigprocmask are async-signal-safe, and nothing in there allocates.
    unsafe {
        command.pre_exec(move || {
            procs.write_all(b"0")?;
            pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
            match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
    match command.spawn() {
        Ok(child) => wait(child, &blocked.signals).map(End::Ended),
        Err(e) => {
            eprintln!("slow-clock: {}: {e}", words[0].display());
            let status = if e.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            Ok(End::NotRun(ExitCode::from(status)))
        }
    }
}

fn wait(mut child: Child, signals: &SigSet) -> Result<ExitStatus, String> {
    let pid = Pid::from_raw(child.id() as i32);
    let arrived = SignalFd::new(signals).map_err(|e| format!("signalfd: {e}"))?;
    loop {
        if let Some(status) = child.try_wait().map_err(|e| format!("wait: {e}"))? {
            return Ok(status);
        }
        let Ok(Some(signal)) = arrived.read_signal() else {
            continue;
        };
        // The terminal sends its signals to the command as well.
        let is_of_kernel = signal.ssi_code > 0;
        if let Ok(number) = Signal::try_from(signal.ssi_signo as i32)
            && PASSED_ON.contains(&number)
            && !is_of_kernel
        {
            let _ = kill(pid, number);
        }
    }
}

impl End {
    /// Ends this process as the command ended, by the same signal if it was one.
    pub fn repeat(self) -> ExitCode {
        let status = match self {
            End::NotRun(code) => return code,
            End::Ended(status) => status,
        };
        if let Some(signal) = status.signal() {
            // SAFETY: the calls take integers and two local structures that are initialized.
            unsafe {
                let no_core = libc::rlimit {
                    rlim_cur: 0,
                    rlim_max: 0,
                };
                libc::setrlimit(libc::RLIMIT_CORE, &no_core);
                libc::signal(signal, libc::SIG_DFL);
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&mut set, signal);
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
                libc::raise(signal);
            }
            return ExitCode::from(128 + signal as u8);
        }
        ExitCode::from(status.code().unwrap_or(125) as u8)
    }
}
