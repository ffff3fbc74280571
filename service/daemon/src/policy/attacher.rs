//! Attaches one process, in a child process with a deadline.
//!
//! An attach reads the target's memory, which may be backed by a file system or a fault handler of the target's own
//! user (FUSE, userfaultfd(2)): that can wait for ever, and not even SIGKILL always ends it. So no thread of the daemon
//! does it.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fastpath_protocol::SOCKET_VARIABLE;
use fastpath_publish::evidence::Trust;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::ProcessFacts;
use super::task::{Done, MOST_TRIES, Task};
use crate::record::{self, DONE, What};
use crate::{DaemonOptions, Service};

/// Timeout of an attach: a process that does not stop is given up much sooner.
const DEADLINE: Duration = Duration::from_secs(20);
/// Time for a killed child to end.
const DEATH: Duration = Duration::from_secs(1);

/// Exit status of a child whose process could not be attached now (sysexits.h: EX_TEMPFAIL).
pub const TRY_AGAIN: u8 = 75;

/// Attaches processes as a client of this daemon.
pub(super) struct Attacher {
    socket: PathBuf,
    trust: Trust,
    policy: PathBuf,
}

impl Attacher {
    /// Returns an attacher that gets its pages from the daemon with these options.
    pub(super) fn new(options: &DaemonOptions) -> Attacher {
        Attacher {
            socket: options.socket.clone(),
            trust: options.trust,
            policy: options.policy.clone(),
        }
    }

    /// Attaches a process in a child process, and waits for that with a timeout.
    pub(super) fn attach(&self, task: &Task, service: Service, facts: &ProcessFacts) -> Done {
        let trouble = |what: &str, why: &dyn std::fmt::Display| {
            task.refuse("failed", &format!("{what}: {why}"));
            Done::InTime
        };
        let mut child = match self.command(task, service, facts).spawn() {
            Ok(child) => child,
            Err(error) => return trouble("a process that attaches it cannot be started", &error),
        };
        if has_ended_within(&child, DEADLINE) {
            count_result(&mut child);
            return match child.wait() {
                Ok(status) if status.code() == Some(TRY_AGAIN.into()) => Done::TryAgain,
                // The child could not log it.
                Ok(status) if status.signal().is_some() => {
                    trouble("the process that attaches it", &status);
                    Done::TryAgain
                }
                Ok(_) => Done::InTime,
                Err(error) => trouble("the process that attaches it", &error),
            };
        }
        let seconds = DEADLINE.as_secs();
        task.refuse(
            "does-not-answer",
            &format!("it took longer than {seconds} s to look at (memory that it serves itself?)"),
        );
        // SAFETY: kill takes integers; the group is the child's own and includes what the child has started, and the
        // child has not been waited for.
        unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
        if has_ended_within(&child, DEATH) && child.wait().is_ok() {
            return Done::TooLate(None);
        }
        Done::TooLate(Some(child))
    }

    /// Returns the command that runs this program again to attach one process with these facts
    /// ([`crate::DaemonOptions::socket`] names the daemon to it).
    fn command(&self, task: &Task, service: Service, facts: &ProcessFacts) -> Command {
        let service = Service {
            trust: self.trust,
            ..service
        };
        let mut command = Command::new("/proc/self/exe");
        command
            .arg(format!("--attach={}", task.pid))
            .arg(format!("--service={service}"))
            .arg(format!("--attach-facts={}", facts.fingerprint()))
            .arg(format!("--attach-by={}", task.by))
            .args(task.rule().map(|rule| format!("--attach-rule={rule}")))
            .arg(format!("--attach-policy={}", self.policy.display()))
            .args((task.tries >= MOST_TRIES).then(|| format!("--attach-tries={}", task.tries)))
            .env(SOCKET_VARIABLE, &self.socket)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0);
        command
    }
}

/// Counts the result of a child that has ended, which has put it on record itself.
fn count_result(child: &mut Child) {
    /// More than any result has bytes.
    const MOST: usize = 64;
    let Some(mut output) = child.stdout.take() else { return };
    let mut line = [0; MOST];
    // A helper that it has left behind keeps the pipe open: this reads only what is there.
    let is_ready = rustix::io::ioctl_fionbio(&output, true).is_ok();
    let length = if is_ready {
        output.read(&mut line).unwrap_or(0)
    } else {
        0
    };
    match str::from_utf8(&line[..length]).map(str::trim_end) {
        Ok("") | Err(_) => {}
        Ok(DONE) => record::count(What::Attach, DONE),
        Ok(result) => record::count(What::Refuse, result),
    }
}

/// Gives this thread a descriptor table of its own, with only the standard descriptors, and so the processes that it
/// starts: exec(2) closes the inherited ones, and closing a file of FUSE that a client has sent waits for its server.
pub(super) fn keep_clients_descriptors_out() {
    const FIRST_CLOSED: libc::c_uint = 3;
    // CLOSE_RANGE_UNSHARE makes no copies, which would have to be closed as well. A kernel before 5.9 has no such call.
    // SAFETY: close_range takes integers. The thread has not opened anything yet, and uses no descriptor that it has
    // not opened.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST_CLOSED,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_UNSHARE,
        )
    };
}

fn has_ended_within(child: &Child, limit: Duration) -> bool {
    let Ok(pidfd) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else {
        return false;
    };
    fastpath_os::is_ready(pidfd, libc::POLLIN, limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_starts_processes_has_no_descriptors_of_clients() {
        let client = std::fs::File::open("/dev/null").unwrap();
        let listed = || std::fs::read_dir("/proc/thread-self/fd").unwrap().count();
        let inside = std::thread::spawn(move || {
            keep_clients_descriptors_out();
            listed()
        });
        // Descriptors of the listing itself, and standard input, output and error.
        assert!(inside.join().unwrap() <= 4);
        // The descriptors of other threads stay open.
        assert!(client.metadata().is_ok());
    }
}
