//! The socket that clients connect to.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fastpath_protocol::{Client, Failure};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen as listen_on, socket};

/// Clients that wait to be accepted, at most; the kernel makes others wait, or refuses them.
const QUEUE: i32 = 1024;

/// Listens at a path that everybody may connect to. What a dead daemon left there is removed; a living one's is not.
pub fn listen(path: &Path) -> Result<Listener, String> {
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{}: {what}: {error}", path.display());
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)
            .map_err(|e| failed("its directory cannot be made", &e))?;
    }
    // Two that begin at the same time would each remove the other's.
    let _alone = alone_in(path).map_err(|e| failed("cannot listen", &e))?;
    match fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => match Client::connect_to(path) {
            Ok(_) => return Err(failed("cannot listen", &"another fastpathd listens there")),
            Err(Failure::NoDaemon { error, .. }) if error.kind() == io::ErrorKind::ConnectionRefused => {
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
        // Who may have what is decided by who asks, not by who may connect.
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        listen_on(&listener, Backlog::new(QUEUE)?)?;
        let inode = fs::symlink_metadata(path)?.ino();
        io::Result::Ok(Listener {
            socket: listener,
            path: path.to_owned(),
            inode,
        })
    })();
    made.map_err(|e| failed("cannot listen", &e))
}

/// A socket that clients find at its path. Without it, programs do without a daemon, and do not wait for one.
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    inode: u64,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Somebody may have removed it, and another daemon have made one.
        if fs::symlink_metadata(&self.path).is_ok_and(|there| there.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Keeps other daemons from the directory of a path.
fn alone_in(path: &Path) -> io::Result<File> {
    const TRIES: u32 = 100;
    const EVERY: Duration = Duration::from_millis(50);
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let file = File::open(directory.unwrap_or(Path::new(".")))?;
    for _ in 0..TRIES {
        // SAFETY: flock of a descriptor that is open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(file);
        }
        std::thread::sleep(EVERY);
    }
    Err(io::Error::other("somebody keeps the socket's directory locked (flock)"))
}
