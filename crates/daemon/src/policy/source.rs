//! How processes are noticed: the kernel tells of each exec (the proc connector, Documentation/driver-api/connector.rst), where this process
//! may listen (CAP_NET_ADMIN, in the first user namespace); else /proc is looked through.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::finding::processes;

/// include/uapi/linux/netlink.h, connector.h, cn_proc.h.
const NETLINK_CONNECTOR: libc::c_int = 11;
const CN_IDX_PROC: u32 = 1;
const CN_VAL_PROC: u32 = 1;
const PROC_CN_MCAST_LISTEN: u32 = 1;
const PROC_EVENT_EXEC: u32 = 2;
const NLMSG_DONE: u16 = 3;
/// struct nlmsghdr, and behind it struct cn_msg.
const NETLINK_HEADER: usize = 16;
const CONNECTOR_HEADER: usize = 20;

/// From one look through /proc to the next.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// One of the two ways.
pub enum Source {
    /// The kernel tells.
    Connector(OwnedFd),
    /// What was seen at the last look: when each process was started, and which program it runs.
    Polling(HashMap<i32, Seen>),
}

type Seen = (Option<u64>, Option<std::path::PathBuf>);

impl Source {
    /// The better one that can be had.
    pub fn open() -> Source {
        match connector() {
            Ok(socket) => Source::Connector(socket),
            Err(_) => Source::Polling(HashMap::new()),
        }
    }

    /// For `status`.
    pub fn name(&self) -> &'static str {
        match self {
            Source::Connector(_) => "connector",
            Source::Polling(_) => "polling",
        }
    }

    /// To be waited for.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Source::Connector(socket) => Some(socket.as_fd()),
            Source::Polling(_) => None,
        }
    }

    /// How often to look, where nobody tells.
    pub fn look_every(&self) -> Option<Duration> {
        matches!(self, Source::Polling(_)).then_some(LOOK_EVERY)
    }

    /// All processes that there are.
    pub fn all(&mut self) -> Vec<i32> {
        match self {
            Source::Connector(_) => processes(),
            Source::Polling(_) => self.news(true),
        }
    }

    /// Processes that were started since, or run another program than before.
    pub fn news(&mut self, ready: bool) -> Vec<i32> {
        match self {
            Source::Connector(socket) if ready => told(socket).unwrap_or_else(processes),
            Source::Connector(_) => Vec::new(),
            Source::Polling(known) => {
                let now: HashMap<i32, Seen> = processes().into_iter().map(|pid| (pid, look_at(pid))).collect();
                let is_new = |(pid, seen): (&i32, &Seen)| (known.get(pid) != Some(seen)).then_some(*pid);
                let new = now.iter().filter_map(is_new).collect();
                *known = now;
                new
            }
        }
    }
}

fn look_at(pid: i32) -> Seen {
    // The name, in parentheses, may hold anything; starttime is field 22 (proc_pid_stat(5)).
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let started = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok());
    (started, fs::read_link(format!("/proc/{pid}/exe")).ok())
}

fn connector() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes integers; the result is a new descriptor.
    let socket = match unsafe { libc::socket(libc::AF_NETLINK, kind, NETLINK_CONNECTOR) } {
        -1 => return Err(io::Error::last_os_error()),
        // SAFETY: just made.
        fd => unsafe { OwnedFd::from_raw_fd(fd) },
    };
    // SAFETY: sockaddr_nl is plain old data for which all zeroes is valid.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as u16;
    address.nl_groups = CN_IDX_PROC;
    let size = size_of_val(&address) as libc::socklen_t;
    // SAFETY: an address of this size.
    if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let request = listen_request();
    // SAFETY: the bytes outlive the call.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

fn listen_request() -> Vec<u8> {
    let mut bytes = Vec::new();
    let length = (NETLINK_HEADER + CONNECTOR_HEADER + 4) as u32;
    bytes.extend(length.to_ne_bytes());
    bytes.extend(NLMSG_DONE.to_ne_bytes());
    bytes.extend([0; 10]);
    for word in [CN_IDX_PROC, CN_VAL_PROC, 0, 0] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(4u16.to_ne_bytes());
    bytes.extend(0u16.to_ne_bytes());
    bytes.extend(PROC_CN_MCAST_LISTEN.to_ne_bytes());
    bytes
}

/// Processes that have made an exec. Nothing: there were more than the socket holds, and some were not told.
fn told(socket: &OwnedFd) -> Option<Vec<i32>> {
    let mut pids = Vec::new();
    loop {
        let mut bytes = [0u8; 512];
        // SAFETY: as many bytes as there is room for.
        let length = unsafe { libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if length < 0 {
            let lost = io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS);
            return (!lost).then_some(pids);
        }
        pids.extend(exec_of(&bytes[..length as usize]));
    }
}

/// Whose exec a message tells of, if it does: `what`, `cpu`, `timestamp_ns`, then `process_pid` and `process_tgid`.
fn exec_of(message: &[u8]) -> Option<i32> {
    let event = message.get(NETLINK_HEADER + CONNECTOR_HEADER..)?;
    let word = |at: usize| {
        let bytes = event.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    (word(0)? == PROC_EVENT_EXEC).then_some(())?;
    Some(word(20)? as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exec_is_told_with_the_process_and_other_events_are_not_execs() {
        let mut message = vec![0; NETLINK_HEADER + CONNECTOR_HEADER];
        for word in [PROC_EVENT_EXEC, 0, 0, 0, 71, 70] {
            message.extend(u32::to_ne_bytes(word));
        }
        assert_eq!(exec_of(&message), Some(70));
        assert_eq!(exec_of(&message[..message.len() - 1]), None);
        message[NETLINK_HEADER + CONNECTOR_HEADER] = 1;
        assert_eq!(exec_of(&message), None);
    }

    #[test]
    fn polling_sees_each_process_once_and_again_when_it_runs_another_program() {
        let mut source = Source::Polling(HashMap::new());
        let own = std::process::id() as i32;
        assert!(source.all().contains(&own));
        assert!(!source.news(true).contains(&own));
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read line; exec sleep 60"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        assert!(source.news(true).contains(&pid));
        assert!(!source.news(true).contains(&pid));
        drop(child.stdin.take());
        let begun = std::time::Instant::now();
        while !source.news(true).contains(&pid) {
            assert!(begun.elapsed() < Duration::from_secs(20), "its exec was never seen");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
