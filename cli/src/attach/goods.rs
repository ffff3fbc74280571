//! What processes are given: a page, and a mailbox by which its publisher knows that it is needed.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

use fastpath_page::ClockSet;
use fastpath_protocol::Client;
use fastpath_publisher::evidence::Trust;

use super::helper;
use crate::run::helper::Surroundings;

/// What is asked for.
pub struct Wanted {
    pub clocks: ClockSet,
    pub trust: Trust,
    /// Descendants are to be met as they start.
    pub children: bool,
}

/// What is given.
pub struct Goods {
    pub page: OwnedFd,
    pub mailbox: OwnedFd,
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

/// A page for one process from the daemon of this host. `None`: none runs here, or it has no page to give, or descendants are to be met,
/// which takes a helper of our own.
pub fn of_daemon(wanted: &Wanted, pid: i32) -> Option<Goods> {
    if wanted.children {
        return None;
    }
    // SAFETY: pidfd_open takes integers; the result is a new descriptor.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
    if pidfd < 0 {
        return None;
    }
    // SAFETY: just made.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let client = Client::connect().ok()?;
    let given = client.page(wanted.clocks.0, Some(pidfd.as_fd()), None).ok()?;
    Some(Goods {
        page: given.page,
        mailbox: given.mailbox?,
        _needed: None,
    })
}

/// A page with the clocks of a time namespace, published for as long as a process maps it. An error says why there is none.
pub fn get(wanted: &Wanted, namespace: Option<&TimeNamespace>, surroundings: &Surroundings) -> Result<Goods, String> {
    let (page, mailbox, needed) = helper::start(wanted, namespace, surroundings)?;
    Ok(Goods {
        page,
        mailbox,
        _needed: Some(needed),
    })
}
