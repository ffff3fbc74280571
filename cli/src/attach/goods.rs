//! What processes get: a page, and a mailbox by which its publisher knows that the page is needed.

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

/// Options that the user asked for.
pub struct Wanted {
    pub clocks: ClockSet,
    pub trust: Trust,
    /// Whether descendants are served as they start.
    pub children: bool,
    /// Policy that excludes some of them.
    pub policy: Option<DaemonsPolicy>,
}

/// Policy of this host's daemon, read at each question: the file may change.
#[derive(Clone)]
pub struct DaemonsPolicy(PathBuf);

impl DaemonsPolicy {
    /// Finds the policy; `None` if no daemon runs.
    pub fn find() -> Option<DaemonsPolicy> {
        let status = Client::connect().ok()?.status().ok()?;
        Some(DaemonsPolicy(status.policy?.into()))
    }

    /// Returns why a process must not be served. A policy that cannot be read, or has a mistake, forbids it: leaving a
    /// process alone is safe.
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

/// Grant: the page and the mailbox for a process.
pub struct Goods {
    pub page: OwnedFd,
    pub mailbox: OwnedFd,
    /// Attendant that its clients must declare before they ask (PR_SET_PTRACER), where Yama requires that; else 0.
    pub ptracer: u32,
    /// The publisher that this process started stays as long as this is open, or a process maps the mailbox.
    _needed: Option<UnixStream>,
}

/// A time namespace other than this process's.
pub struct TimeNamespace(pub File);

/// Returns processes by their time namespace; `None` is this process's.
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

/// Returns a page for one process from this host's daemon; `None` if no daemon runs, or it has no page to give, or
/// descendants must be served, which takes a helper of this command's. The error: the daemon's policy says never.
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

/// Opens a pidfd, which names a process for good.
pub fn pidfd(pid: i32) -> Option<OwnedFd> {
    // SAFETY: pidfd_open takes integers; the result is a new descriptor.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
    // SAFETY: pidfd_open has just returned this descriptor, and nothing else owns it.
    (pidfd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// Returns a page with the clocks of `pid`'s time namespace, kept for as long as a process maps it.
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
