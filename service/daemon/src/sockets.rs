//! The socket that clients connect to.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fastpath_protocol::{Client, ClientError, SOCKET, SOCKET_VARIABLE};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, listen as listen_on, socket,
};
use sha2::{Digest, Sha256};

/// Limit of clients that wait to be accepted. They are accepted in their order, and one user can fill the queue, so the
/// limit bounds how long the others wait; they try to connect until it has room.
pub(crate) const QUEUE: i32 = 16;

/// Listens at a path that every user may connect to. Removes the socket of a dead daemon there, but not that of a
/// running one. Makes the directory of the default socket only: another path may be mistyped.
pub(crate) fn listen(path: &Path) -> Result<Listener, String> {
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{}: {what}: {error}", path.display());
    if let Some(directory) = path.parent().filter(|_| path == Path::new(SOCKET)) {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)
            .map_err(|e| failed("its directory cannot be made", &with_advice(&e)))?;
    }
    if path
        .parent()
        .is_some_and(|directory| !directory.as_os_str().is_empty() && !directory.is_dir())
    {
        let advice = format!("its directory does not exist: make it, or correct --socket or {SOCKET_VARIABLE}");
        return Err(failed("cannot listen", &advice));
    }
    // Two daemons that start at the same time would each remove the other's socket.
    let _alone = alone_at(path).map_err(|e| failed("cannot listen", &e))?;
    match fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => match Client::connect_to(path) {
            Ok(_) => return Err(failed("cannot listen", &"another fastpathd listens there")),
            Err(ClientError::NoDaemon { error, .. }) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(|e| failed("a dead daemon's socket cannot be removed", &e))?;
            }
            Err(error) => return Err(failed("cannot listen", &error)),
        },
        Ok(_) => return Err(failed("cannot listen", &"there is a file that is not a socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("cannot listen", &error)),
    }
    let made = (|| {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        bind(listener.as_raw_fd(), &UnixAddr::new(path)?)?;
        // Access is decided by who the client is, not by whether it may connect.
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        listen_on(&listener, Backlog::new(QUEUE)?)?;
        let inode = fs::symlink_metadata(path)?.ino();
        io::Result::Ok(Listener {
            socket: listener,
            path: path.to_owned(),
            inode,
        })
    })();
    made.map_err(|e| failed("cannot listen", &with_advice(&e)))
}

/// Returns an error, with what to do about it if this user may not write there.
fn with_advice(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("{error}; run it as root, or set {SOCKET_VARIABLE} to a path of this user's, for its clients too")
        }
        _ => error.to_string(),
    }
}

/// A socket that clients find at its path. Without it, programs do without a daemon, and do not wait for one.
pub(crate) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    inode: u64,
}

impl Listener {
    /// Accepts a client.
    pub(crate) fn accept(&self) -> nix::Result<OwnedFd> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let accepted = accept4(self.socket.as_raw_fd(), flags)?;
        // SAFETY: accept4 has just returned this descriptor, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(accepted) })
    }

    /// Returns whether the path is this daemon's: the socket may have been removed, and another daemon may have made a
    /// new one.
    fn is_at_path(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|there| there.ino() == self.inode)
    }

    /// Returns the mark of the pages of a daemon that listens here: only the next daemon at the same path takes them
    /// up. Never 0.
    pub(crate) fn keeper(&self) -> u64 {
        // All names of a path give the same mark.
        let place = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let [a, b, c, d, e, f, g, h, ..]: [u8; 32] = Sha256::digest(place.as_os_str().as_bytes()).into();
        u64::from_le_bytes([a, b, c, d, e, f, g, h]) | 1
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.is_at_path() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Keeps other daemons from the path, by a lock on a file beside it that only this user can open. A process that can
/// open a file, even only for reading, can lock it: so the directory itself, which other users can open, cannot serve
/// as the lock.
fn alone_at(path: &Path) -> Result<File, String> {
    const TRIES: u32 = 100;
    const EVERY: Duration = Duration::from_millis(50);
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let failed = |error: &dyn std::fmt::Display| format!("the lock {}: {error}", name.display());
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(LOCK_MODE)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(&name)
        .map_err(|e| failed(&with_advice(&e)))?;
    let about = file.metadata().map_err(|e| failed(&e))?;
    if !about.is_file() || about.uid() != nix::unistd::geteuid().as_raw() {
        return Err(failed(&"it is not a file of this user's: remove it"));
    }
    file.set_permissions(fs::Permissions::from_mode(LOCK_MODE))
        .map_err(|e| failed(&e))?;
    for _ in 0..TRIES {
        // SAFETY: flock takes an open descriptor and an integer.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(file);
        }
        std::thread::sleep(EVERY);
    }
    Err(failed(&"another process of this user holds it: end that first"))
}

const LOCK_MODE: u32 = 0o600;
