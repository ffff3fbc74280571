//! Notices processes. The kernel reports each exec (the proc connector, Documentation/driver-api/connector.rst), where
//! this process may listen (CAP_NET_ADMIN, in the first user and PID namespaces); else /proc is polled.

use std::collections::HashMap;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// include/uapi/linux/netlink.h, connector.h, cn_proc.h.
const NETLINK_CONNECTOR: libc::c_int = 11;
const CN_IDX_PROC: u32 = 1;
const CN_VAL_PROC: u32 = 1;
const PROC_CN_MCAST_LISTEN: u32 = 1;
const PROC_EVENT_NONE: u32 = 0;
const PROC_EVENT_EXEC: u32 = 2;
const NLMSG_DONE: u16 = 3;
/// Size of struct nlmsghdr, which struct cn_msg follows.
const NETLINK_HEADER: usize = 16;
const CONNECTOR_HEADER: usize = 20;

/// Timeout of the acknowledgement, much longer than it takes.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_millis(500);

/// Time between two polls of /proc.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// One of the two ways.
pub(super) enum Source {
    /// The kernel reports execs.
    Connector(OwnedFd),
    /// State of each process at the last poll.
    Polling(HashMap<i32, Seen>),
}

/// A process at a poll.
pub(super) struct Seen {
    /// Inode number of its directory in /proc.
    inode: u64,
    started: Option<u64>,
    program: Option<PathBuf>,
}

impl Seen {
    /// Looks at a process. Its start time is read only if it may be another one than `before`: that takes most of the
    /// time of a poll.
    fn read(pid: i32, inode: u64, before: Option<&Seen>) -> Seen {
        let started = match before {
            Some(before) if before.inode == inode => before.started,
            _ => fastpath_os::Stat::read(pid).ok().map(|stat| stat.start_time),
        };
        let program = fs::read_link(format!("/proc/{pid}/exe")).ok();
        Seen {
            inode,
            started,
            program,
        }
    }

    fn is_new(&self, before: Option<&Seen>) -> bool {
        before.is_none_or(|before| (self.started, &self.program) != (before.started, &before.program))
    }
}

impl Source {
    /// Opens the connector if it is available, else polls.
    pub(super) fn open() -> Source {
        match connector() {
            Ok(socket) => Source::Connector(socket),
            Err(_) => Source::Polling(HashMap::new()),
        }
    }

    /// Returns the name of the source, for `status`.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Source::Connector(_) => "connector",
            Source::Polling(_) => "polling",
        }
    }

    /// Returns the descriptor to wait for.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Source::Connector(socket) => Some(socket.as_fd()),
            Source::Polling(_) => None,
        }
    }

    /// Returns the time between two polls, where the kernel does not report.
    pub(super) fn look_every(&self) -> Option<Duration> {
        matches!(self, Source::Polling(_)).then_some(LOOK_EVERY)
    }

    /// Returns all processes.
    pub(super) fn all(&mut self) -> Vec<i32> {
        match self {
            Source::Connector(_) => all(),
            Source::Polling(_) => self.news(true),
        }
    }

    /// Returns processes that were started since, or run another program than before.
    pub(super) fn news(&mut self, ready: bool) -> Vec<i32> {
        match self {
            Source::Connector(socket) if ready => told(socket).unwrap_or_else(all),
            Source::Connector(_) => Vec::new(),
            Source::Polling(known) => {
                let all = fastpath_os::processes_with_inodes().into_iter().flatten();
                let look = |(pid, inode)| (pid, Seen::read(pid, inode, known.get(&pid)));
                let now: HashMap<i32, Seen> = all.map(look).collect();
                let is_new = |(pid, seen): (&i32, &Seen)| seen.is_new(known.get(pid)).then_some(*pid);
                let new = now.iter().filter_map(is_new).collect();
                *known = now;
                new
            }
        }
    }
}

fn all() -> Vec<i32> {
    fastpath_os::processes().into_iter().flatten().collect()
}

