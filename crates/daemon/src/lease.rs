//! Whether any process still maps a mailbox: the kernel counts it (fcntl(2), F_SETLEASE). A page is kept as long as
//! that.
//!
//! A client that brings a mailbox can hold a lease on it itself. open(2) then waits up to
//! /proc/sys/fs/lease-break-time, unless it is called with O_NONBLOCK: the mailbox is refused instead.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use fastpath_inject::MAILBOX_NAME;
use fastpath_publisher::SharedPage;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

const SIZE: u64 = 4096;
/// Seals that keep the file from being truncated while it is read.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Descriptor of a mailbox, used only to find out whether the mailbox is in use.
pub struct Lease(File);

impl Lease {
    /// Makes a mailbox, and returns it with the lease: opened anew, so that the kernel counts it as long as it is
    /// mapped.
    pub fn create() -> io::Result<(Lease, OwnedFd)> {
        let fd = memfd_create(MAILBOX_NAME, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        nix::unistd::ftruncate(&fd, SIZE as i64)?;
        // SAFETY: fcntl with an int argument.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS | libc::F_SEAL_SEAL) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((Lease(open(&fd, OFlag::O_RDONLY)?.into()), open(&fd, OFlag::O_RDWR)?))
    }

    /// Returns the lease of a mailbox that another process made. A file that is not a sealed piece of memory is refused
    /// before it is opened.
    pub fn of(mailbox: &impl AsRawFd) -> io::Result<Lease> {
        // SAFETY: fcntl without an argument; a file that is not a memfd has no seals.
        let seals = unsafe { libc::fcntl(mailbox.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
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

/// Descriptor of memory that a client got for reading, used to find out whether the client still has it.
pub struct Plan(File);

impl Plan {
    /// Takes a memfd, and returns also the descriptor to give away: opened anew, so that the kernel counts it as long
    /// as it is open or mapped.
    pub fn of(made: &impl AsRawFd) -> io::Result<(Plan, OwnedFd)> {
        Ok((Plan(open(made, OFlag::O_RDONLY)?.into()), open(made, OFlag::O_RDONLY)?))
    }

    /// Returns whether the client, or a process that got it from there, has it open or mapped.
    pub fn is_held(&self) -> bool {
        is_read(&self.0)
    }
}

/// Returns whether another process has `file` open for reading, or maps it.
fn is_read(file: &File) -> bool {
    // SAFETY: fcntl with an int argument.
    let lease = |kind: libc::c_int| match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    };
    let taken = lease(libc::F_WRLCK);
    if taken.is_ok() {
        let _ = lease(libc::F_UNLCK);
    }
    taken == Err(Errno::EAGAIN)
}

/// Returns whether any process but its publisher has a page open or mapped.
pub fn is_page_read(page: &SharedPage) -> bool {
    // A page that was taken up was opened for writing, and counts as a writer; one that was made here does not count at
    // all, and a lease requires a descriptor that does.
    is_read(page.file()) && page.reader().is_ok_and(|reader| is_read(&reader.into()))
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

/// Opens a memfd anew, without waiting for the holder of a lease on it.
fn open(file: &impl AsRawFd, flags: OFlag) -> io::Result<OwnedFd> {
    let path = fastpath_proc::path_of(file);
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    match nix::fcntl::open(path.as_str(), flags, nix::sys::stat::Mode::empty()) {
        Err(Errno::EAGAIN) => Err(io::Error::other(
            "another lease is held on it (fcntl F_SETLEASE): release it first",
        )),
        opened => Ok(opened?),
    }
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
        let (lease, mailbox) = Lease::create().unwrap();
        assert_eq!(lease.in_use(), Some(true));
        let again = mailbox.try_clone().unwrap();
        drop(mailbox);
        assert_eq!(lease.in_use(), Some(true));
        drop(again);
        until(|| lease.in_use() == Some(false));
    }

    #[test]
    fn a_mailbox_with_a_lease_of_its_owners_is_refused_at_once() {
        // This process is the owner, and gets the signal, which would end it.
        outlive_breaks().unwrap();
        let (_, mailbox) = Lease::create().unwrap();
        // SAFETY: fcntl with an int argument. No other descriptor of the file is open.
        until(|| unsafe { libc::fcntl(mailbox.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) } == 0);
        let begun = Instant::now();
        let refused = Lease::of(&mailbox).err().expect("it is refused").to_string();
        assert!(refused.contains("lease"), "{refused}");
        assert!(begun.elapsed().as_secs() < 5, "it was waited for");
    }

    #[test]
    fn what_was_given_for_reading_is_held_until_it_is_closed_and_unmapped() {
        let made = memfd_create(c"plan", MFdFlags::MFD_CLOEXEC).unwrap();
        let (plan, given) = Plan::of(&made).unwrap();
        assert!(plan.is_held());
        drop(given);
        until(|| !plan.is_held());
        for page in [SharedPage::create(), SharedPage::create_to_be_taken_up(1)] {
            let page = page.unwrap();
            until(|| !is_page_read(&page));
            let reader = page.reader().unwrap();
            assert!(is_page_read(&page));
            drop(reader);
            until(|| !is_page_read(&page));
        }
        let page = SharedPage::create_to_be_taken_up(1).unwrap();
        page.writer().init(&fastpath_host::init::of_this_host());
        let reader = File::from(page.reader().unwrap());
        drop(page);
        let mut taken_up = None;
        until(|| {
            taken_up = SharedPage::take_up(&reader, 1).ok();
            taken_up.is_some()
        });
        let page = taken_up.expect("it was taken up");
        assert!(is_page_read(&page));
        drop(reader);
        until(|| !is_page_read(&page));
    }

    #[test]
    fn what_is_not_a_sealed_memfd_of_the_right_size_is_no_mailbox() {
        let (_, mailbox) = Lease::create().unwrap();
        assert!(Lease::of(&mailbox).is_ok());
        let (pipe, _other) = nix::unistd::pipe().unwrap();
        assert!(Lease::of(&pipe).is_err());
        assert!(Lease::of(&File::open("/proc/self/maps").unwrap()).is_err());
        let unsealed = memfd_create(c"x", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        assert!(Lease::of(&unsealed).is_err());
        // SAFETY: fcntl with an int argument.
        unsafe { libc::fcntl(unsealed.as_raw_fd(), libc::F_ADD_SEALS, SEALS) };
        assert!(Lease::of(&unsealed).is_err(), "it is empty");
    }
}
