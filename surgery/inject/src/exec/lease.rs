//! Whether any process still maps a mailbox: the kernel counts it (fcntl(2), F_SETLEASE). Page and attendant are kept
//! as long as that.
//!
//! A client that brings a mailbox can hold a lease on it itself. open(2) then waits up to
//! /proc/sys/fs/lease-break-time, unless it is called with O_NONBLOCK: the mailbox is refused instead.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals};

/// Name of a mailbox, for memfd_create(2).
pub const MAILBOX_NAME: &std::ffi::CStr = c"fastpath-mailbox";
/// Name that /proc/PID/maps shows for it, before ` (deleted)`.
pub const MAILBOX_MAPPED_NAME: &str = "/memfd:fastpath-mailbox";
/// Size of a mailbox in bytes.
pub(crate) const SIZE: u64 = 4096;
/// Seals that keep the file from being truncated while it is read.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Descriptor of a mailbox, used only to find out whether the mailbox is in use.
pub struct Lease(File);

impl Lease {
    /// Makes a mailbox. Returns its lease and the memfd itself, whose mappings the kernel does not count: what is given
    /// away must be opened anew ([`reopen`]).
    pub fn create() -> io::Result<(Lease, OwnedFd)> {
        let fd = memfd_create(MAILBOX_NAME, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        nix::unistd::ftruncate(&fd, SIZE as i64)?;
        fcntl_add_seals(&fd, SEALS | SealFlags::SEAL)?;
        Ok((Lease(open(&fd, OFlag::O_RDONLY)?.into()), fd))
    }

    /// Returns the lease of a mailbox that another process made. A file that is not a sealed piece of memory is refused
    /// before it is opened.
    pub fn take(mailbox: &(impl AsFd + AsRawFd)) -> io::Result<Lease> {
        // A file that is not a memfd has no seals.
        if !fcntl_get_seals(mailbox).is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(io::Error::other(
                "it is not a memfd that is sealed against shrinking and growing",
            ));
        }
        let reader = File::from(open(mailbox, OFlag::O_RDONLY)?);
        if reader.metadata()?.len() != SIZE {
            return Err(io::Error::other(format!("it is not of {SIZE} bytes")));
        }
        Ok(Lease(reader))
    }

    /// Returns whether any process maps it, or is about to. `None`: leases are not available here (an LSM).
    pub fn in_use(&self) -> Option<bool> {
        let lease = |kind: libc::c_int| {
            // SAFETY: fcntl with an int argument.
            let answer = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, kind) };
            if answer < 0 { Err(Errno::last()) } else { Ok(()) }
        };
        match lease(libc::F_RDLCK) {
            Err(Errno::EAGAIN) => Some(true),
            Ok(()) => {
                // A lease that is kept would hold up the next open of the file.
                let _ = lease(libc::F_UNLCK);
                Some(false)
            }
            Err(_) => None,
        }
    }
}

/// Opens a mailbox anew. Unlike the descriptor of [`Lease::create`], the kernel counts this one as a writer until it is
/// closed and the last mapping made from it is gone.
pub fn reopen(mailbox: &impl AsRawFd) -> io::Result<OwnedFd> {
    open(mailbox, OFlag::O_RDWR)
}

/// Opens a memfd anew, without waiting for the holder of a lease on it.
pub fn open(file: &impl AsRawFd, flags: OFlag) -> io::Result<OwnedFd> {
    let path = fastpath_os::path_of(file);
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    match nix::fcntl::open(path.as_str(), flags, nix::sys::stat::Mode::empty()) {
        Err(Errno::EAGAIN) => Err(io::Error::other(
            "another lease is held on it (fcntl F_SETLEASE): release it first",
        )),
        opened => Ok(opened?),
    }
}

/// Installs a handler for SIGIO. A client that opens its mailbox while this process takes the lease breaks the lease:
/// the kernel then sends SIGIO, which would end the process. The lease is released at once anyway. Unlike SIG_IGN, a
/// handler is not inherited by programs that this process starts.
pub fn outlive_breaks() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: a handler that does nothing is async-signal-safe.
    unsafe { sigaction(Signal::SIGIO, &action) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Waits until `what` holds: a process that another test starts has all descriptors of this one until it executes
    /// its program.
    fn until(mut what: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !what() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never came to that");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_mailbox_is_in_use_until_the_last_who_has_it_is_gone() {
        let (lease, memfd) = Lease::create().unwrap();
        until(|| lease.in_use() == Some(false));
        let mailbox = reopen(&memfd).unwrap();
        assert_eq!(lease.in_use(), Some(true));
        let again = mailbox.try_clone().unwrap();
        drop(mailbox);
        assert_eq!(lease.in_use(), Some(true));
        drop(again);
        until(|| lease.in_use() == Some(false));
    }

    #[test]
    fn what_is_not_a_sealed_memfd_of_the_right_size_is_no_mailbox() {
        let (_, mailbox) = Lease::create().unwrap();
        assert!(Lease::take(&mailbox).is_ok());
        let (pipe, _other) = nix::unistd::pipe().unwrap();
        assert!(Lease::take(&pipe).is_err());
        assert!(Lease::take(&File::open("/proc/self/maps").unwrap()).is_err());
        let unsealed = memfd_create(c"x", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        assert!(Lease::take(&unsealed).is_err());
        fcntl_add_seals(&unsealed, SEALS).unwrap();
        assert!(Lease::take(&unsealed).is_err(), "it is empty");
    }
}
