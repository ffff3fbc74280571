//! Has fastpathd attach the first processes of containers, once they run the containers' own programs.
//!
//! Until its exec, a container's first process is the runtime's own (`runc init`): it sets the container up, and is left
//! alone.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use fastpath_page::ClockSet;
use fastpath_page::Clocks;
use fastpath_protocol::{Client, ClientError, Code};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::log::{say, stays};

/// Time between two checks whether the program has been executed: at first, and after [`SOON`].
const LOOK_EVERY: Duration = Duration::from_millis(5);
const LATER_EVERY: Duration = Duration::from_millis(50);
const SOON: Duration = Duration::from_secs(2);
/// Time after which a container whose program is not executed is given up. Runtimes execute it within seconds.
const EXEC_TIMEOUT: Duration = Duration::from_secs(120);
/// Time between two requests while no daemon answers.
const RETRY_EVERY: Duration = Duration::from_secs(5);

/// What differs between a process before and after an exec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program(Vec<u8>);

impl Program {
    /// Returns what tells the present program of a process from its next: the auxiliary vector, which contains random
    /// addresses, or the command line, which needs no privilege. `None`: the process has ended, or is in the middle of an
    /// exec, and its program is not there yet. The kernel maps the vDSO before it writes the auxiliary vector
    /// (fs/binfmt_elf.c).
    pub(crate) fn read(pid: i32) -> Option<Program> {
        match fs::read(format!("/proc/{pid}/auxv")) {
            Ok(auxv) => Some(auxv).filter(|auxv| auxv.iter().take(size_of::<usize>()).any(|byte| *byte != 0)),
            Err(_) => fs::read(format!("/proc/{pid}/cmdline"))
                .ok()
                .filter(|line| !line.is_empty()),
        }
        .map(Program)
    }
}

/// A container that is to be attached.
pub(crate) struct Candidate {
    /// Name for the log.
    name: String,
    pid: i32,
    pidfd: OwnedFd,
    clocks: Clocks,
    /// The runtime's program, which the process runs until its exec.
    before: Option<Program>,
    since: Instant,
    has_logged: bool,
}

/// Whether anything remains to be done for a candidate.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Nothing,
    After(Duration),
}

impl Candidate {
    /// Returns a candidate for the first process of a container; with `before`, it is attached once it runs another
    /// program than that one.
    pub(crate) fn new(name: String, pid: i32, clocks: Clocks, before: Option<Program>) -> io::Result<Candidate> {
        let process = Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw);
        let process = process.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        let pidfd = pidfd_open(process, PidfdFlags::empty())?;
        Ok(Candidate {
            name,
            pid,
            pidfd,
            clocks,
            before,
            since: Instant::now(),
            has_logged: false,
        })
    }

    fn has_ended(&self) -> bool {
        fastpath_os::is_ready(&self.pidfd, libc::POLLIN, Duration::ZERO)
    }

    /// Does what can be done now, without waiting for anything but the daemon's answer (at most 2 s).
    fn go_on(&mut self, socket: &Path, waits_for_daemon: bool) -> Next {
        if self.has_ended() {
            return Next::Nothing;
        }
        let program = Program::read(self.pid);
        if program.is_none() || program == self.before {
            let waited = self.since.elapsed();
            if waited < EXEC_TIMEOUT {
                return Next::After(if waited < SOON { LOOK_EVERY } else { LATER_EVERY });
            }
            self.log(&format_args!(
                "its program has not been executed for {} s",
                EXEC_TIMEOUT.as_secs()
            ));
            return Next::Nothing;
        }
        self.before = None;
        let clocks = self.clocks.named().unwrap_or(ClockSet::NONE);
        let asked = Client::connect_to(socket).and_then(|client| client.attach(self.pidfd.as_fd(), clocks));
        match asked {
            Ok(()) => {
                say(&format!("{}: fastpathd attaches process {}", self.name, self.pid));
                Next::Nothing
            }
            Err(ClientError::Refused(refusal)) => {
                // The process may have ended since it was looked at, and nothing need be fixed on a healthy host.
                if !matches!(refusal.code, Code::Process | Code::Nothing) {
                    self.log(&refusal);
                }
                Next::Nothing
            }
            Err(failure) => {
                if !self.has_logged {
                    self.has_logged = true;
                    self.log(&failure);
                }
                match waits_for_daemon {
                    true => Next::After(RETRY_EVERY),
                    false => Next::Nothing,
                }
            }
        }
    }

    fn log(&self, why: &dyn std::fmt::Display) {
        stays(&self.name, why);
    }
}

/// Attends to one candidate until nothing remains to be done. Without a daemon, it is given up.
pub(crate) fn attend(mut candidate: Candidate, socket: &Path) {
    while let Next::After(wait) = candidate.go_on(socket, false) {
        std::thread::sleep(wait);
    }
}

/// A thread that attends to candidates: no call of the runtime waits for it. It asks until there is a daemon.
pub(crate) struct Attendant(Sender<(Candidate, PathBuf)>);

impl Attendant {
    /// Starts it.
    pub(crate) fn start() -> io::Result<Attendant> {
        let (sender, receiver) = mpsc::channel::<(Candidate, PathBuf)>();
        let work = move || {
            let mut waiting: Vec<(Instant, Candidate, PathBuf)> = Vec::new();
            loop {
                let next = waiting.iter().map(|(at, ..)| *at).min();
                let new = match next {
                    Some(at) => receiver.recv_timeout(at.saturating_duration_since(Instant::now())),
                    None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                };
                match new {
                    Ok((candidate, socket)) => waiting.push((Instant::now(), candidate, socket)),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                waiting.retain_mut(|(at, candidate, socket)| {
                    if *at > Instant::now() {
                        return true;
                    }
                    match candidate.go_on(socket, true) {
                        Next::After(wait) => {
                            *at = Instant::now() + wait;
                            true
                        }
                        Next::Nothing => false,
                    }
                });
            }
        };
        std::thread::Builder::new().name("fastpath-attach".into()).spawn(work)?;
        Ok(Attendant(sender))
    }

    /// Hands it a candidate, and the socket of the daemon.
    pub(crate) fn take(&self, candidate: Candidate, socket: &Path) {
        // Its thread ends after its sender only.
        let _ = self.0.send((candidate, socket.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn candidate(child: &Child, before: Option<Program>) -> Candidate {
        Candidate::new("test".into(), child.id() as i32, Clocks::ALL, before).unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_is_left_alone_until_its_exec() {
        // The shell waits for its standard input, then executes another program in its place.
        let mut shell = Command::new("sh")
            .args(["-c", "read line; exec sleep 60"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = shell.id() as i32;
        // Waits for an exec, and for its end.
        let started = |name: &str| {
            let is_started =
                || fastpath_os::comm(pid).is_ok_and(|comm| comm.trim() == name) && Program::read(pid).is_some();
            while !is_started() {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        started("sh");
        let mut waits = candidate(&shell, Program::read(pid));
        let socket = Path::new("/nonexistent/socket");
        assert_eq!(waits.go_on(socket, true), Next::After(LOOK_EVERY));
        drop(shell.stdin.take());
        started("sleep");
        // The daemon is asked now, and there is none.
        assert_eq!(waits.go_on(socket, true), Next::After(RETRY_EVERY));
        assert_eq!(waits.go_on(socket, false), Next::Nothing);
        end(shell);
        assert_eq!(waits.go_on(socket, true), Next::Nothing);
    }
}
