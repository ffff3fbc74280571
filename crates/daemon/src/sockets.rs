//! The socket that clients connect to.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::Path;

use fastpath_protocol::{Client, Failure};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen as listen_on, socket};

/// Clients that wait to be accepted, at most; the kernel makes others wait, or refuses them.
const QUEUE: i32 = 1024;

/// Listens at a path that everybody may connect to. What a dead daemon left there is removed; a living one's is not.
pub fn listen(path: &Path) -> Result<OwnedFd, String> {
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{}: {what}: {error}", path.display());
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)
            .map_err(|e| failed("its directory cannot be made", &e))?;
    }
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
        io::Result::Ok(listener)
    })();
    made.map_err(|e| failed("cannot listen", &e))
}

/// To be called at the end. Programs then do without a daemon, and do not wait for one.
pub fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}
