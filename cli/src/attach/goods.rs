//! What processes are given: a page, and a mailbox by which its publisher knows that it is needed.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use fastpath_daemon::Policy;
use fastpath_page::ClockSet;
use fastpath_protocol::Code;
use fastpath_protocol::client::{Client, Failure};
use fastpath_publisher::evidence::Trust;

use super::helper;
use crate::run::helper::Surroundings;

/// What is asked for.
pub struct Wanted {
    pub clocks: ClockSet,
    pub trust: Trust,
    /// Descendants are to be met as they start.
    pub children: bool,
    /// Which of them not.
    pub policy: Option<DaemonsPolicy>,
}

/// The policy of the daemon of this host, read at each question: the file may change.
#[derive(Clone)]
pub struct DaemonsPolicy(PathBuf);

impl DaemonsPolicy {
    /// Nothing, where no daemon runs.
    pub fn find() -> Option<DaemonsPolicy> {
        let status = Client::connect().ok()?.status().ok()?;
        Some(DaemonsPolicy(status.policy?.into()))
    }

    /// Why a process is not to be served. A policy that cannot be read, or has a mistake, forbids it: to leave it alone is safe.
    pub fn against(&self, pid: i32) -> Option<String> {
        match Policy::read(&self.0) {
            Ok(Some(policy)) if policy.forbids(pid) => {
                Some(format!("{} says never for process {pid}", self.0.display()))
            }
            Ok(_) => None,
            Err(why) => Some(why),
        }
    }
}

/// What is given.
pub struct Goods {
    pub page: OwnedFd,
    pub mailbox: OwnedFd,
    /// The attendant, where those who ask it for something must declare it first; else 0.
    pub ptracer: u32,
    /// A publisher of our own stays as long as this is open, or somebody maps the mailbox.
    _needed: Option<UnixStream>,
}

/// A time namespace other than our own.
pub struct TimeNamespace(pub File);

/// Processes by the time namespace that they are in, `None`: ours.
pub fn by_time_namespace(pids: &[i32]) -> Vec<(Option<TimeNamespace>, Vec<i32>)> {
    // A kernel without time namespaces has no such file.
    let open = |pid: &str| File::open(format!("/proc/{pid}/ns/time")).ok();
    let inode = |file: &File| file.metadata().ok().map(|meta| meta.ino());
    let own = open("self").as_ref().and_then(inode);
    let mut groups: BTreeMap<Option<u64>, (Option<TimeNamespace>, Vec<i32>)> = BTreeMap::new();
    for pid in pids {
        let file = open(&pid.to_string());
        let number = file.as_ref().and_then(inode).filter(|number| Some(*number) != own);
        let namespace = number.and(file).map(TimeNamespace);
        groups
            .entry(number)
            .or_insert_with(|| (namespace, Vec::new()))
            .1
            .push(*pid);
    }
    groups.into_values().collect()
}

/// A page for one process from the daemon of this host. Nothing: none runs here, or it has no page to give, or descendants are to be met,
/// which takes a helper of our own. An error: its policy says never.
pub fn of_daemon(wanted: &Wanted, pid: i32) -> Result<Option<Goods>, String> {
    if wanted.children {
        return Ok(None);
    }
    let given = pidfd(pid)
        .zip(Client::connect().ok())
        .map(|(pidfd, client)| client.page(wanted.clocks.0, Some(pidfd.as_fd()), None));
    match given {
        Some(Ok(given)) => Ok(given.mailbox.map(|mailbox| Goods {
            page: given.page,
            mailbox,
            ptracer: 0,
            _needed: None,
        })),
        Some(Err(Failure::Refused(refusal))) if refusal.code == Code::Policy => Err(refusal.sentence),
        _ => Ok(None),
    }
}

/// Names a process for good.
pub fn pidfd(pid: i32) -> Option<OwnedFd> {
    // SAFETY: pidfd_open takes integers; the result is a new descriptor.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
    // SAFETY: just made.
    (pidfd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// A page with the clocks of a time namespace, that of `pid`, kept for as long as a process maps it. An error says why there is none.
pub fn get(
    wanted: &Wanted,
    pid: i32,
    namespace: Option<&TimeNamespace>,
    surroundings: &Surroundings,
) -> Result<Goods, String> {
    let (page, mailbox, ptracer, needed) = helper::start(wanted, pid, namespace, surroundings)?;
    Ok(Goods {
        page,
        mailbox,
        ptracer,
        _needed: Some(needed),
    })
}
