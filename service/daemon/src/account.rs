//! The account whose share a peer's connections, requests and pages are taken from.
//!
//! The account is not simply the peer's user: a user with subordinate users (subuid(5)) can be as many users as it likes,
//! in user namespaces of its own. So a peer in another user namespace than the daemon's is charged to the owner of the
//! outermost one, which is a user of the daemon's own. And the root of a container is not the root of the host, even
//! without a user namespace (Docker's default): it is uid 0 in another PID namespace, and is charged to its container,
//! which is the outermost PID namespace below the daemon's. Only the host's root can make such a namespace, so no
//! container has more than one share. A process with uid 0 that shares the host's PID namespace (`--pid host`) counts
//! as the host's root.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The account that is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Account {
    /// The root of the daemon's own namespaces.
    Root,
    /// A user of the daemon's own namespace, for itself or for the user namespaces that it made.
    User(u32),
    /// A container that the host's root made: inode of its PID namespace.
    Container(u64),
    /// All processes that cannot be examined from here, together.
    Unseen,
    /// All processes that have ended, or closed their connection, before they were examined, together.
    Ended,
}

/// SO_PEERPIDFD, include/uapi/asm-generic/socket.h (Linux 6.5).
const SO_PEERPIDFD: libc::c_int = 77;
/// include/uapi/linux/nsfs.h.
const NS_GET_PARENT: libc::Ioctl = 0xb702;
const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;
/// Nesting limit of namespaces: they are nested no deeper than 32.
const MOST_NESTED: usize = 33;

impl Account {
    /// Returns the account of a process and its user, by their ids in the daemon's namespaces.
    pub(crate) fn of_pid(pid: i32, uid: u32) -> io::Result<Account> {
        Account::of_process(&open_pidfd(pid)?, pid, uid)
    }

    /// Returns whether it is a container or unseen: these can be many without being many users.
    pub(crate) fn is_container(self) -> bool {
        matches!(self, Account::Container(_) | Account::Unseen)
    }

    /// Returns whether it is the host's root, which has no limit of its own.
    pub(crate) fn is_root(self) -> bool {
        self == Account::Root
    }

    /// Returns the account of a process and its user. The error: the process has ended, and its account cannot be
    /// determined.
    pub(crate) fn of_process(pidfd: &OwnedFd, pid: i32, uid: u32) -> io::Result<Account> {
        let account = look(pid, uid);
        // The namespaces were the peer's only if it has not ended meanwhile.
        if has_ended(pidfd) {
            return Err(gone());
        }
        account
    }
}

fn look(pid: i32, uid: u32) -> io::Result<Account> {
    let namespaces = outermost(pid, "user").and_then(|user| Ok((user, outermost(pid, "pid")?)));
    let (user, of_pids) = match namespaces {
        Ok(namespaces) => namespaces,
        // A daemon that is not root's may examine only its own user's processes.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Ok(if uid == 0 { Account::Root } else { Account::User(uid) });
        }
        Err(error) => return Err(error),
    };
    if let Some(namespace) = &user {
        let owner = owner_of(namespace)?;
        if owner != 0 {
            return Ok(Account::User(owner));
        }
    }
    // A user namespace of the host's root without a PID namespace of its own is a container, too.
    match of_pids.or(user) {
        Some(container) => Ok(Account::Container(container.metadata()?.ino())),
        None if uid == 0 => Ok(Account::Root),
        None => Ok(Account::User(uid)),
    }
}

/// Returns the ancestor of a process's namespace, or that namespace itself, that is a child of the daemon's own; `None`
/// if the process is in the daemon's own, or outside of it.
fn outermost(pid: i32, kind: &str) -> io::Result<Option<File>> {
    let own = fs::metadata(format!("/proc/self/ns/{kind}"))?;
    let mut at = File::open(format!("/proc/{pid}/ns/{kind}"))?;
    let mut outermost = None;
    for _ in 0..MOST_NESTED {
        let about = at.metadata()?;
        if (about.dev(), about.ino()) == (own.dev(), own.ino()) {
            return Ok(outermost);
        }
        // SAFETY: this ioctl has no argument; the result is a new descriptor.
        let parent = unsafe { libc::ioctl(at.as_raw_fd(), NS_GET_PARENT) };
        if parent < 0 {
            // The parent cannot be seen: this namespace does not descend from the daemon's.
            return Ok(None);
        }
        // SAFETY: the ioctl has just returned this descriptor, and nothing else owns it.
        outermost = Some(std::mem::replace(&mut at, unsafe { File::from_raw_fd(parent) }));
    }
    Err(io::Error::other("its namespaces are nested without end"))
}

