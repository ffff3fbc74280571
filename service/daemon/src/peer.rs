//! The clients, and facts about the process that a page is for.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use fastpath_protocol::{Code, RequestRefusal};
use fastpath_publish::{Offsets, UnknownOffsets};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::account::{Account, has_ended, pidfd_of_peer};
use crate::record::Requester;

/// A client that has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Process id here; 0: the process is in a PID namespace that cannot be seen from here.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Account whose share is used.
    pub account: Account,
}

/// Time for which the examination of a client's process holds.
const EXAMINED_EVERY: Duration = Duration::from_millis(250);
/// Limit of processes that are remembered, each by a descriptor.
const MOST_REMEMBERED: usize = 64;

/// The clients' processes that were examined a short time ago: an examination takes longer than the rest of accept(2),
/// and a process may connect thousands of times a second.
#[derive(Default)]
pub(crate) struct Examined(HashMap<(i32, u32), Known>);

struct Known {
    pidfd: OwnedFd,
    account: Account,
    at: Instant,
}

impl Examined {
    /// Reads SO_PEERCRED: the client at the time when it connected. The error: the client has ended.
    pub(crate) fn peer(&mut self, socket: &impl AsFd, now: Instant) -> io::Result<Peer> {
        let credentials = getsockopt(&socket.as_fd(), PeerCredentials)?;
        let (pid, uid) = (credentials.pid(), credentials.uid());
        if pid <= 0 {
            let account = Account::Unseen;
            return Ok(Peer { pid, uid, account });
        }
        let pidfd = pidfd_of_peer(socket.as_fd(), pid, uid)?;
        // Of two processes with one number at most one lives.
        let holds = |known: &Known| known.is_fresh(now) && !has_ended(&known.pidfd) && !has_ended(&pidfd);
        if let Some(known) = self.0.get(&(pid, uid)).filter(|known| holds(known)) {
            let account = known.account;
            return Ok(Peer { pid, uid, account });
        }
        let account = Account::of_process(&pidfd, pid, uid)?;
        if self.0.len() < MOST_REMEMBERED {
            self.0.insert(
                (pid, uid),
                Known {
                    pidfd,
                    account,
                    at: now,
                },
            );
        }
        Ok(Peer { pid, uid, account })
    }

    /// Forgets processes that must be examined again.
    pub(crate) fn tidy(&mut self, now: Instant) {
        self.0.retain(|_, known| known.is_fresh(now));
    }
}

impl Known {
    fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < EXAMINED_EVERY
    }
}

impl Peer {
    /// A client that has ended, or closed its connection, before it was examined.
    pub(crate) const ENDED: Peer = Peer {
        pid: 0,
        uid: u32::MAX,
        account: Account::Ended,
    };

    /// Returns the client as a record names it.
    pub(crate) fn by(&self) -> Requester {
        Requester {
            by_uid: self.uid,
            by_pid: self.pid,
        }
    }

    /// Returns the client's own process.
    pub(crate) fn process(&self) -> Result<Process, RequestRefusal> {
        if self.pid <= 0 {
            return Err(RequestRefusal::new(
                Code::Process,
                "this process is in a PID namespace that fastpathd cannot see into",
            ));
        }
        // Its user is the one that connected, even if another process has the number by now: the client may have ended,
        // and left the connection to another process.
        Ok(Process {
            uid: self.uid,
            ..Process::read(self.pid)?
        })
    }

    /// Returns the process that a pidfd names and its account; refuses if the client may not act on that process.
    pub(crate) fn process_of(&self, pidfd: BorrowedFd<'_>) -> Result<(Process, Account), RequestRefusal> {
        let process = Process::read(pid_of(pidfd)?)?;
        let account = Account::of_pid(process.pid, process.uid).map_err(|_| gone(process.pid))?;
        if !self.has_to_do_with(process.uid, account) {
            return Err(RequestRefusal::new(
                Code::Denied,
                format!("process {} is another user's", process.pid),
            ));
        }
        Ok((process, account))
    }

    /// Returns whether the client may act on a process of this user and account: root may on all, a container's root on all
    /// of its container, and a user of a container, who is not the host's user with that number, on its own there.
    pub(crate) fn has_to_do_with(&self, uid: u32, account: Account) -> bool {
        match self.uid {
            // A daemon in a PID namespace of its own cannot see a client outside, and serves no process there; it only
            // reports its status.
            0 => self.account.is_root() || self.account == Account::Unseen || self.account == account,
            own => {
                own == uid && (self.account == account || [Account::User(own), Account::Unseen].contains(&self.account))
            }
        }
    }
}

/// A process that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id as seen from here.
    pub pid: i32,
    /// Owner; root if the process has other privileges than its parent.
    pub uid: u32,
}

impl Process {
    /// Returns the process with this id.
    pub fn read(pid: i32) -> Result<Process, RequestRefusal> {
        match fs::metadata(format!("/proc/{pid}")) {
            Ok(about) => Ok(Process { pid, uid: about.uid() }),
            Err(_) => Err(gone(pid)),
        }
    }

