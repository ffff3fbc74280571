//! Attaches one process, in a child process with a deadline.
//!
//! An attach reads the target's memory, which may be backed by a file system or a fault handler of the target's own
//! user (FUSE, userfaultfd(2)): that can wait for ever, and not even SIGKILL always ends it. So no thread of the daemon
//! does it.

use std::io::Read;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fastpath_publisher::evidence::Trust;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Decision;
use crate::Options;
use crate::log::{Priority, say};
use crate::payer::Payer;

/// Timeout of an attach: a process that does not stop is given up much sooner.
const DEADLINE: Duration = Duration::from_secs(20);
/// Time for a killed child to end.
const DEATH: Duration = Duration::from_secs(1);

/// A process that a rule attaches.
#[derive(Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub struct Task {
    /// Process id as seen from here.
    pub pid: i32,
    /// Payer whose turn it is.
    pub payer: Payer,
    /// Clocks and descendants to serve, and the rule.
    pub decision: Decision,
    /// Name for the log.
    pub executable: Option<String>,
}

/// Result of an attach.
#[derive(Debug)]
pub enum Done {
    /// Inode of the page that the process got, if it did.
    InTime(Option<u64>),
    /// It took too long. Contains the child if that has not ended.
    TooLate(Option<Child>),
}

/// Attaches processes as a client of this daemon.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub struct Attacher {
    socket: PathBuf,
    fastpath: PathBuf,
    trust: Trust,
}

impl Attacher {
    /// Returns an attacher that gets its pages from the daemon with these options.
    pub fn new(options: &Options) -> Attacher {
        Attacher {
            socket: options.socket.clone(),
            fastpath: options.fastpath.clone(),
            trust: options.trust,
        }
    }

    /// Attaches a process in a child process, and waits for that with a timeout.
    pub fn attach(&self, task: &Task) -> Done {
        let trouble = |what: &str, why: &dyn std::fmt::Display| {
            say(
                Priority::Warning,
                format_args!("process {} stays on the kernel's path: {what}: {why}", task.pid),
            );
            Done::InTime(None)
        };
        let mut child = match self.command(task).spawn() {
            Ok(child) => child,
            Err(error) => return trouble("a process that attaches it cannot be started", &error),
        };
        if has_ended_within(&child, DEADLINE) {
            return match child.wait() {
                Ok(_) => Done::InTime(child.stdout.take().and_then(inode_in)),
                Err(error) => trouble("the process that attaches it", &error),
            };
        }
        say(
            Priority::Warning,
            format_args!(
                "process {} stays on the kernel's path: it took longer than {} s to look at (memory that it serves itself?)",
                task.pid,
                DEADLINE.as_secs()
            ),
        );
        // SAFETY: kill takes integers; the group is the child's own and includes what the child has started, and the
        // child has not been waited for.
        unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
        // The descriptor is in this thread's own table: no other thread can close it.
        drop(child.stdout.take());
        if has_ended_within(&child, DEATH) && child.wait().is_ok() {
            return Done::TooLate(None);
        }
        Done::TooLate(Some(child))
    }

    /// Returns the command that runs this program again for [`crate::attach_one`].
    fn command(&self, task: &Task) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg(format!("--attach={}", task.pid))
            .arg("--socket")
            .arg(&self.socket)
            .arg(format!("--clocks={}", task.decision.clocks))
            .args(task.decision.children.then_some("--attach-children"))
            .args((self.trust == Trust::Anyway).then_some("--trust-counter"))
            .args(task.executable.as_ref().map(|name| format!("--attach-name={name}")))
            .env(crate::BESIDE, &self.fastpath)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0);
        command
    }
}

