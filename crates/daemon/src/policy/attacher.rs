//! Attaches one process.

use std::path::PathBuf;

use fastpath_publisher::evidence::Trust;

use super::Decision;
use crate::Options;

/// A process that a rule attaches.
#[derive(Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub struct Task {
    /// As it is called here.
    pub pid: i32,
    /// What it gets, and by which rule.
    pub decision: Decision,
    /// For the log.
    pub executable: Option<String>,
}

/// A client of the daemon's own.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub struct Attacher {
    socket: PathBuf,
    fastpath: PathBuf,
    trust: Trust,
}

impl Attacher {
    /// One that has its pages from the daemon with these options.
    pub fn new(options: &Options) -> Attacher {
        Attacher {
            socket: options.socket.clone(),
            fastpath: options.fastpath.clone(),
            trust: options.trust,
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use fastpath_inject::attach::{Answer, Goods, Refusal, attach, may_attach};
    use fastpath_observe::Clock;
    use fastpath_page::{ClockSet, MAPPED_NAME};
    use fastpath_protocol::client::{Client, Failure, Page};
    use fastpath_protocol::{Code, Refusal as Refused, SOCKET_VARIABLE};
    use fastpath_publisher::evidence::Trust;

    use super::super::Clocks;
    use super::{Attacher, Task};
    use crate::log::{Priority, say};

    impl Attacher {
        /// Does it, and says what came of it, unless that is no news: it has ended, is served already, or is fast by itself.
        /// The inode of the page that it has got.
        pub fn attach(&self, task: &Task) -> Option<u64> {
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

        /// With its descendants: `fastpath attach --children` leaves a process behind that meets those that are yet to come.
        fn tree(&self, task: &Task) -> Result<Option<u64>, String> {
            let clocks = match task.decision.clocks {
                Clocks::All => "all".to_owned(),
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
                // It has ended, or is served already.
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
            // SAFETY: just made.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            let clocks = match task.decision.clocks {
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
                })) => return Ok(None),
                Err(failure) => return Err(failure.to_string()),
            };
            let Some(mailbox) = mailbox else { return Ok(None) };
            let goods = Goods {
                ptracer: 0,
                page: &page,
                mailbox: &mailbox,
                clocks: ClockSet(clocks),
                children: None,
            };
            match attach(task.pid, &goods) {
                Ok(_) => Ok(page_of(task.pid)),
                Err(refusal) if is_no_news(&refusal) => Ok(None),
                Err(refusal) => Err(refusal.to_string()),
            }
        }
    }

    /// Whom a fastpath of others has just met, it lets go within milliseconds, served or not.
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

    /// The inode of the page that a process maps.
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
    /// Says that it cannot be done.
    pub fn attach(&self, task: &Task) -> Option<u64> {
        let why = "running processes are attached on x86-64 only";
        crate::log::say(
            crate::log::Priority::Notice,
            format_args!("process {} stays on the kernel's path: {why}", task.pid),
        );
        None
    }
}