    /// Returns how its clocks differ from this process's.
    pub fn offsets(&self) -> Result<Offsets, RequestRefusal> {
        Offsets::read(self.pid).map_err(|unknown| {
            let code = match unknown {
                UnknownOffsets::Gone(_) => Code::Process,
                UnknownOffsets::Unreadable(_) => Code::Unsupported,
            };
            RequestRefusal::new(code, unknown.to_string())
        })
    }
}

fn gone(pid: i32) -> RequestRefusal {
    RequestRefusal::new(Code::Process, format!("there is no process {pid} any more"))
}

/// Returns the process that a pidfd names, from /proc/self/fdinfo (pidfd_open(2)).
///
/// A client can send any descriptor. Only the link in /proc/self/fd is a safe way to find out what it is: an ioctl(2)
/// may be answered by the client itself (FUSE), and the fdinfo of an epoll or inotify descriptor lists as many entries
/// as the client has made.
fn pid_of(pidfd: BorrowedFd<'_>) -> Result<i32, RequestRefusal> {
    let is_no_pidfd = || RequestRefusal::new(Code::Malformed, "the descriptor is not a pidfd");
    let fd = pidfd.as_raw_fd();
    let link = fs::read_link(format!("/proc/self/fd/{fd}")).map_err(|_| is_no_pidfd())?;
    if !is_pidfd(&link.to_string_lossy()) {
        return Err(is_no_pidfd());
    }
    let mut info = Vec::new();
    let _ =
        fs::File::open(format!("/proc/self/fdinfo/{fd}")).and_then(|file| file.take(MOST_INFO).read_to_end(&mut info));
    let pid = String::from_utf8_lossy(&info)
        .lines()
        .find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    match pid {
        Some(pid) if pid > 0 => Ok(pid),
        Some(0) => Err(RequestRefusal::new(
            Code::Process,
            "that process is in a PID namespace that fastpathd cannot see into",
        )),
        Some(_) => Err(RequestRefusal::new(Code::Process, "that process has ended")),
        None => Err(is_no_pidfd()),
    }
}

/// Bytes of a pidfd's fdinfo that are read: some lines, one of which has a number for each of at most 32 PID
/// namespaces.
const MOST_INFO: u64 = 4096;

/// Returns whether a link in /proc/PID/fd is a pidfd's: an anonymous inode, or one of pidfs (Linux 6.9). A path begins
/// with a slash.
pub(crate) fn is_pidfd(link: &str) -> bool {
    link == "anon_inode:[pidfd]" || link.starts_with("pidfd:[")
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[test]
    fn a_pidfd_names_its_process_until_that_ends() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        assert_eq!(pid_of(pidfd.as_fd()), Ok(pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(pid_of(pidfd.as_fd()).unwrap_err().code, Code::Process);
        let file = fs::File::open("/proc/self/maps").unwrap();
        let (pipe, _other) = nix::unistd::pipe().unwrap();
        let named = nix::sys::memfd::memfd_create(c"pidfd:[1]", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        // fdinfo lists what is watched, and a line of an epoll's begins with `tfd:`.
        let epoll = nix::sys::epoll::Epoll::new(nix::sys::epoll::EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        for other in [file.as_fd(), pipe.as_fd(), named.as_fd(), epoll.0.as_fd()] {
            assert_eq!(pid_of(other).unwrap_err().code, Code::Malformed);
        }
    }

    #[test]
    fn a_client_is_the_process_that_connected() {
        let left_behind = Peer {
            pid: 1,
            uid: 65534,
            account: Account::User(65534),
        };
        assert_eq!(left_behind.process(), Ok(Process { pid: 1, uid: 65534 }));
    }

    #[test]
    fn another_users_process_is_not_his_to_ask_for() {
        let init = Process { pid: 1, uid: 0 };
        let pidfd = pidfd_open(Pid::INIT, PidfdFlags::empty()).unwrap();
        let user = Peer {
            pid: 7,
            uid: 65534,
            account: Account::User(65534),
        };
        assert_eq!(user.process_of(pidfd.as_fd()).unwrap_err().code, Code::Denied);
        let root = Peer {
            pid: 7,
            uid: 0,
            account: Account::Root,
        };
        assert_eq!(root.process_of(pidfd.as_fd()).map(|(process, _)| process), Ok(init));
        let container = Peer {
            account: Account::Container(1),
            ..root
        };
        assert_eq!(container.process_of(pidfd.as_fd()).unwrap_err().code, Code::Denied);
        assert!(container.has_to_do_with(33, Account::Container(1)));
    }

    #[test]
    fn a_user_of_a_container_is_not_the_hosts_user_with_that_number() {
        let peer = |account| Peer {
            pid: 7,
            uid: 1001,
            account,
        };
        let (host, container) = (Account::User(1001), Account::Container(1));
        assert!(peer(container).has_to_do_with(1001, container));
        assert!(!peer(container).has_to_do_with(1001, host));
        assert!(!peer(container).has_to_do_with(1001, Account::Container(2)));
        // A number that another user maps in its user namespace.
        assert!(!peer(Account::User(1002)).has_to_do_with(1001, host));
        // The kernel lets it trace its processes in a container, too.
        assert!(peer(host).has_to_do_with(1001, host) && peer(host).has_to_do_with(1001, container));
        assert!(!peer(host).has_to_do_with(1002, container));
    }
}
