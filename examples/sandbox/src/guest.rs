//! Starts the guest, and ends this process as the guest ended.

use std::ffi::{CString, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use nix::sys::ptrace::{Options, seize};
use nix::sys::signal::{SigHandler, Signal, raise, signal};
use nix::unistd::{ForkResult, Pid, execvp, fork};

/// End of the guest.
pub enum Outcome {
    Exited(u8),
    /// By a signal of this number.
    Killed(i32),
}

impl Outcome {
    /// Ends this process in the same way.
    pub fn leave(self) -> ExitCode {
        match self {
            Outcome::Exited(code) => ExitCode::from(code),
            Outcome::Killed(by) => {
                if let Ok(by) = Signal::try_from(by) {
                    // SAFETY: the default action runs no handler of this process.
                    let _ = unsafe { signal(by, SigHandler::SigDfl) };
                    let _ = raise(by);
                }
                // The signal is blocked here, or has no name: use the exit status that a shell would return.
                ExitCode::from(128 + by as u8)
            }
        }
    }
}

/// Forks a process that executes `command` once it is traced. It runs untraced until then, and stops at the exec.
pub fn start(command: &[OsString]) -> io::Result<Pid> {
    let command: Vec<CString> = command
        .iter()
        .map(|word| CString::new(word.as_bytes()))
        .collect::<Result<_, _>>()?;
    let (mut wait, go) = io::pipe()?;
    // SAFETY: this process has one thread, so the child may call any function.
    match unsafe { fork() }? {
        ForkResult::Child => {
            drop(go);
            // Wait until the parent closes the other end.
            let _ = wait.read(&mut [0]);
            // Rust ignores SIGPIPE; the guest must inherit the default.
            // SAFETY: the default action runs no handler of this process.
            let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
            let Err(error) = execvp(&command[0], &command);
            eprintln!("sandbox: {}: {error}", command[0].to_string_lossy());
            std::process::exit(if error == nix::errno::Errno::ENOENT { 127 } else { 126 });
        }
        ForkResult::Parent { child } => {
            seize(
                child,
                Options::PTRACE_O_EXITKILL
                    | Options::PTRACE_O_TRACESYSGOOD
                    | Options::PTRACE_O_TRACEEXEC
                    | Options::PTRACE_O_TRACEFORK
                    | Options::PTRACE_O_TRACEVFORK
                    | Options::PTRACE_O_TRACECLONE,
            )?;
            // Signals from the terminal are for the guest; the sandbox ends when the guest does.
            for terminals in [Signal::SIGINT, Signal::SIGQUIT] {
                // SAFETY: ignoring a signal runs no handler of this process.
                unsafe { signal(terminals, SigHandler::SigIgn) }?;
            }
            drop(go);
            Ok(child)
        }
    }
}
