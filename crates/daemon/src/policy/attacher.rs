//! Attaches one process.

use std::path::PathBuf;

use super::Clocks;

/// A process that a rule attaches.
#[derive(Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub struct Task {
    /// As it is called here.
    pub pid: i32,
    /// What it gets.
    pub clocks: Clocks,
    /// For the log.
    pub executable: Option<String>,
}

/// A client of the daemon's own.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub struct Attacher {
    socket: PathBuf,
}

impl Attacher {
    /// One that has pages from there.
    pub fn new(socket: PathBuf) -> Attacher {
        Attacher { socket }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};

    use fastpath_inject::attach::{Goods, Refusal, attach, may_attach};
    use fastpath_page::ClockSet;
    use fastpath_protocol::client::{Client, Failure, Page};
    use fastpath_protocol::{Code, Refusal as Refused};

    use super::{Attacher, Clocks, Task};
    use crate::log::{Priority, say};

    impl Attacher {
        /// Does it, and says what came of it, unless that is no news: it has ended, is served already, or is fast by itself.
        pub fn attach(&self, task: Task) {
            let Task { pid, executable, .. } = &task;
            let name = executable.as_deref().unwrap_or("a program");
            match self.try_to(&task) {
                Ok(true) => say(Priority::Info, format_args!("attached process {pid} ({name})")),
                Ok(false) => {}
                Err(why) => say(
                    Priority::Notice,
                    format_args!("process {pid} ({name}) stays on the kernel's path: {why}"),
                ),
            }
        }

        fn try_to(&self, task: &Task) -> Result<bool, String> {
            match may_attach(task.pid) {
                Ok(()) => {}
                Err(refusal) if is_no_news(&refusal) => return Ok(false),
                Err(refusal) => return Err(refusal.to_string()),
            }
            // SAFETY: pidfd_open takes integers; the result is a new descriptor.
            let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, task.pid, 0) } as i32;
            if pidfd < 0 {
                return Ok(false);
            }
            // SAFETY: just made.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            let clocks = match task.clocks {
                Clocks::Auto => 0,
                Clocks::All => ClockSet::ALL.0,
            };
            let given =
                Client::connect_to(&self.socket).and_then(|client| client.page(clocks, Some(pidfd.as_fd()), None));
            let Page { clocks, page, mailbox } = match given {
                Ok(given) => given,
                Err(Failure::Refused(Refused {
                    code: Code::Nothing | Code::Process,
                    ..
                })) => return Ok(false),
                Err(failure) => return Err(failure.to_string()),
            };
            let Some(mailbox) = mailbox else { return Ok(false) };
            let goods = Goods {
                page: &page,
                mailbox: &mailbox,
                clocks: ClockSet(clocks),
                children: None,
            };
            match attach(task.pid, &goods) {
                Ok(_) => Ok(true),
                Err(refusal) if is_no_news(&refusal) => Ok(false),
                Err(refusal) => Err(refusal.to_string()),
            }
        }
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
    /// Says that it cannot be done.
    pub fn attach(&self, task: Task) {
        let why = "running processes are attached on x86-64 only";
        crate::log::say(
            crate::log::Priority::Notice,
            format_args!("process {} stays on the kernel's path: {why}", task.pid),
        );
    }
}