/// Gives this thread a descriptor table of its own, with only the standard descriptors, and so the processes that it
/// starts: exec(2) closes the inherited ones, and closing a file of FUSE that a client has sent waits for its server.
pub fn keep_clients_descriptors_out() {
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

/// Reads the inode that the child prints.
fn inode_in(mut stdout: std::process::ChildStdout) -> Option<u64> {
    let mut said = [0; 32];
    // The child has ended; a process that it started may still have the pipe open.
    nix::fcntl::fcntl(&stdout, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).ok()?;
    let length = stdout.read(&mut said).ok()?;
    std::str::from_utf8(said.get(..length)?).ok()?.trim().parse().ok()
}

fn has_ended_within(child: &Child, limit: Duration) -> bool {
    // SAFETY: pidfd_open takes integers; the result is a new descriptor.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) } as i32;
    if pidfd < 0 {
        return false;
    }
    // SAFETY: pidfd_open has just returned this descriptor, and nothing else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let begun = Instant::now();
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Err(nix::errno::Errno::EINTR) => {}
            answered => return answered.is_ok_and(|ready| ready > 0),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use fastpath_inject::attach::{Answer, AttachConfig, Refusal, StoppedTooLong, attach, may_attach};
    use fastpath_measure::Clock;
    use fastpath_page::{ClockSet, MAPPED_NAME};
    use fastpath_protocol::client::{Client, Failure, Page};
    use fastpath_protocol::{Code, Refusal as Refused, SOCKET_VARIABLE};
    use fastpath_publisher::evidence::Trust;

    use super::super::Clocks;
    use super::{Attacher, Task};
    use crate::log::{Priority, say};

    impl Attacher {
        /// Attaches the process from this process, and logs the result, except in expected cases: the target has ended,
        /// is served already, or is fast by itself. Returns the inode of the page that the target got.
        pub fn attach_here(&self, task: &Task) -> Option<u64> {
            let Task { pid, executable, .. } = task;
            let name = executable.as_deref().unwrap_or("a program");
            let done = match may_attach_soon(*pid) {
                Ok(()) if task.decision.children => self.tree(task),
                Ok(()) => self.process(task),
                Err(refusal) if is_no_news(&refusal) => Ok(None),
                Err(refusal) => Err(refusal.to_string()),
            };
            match &done {
                Ok(Some(_)) => say(Priority::Info, format_args!("attached process {pid} ({name})")),
                Ok(None) => {}
                Err(why) => say(
                    Priority::Notice,
                    format_args!("process {pid} ({name}) stays on the kernel's path: {why}"),
                ),
            }
            done.ok().flatten()
        }

        /// Attaches a process with its descendants: `fastpath attach --children` leaves a process behind that serves
        /// later ones as they start.
        fn tree(&self, task: &Task) -> Result<Option<u64>, String> {
            let clocks = match task.decision.clocks {
                Clocks::Set(_) => task.decision.clocks.to_string(),
                Clocks::Auto => {
                    let status = Client::connect_to(&self.socket).and_then(|client| client.status());
                    names(&status.map_err(|failure| failure.to_string())?.slow_clocks)
                }
            };
            if clocks.is_empty() {
                return Ok(None);
            }
            let pid = task.pid.to_string();
            let trust = (self.trust == Trust::Anyway).then_some("--trust-counter");
            let done = Command::new(&self.fastpath)
                .args(["attach", "--children", "--clocks", &clocks, &pid])
                .args(trust)
                .env(SOCKET_VARIABLE, &self.socket)
                .stdin(Stdio::null())
                .output()
                .map_err(|e| format!("{} attach --children cannot be started: {e}", self.fastpath.display()))?;
            match done.status.code() {
                Some(0) => Ok(page_of(task.pid)),
                // The process has ended, or is served already.
                Some(3 | 4 | 5 | 8) => Ok(None),
                _ => Err(format!(
                    "{} attach --children: {} ({})",
                    self.fastpath.display(),
                    String::from_utf8_lossy(&done.stderr).trim(),
                    done.status
                )),
            }
        }

        fn process(&self, task: &Task) -> Result<Option<u64>, String> {
            // SAFETY: pidfd_open takes integers; the result is a new descriptor.
            let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, task.pid, 0) } as i32;
            if pidfd < 0 {
                return Ok(None);
            }
            // SAFETY: pidfd_open has just returned this descriptor, and nothing else owns it.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            // 0: the clocks that are slow.
            let clocks = task.decision.clocks.named().map_or(0, |clocks| clocks.0);
            let given =
                Client::connect_to(&self.socket).and_then(|client| client.page(clocks, Some(pidfd.as_fd()), None));
            let Page { clocks, page, mailbox } = match given {
                Ok(given) => given,
                Err(Failure::Refused(Refused {
                    code: Code::Nothing | Code::Process,
                    ..
                })) => return Ok(None),
                Err(failure) => return Err(failure.to_string()),
            };
            let Some(mailbox) = mailbox else { return Ok(None) };
            let goods = AttachConfig {
                ptracer: 0,
                page: &page,
                mailbox: &mailbox,
                clocks: ClockSet(clocks),
                children: None,
            };
            match attach(task.pid, &goods, give_up) {
                Ok(_) => Ok(page_of(task.pid)),
                Err(refusal) if is_no_news(&refusal) => Ok(None),
                Err(refusal) => Err(refusal.to_string()),
            }
        }
    }

    /// Ends this process, so that the kernel detaches all its tracees.
    fn give_up(stands: &StoppedTooLong) -> ! {
        say(
            Priority::Warning,
            format_args!("process {} stays on the kernel's path: {stands}", stands.pid),
        );
        // SAFETY: _exit ends the process at once, without waiting for the thread that waits in the kernel.
        unsafe { libc::_exit(1) }
    }

    /// Checks a process; waits a little while another fastpath traces it, which meets a program within milliseconds.
    fn may_attach_soon(pid: i32) -> Answer<()> {
        const LOOKS: u32 = 20;
        const EVERY: Duration = Duration::from_millis(50);
        for _ in 0..LOOKS {
            match may_attach(pid) {
                Err(Refusal::Traced { name, .. }) if name == "fastpath" => std::thread::sleep(EVERY),
                answer => return answer,
            }
        }
        may_attach(pid)
    }

    /// Returns the inode of the page that a process maps.
    fn page_of(pid: i32) -> Option<u64> {
        let maps = fastpath_maps::of(pid).ok()?;
        let page = maps.iter().find(|mapping| mapping.name.starts_with(MAPPED_NAME))?;
        Some(page.inode)
    }

    fn names(ids: &[u32]) -> String {
        let names = ids.iter().filter_map(|id| Clock::from_id(*id as i32));
        names.map(|clock| clock.name()).collect::<Vec<_>>().join(",")
    }

    fn is_no_news(refusal: &Refusal) -> bool {
        matches!(
            refusal,
            Refusal::NoSuchProcess { .. }
                | Refusal::KernelThread
                | Refusal::Zombie
                | Refusal::AttachedAlready { .. }
                | Refusal::UnderRun
        )
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Attacher {
    /// Logs that it is not supported.
    pub fn attach_here(&self, task: &Task) -> Option<u64> {
        let why = "running processes are attached on x86-64 only";
        crate::log::say(
            crate::log::Priority::Notice,
            format_args!("process {} stays on the kernel's path: {why}", task.pid),
        );
        None
    }
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