fn connector() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes integers; the result is a new descriptor.
    let socket = match unsafe { libc::socket(libc::AF_NETLINK, kind, NETLINK_CONNECTOR) } {
        -1 => return Err(io::Error::last_os_error()),
        // SAFETY: socket has just returned this descriptor, and nothing else owns it.
        fd => unsafe { OwnedFd::from_raw_fd(fd) },
    };
    // SAFETY: sockaddr_nl is plain old data for which all zeroes is valid.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as u16;
    address.nl_groups = CN_IDX_PROC;
    let size = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer is to an address of `size` bytes.
    if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let number = RandomState::new().hash_one(std::process::id()) as u32;
    let request = listen_request(number);
    // SAFETY: the bytes outlive the call.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    match is_acknowledged(&socket, number) {
        true => Ok(socket),
        // Outside the first PID namespace the kernel reports nothing, not even this, and reports requested by other
        // processes arrive here, too.
        false => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Returns whether the kernel has accepted the request of this number: it answers at once, while the request is sent.
/// Events that come before are not lost, because all processes are looked at next.
fn is_acknowledged(socket: &OwnedFd, number: u32) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < ACKNOWLEDGED_WITHIN {
        let mut ready = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut ready, PollTimeout::from(10u8));
        let acknowledged = receive(socket).ok().and_then(|message| acknowledgement(&message));
        if let Some((_, error)) = acknowledged.filter(|(of, _)| *of == number) {
            return error == 0;
        }
    }
    false
}

fn listen_request(number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let length = (NETLINK_HEADER + CONNECTOR_HEADER + 4) as u32;
    bytes.extend(length.to_ne_bytes());
    bytes.extend(NLMSG_DONE.to_ne_bytes());
    bytes.extend([0; 10]);
    for word in [CN_IDX_PROC, CN_VAL_PROC, number, 0] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(4u16.to_ne_bytes());
    bytes.extend(0u16.to_ne_bytes());
    bytes.extend(PROC_CN_MCAST_LISTEN.to_ne_bytes());
    bytes
}

/// Returns processes that have made an exec. `None`: there were more than the socket holds, and some were lost.
fn told(socket: &OwnedFd) -> Option<Vec<i32>> {
    let mut pids = Vec::new();
    loop {
        match receive(socket) {
            Ok(message) => pids.extend(exec_of(&message)),
            Err(error) => {
                let lost = error.raw_os_error() == Some(libc::ENOBUFS);
                return (!lost).then_some(pids);
            }
        }
    }
}

fn receive(socket: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; 512];
    // SAFETY: recv writes at most `bytes.len()` bytes to `bytes`.
    let length = unsafe { libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    bytes.truncate(length as usize);
    Ok(bytes)
}

/// Returns a word of an event: `what`, `cpu`, `timestamp_ns`, then what depends on `what`.
fn word(message: &[u8], at: usize) -> Option<u32> {
    let event = message.get(NETLINK_HEADER + CONNECTOR_HEADER..)?;
    Some(u32::from_ne_bytes(event.get(at..at + 4)?.try_into().ok()?))
}

/// Returns the process whose exec a message reports, if it does: `process_tgid`, after `process_pid`.
fn exec_of(message: &[u8]) -> Option<i32> {
    (word(message, 0)? == PROC_EVENT_EXEC).then_some(())?;
    Some(word(message, 20)? as i32)
}

/// Returns the number of the request that a message acknowledges, if it does, and the error. In struct cn_msg, the
/// number follows the ids.
fn acknowledgement(message: &[u8]) -> Option<(u32, u32)> {
    (word(message, 0)? == PROC_EVENT_NONE).then_some(())?;
    let number = message.get(NETLINK_HEADER + 8..)?.first_chunk()?;
    Some((u32::from_ne_bytes(*number), word(message, 16)?))
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

    #[test]
    fn polling_tells_a_process_from_an_earlier_one_of_its_number_and_program() {
        let mut source = Source::Polling(HashMap::new());
        let own = std::process::id() as i32;
        source.all();
        let mut change = |change: fn(&mut Seen)| {
            if let Source::Polling(known) = &mut source {
                known.get_mut(&own).map(change).expect("this process");
            }
            source.news(true).contains(&own)
        };
        let another_directory = |seen: &mut Seen| seen.inode += 1;
        let another_process = |seen: &mut Seen| {
            seen.inode += 1;
            seen.started = Some(0);
        };
        assert!(!change(another_directory) && change(another_process) && !change(|_| ()));
    }
}