fn owner_of(namespace: &File) -> io::Result<u32> {
    let mut owner: libc::uid_t = 0;
    // SAFETY: this ioctl writes one uid_t, to a valid one.
    match unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID, &raw mut owner) } {
        0 => Ok(owner),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns a pidfd of a connected peer, with its process and user from SO_PEERCRED.
pub(crate) fn pidfd_of_peer(socket: BorrowedFd<'_>, pid: i32, uid: u32) -> io::Result<OwnedFd> {
    match peer_pidfd(socket) {
        // A kernel before 6.5. The process with the number now counts as the peer, if it belongs to the same user.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            let pidfd = open_pidfd(pid)?;
            match effective_uid(pid)? == uid {
                true => Ok(pidfd),
                false => Err(gone()),
            }
        }
        pidfd => pidfd,
    }
}

fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut size = size_of_val(&fd) as libc::socklen_t;
    // SAFETY: this option writes one descriptor of `size` bytes.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut size,
        )
    };
    match asked {
        // SAFETY: getsockopt has just made this descriptor, and nothing else owns it.
        0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn open_pidfd(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or_else(gone)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Returns whether the process has ended.
pub(crate) fn has_ended(pidfd: &OwnedFd) -> bool {
    fastpath_os::is_ready(pidfd, libc::POLLIN, std::time::Duration::ZERO)
}

fn effective_uid(pid: i32) -> io::Result<u32> {
    let ids = fastpath_os::Status::read(pid)?.numbers("Uid").unwrap_or_default();
    ids.get(1).copied().ok_or_else(gone)
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    fn of_started(mut command: Command) -> Option<Account> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = [0; 3];
        let ready = io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said);
        // unshare --fork: the program is the child.
        let pid = child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let program = children
            .split_whitespace()
            .next()
            .map_or(pid as i32, |pid| pid.parse().unwrap());
        let uid = effective_uid(program);
        let account = ready.is_ok().then(|| Account::of_pid(program, uid.unwrap()).unwrap());
        drop(child.stdin.take());
        let _ = child.wait();
        account
    }

    fn started(program: &[&str], uid: u32) -> Option<Account> {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).args(["sh", "-c", "echo ok; read line"]);
        command.uid(uid).gid(uid);
        of_started(command)
    }

    #[test]
    fn this_process_is_charged_to_its_user() {
        let uid = nix::unistd::geteuid().as_raw();
        let own = Account::of_pid(std::process::id() as i32, uid).unwrap();
        assert_eq!(own, if uid == 0 { Account::Root } else { Account::User(uid) });
    }

    #[test]
    fn a_user_namespace_is_charged_to_the_user_who_made_the_outermost() {
        if crate::skip::needs_root().is_none() {
            return;
        }
        let container = |account: Option<Account>| matches!(account, Some(Account::Container(_)));
        assert_eq!(started(&["env"], 65534), Some(Account::User(65534)));
        assert_eq!(started(&["env"], 0), Some(Account::Root));
        let Some(of_root) = started(&["unshare", "--user", "--map-root-user"], 0) else {
            return crate::skip::skip("no user namespaces here");
        };
        assert!(container(Some(of_root)));
        assert!(container(started(&["unshare", "--pid", "--fork"], 0)));
        let another = ["unshare", "--pid", "--fork", "setpriv", "--reuid", "65534"];
        assert!(container(started(&another, 0)));
        let nested = [
            "unshare",
            "--user",
            "--map-root-user",
            "unshare",
            "--user",
            "--map-root-user",
        ];
        if let Some(account) = started(&nested[..3], 65534) {
            assert_eq!(account, Account::User(65534));
            assert_eq!(started(&nested, 65534), Some(Account::User(65534)));
        }
    }
}
