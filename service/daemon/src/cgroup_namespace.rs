//! The cgroup namespace: /proc/PID/cgroup shows paths relative to the reader's (cgroup_namespaces(7)). A container that
//! has the host's PID namespace has a cgroup namespace of its own, in which no rule of a policy would match.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// Enters the cgroup namespace of the first process of this PID namespace, if it is another one. Returns `Ok` too if
/// this process may not know which one that is.
pub(crate) fn enter_that_of_the_first_process() -> io::Result<()> {
    match File::open("/proc/1/ns/cgroup") {
        Ok(namespace) => enter(&namespace),
        Err(_) => Ok(()),
    }
}

fn enter(namespace: &File) -> io::Result<()> {
    let own = File::open("/proc/thread-self/ns/cgroup")?;
    if own.metadata()?.ino() == namespace.metadata()?.ino() {
        return Ok(());
    }
    // SAFETY: setns takes an open descriptor and an integer, and changes the calling thread only.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWCGROUP) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_in_a_cgroup_namespace_of_its_own_enters_another_one() {
        if crate::skip::needs_root().is_none() {
            return;
        }
        let inode = || std::fs::metadata("/proc/thread-self/ns/cgroup").unwrap().ino();
        let namespace = File::open("/proc/self/ns/cgroup").unwrap();
        std::thread::spawn(move || {
            let before = inode();
            // SAFETY: the call changes the calling thread only.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }, 0);
            assert_ne!(inode(), before);
            enter(&namespace).unwrap();
            assert_eq!(inode(), before);
        })
        .join()
        .unwrap();
    }
}
