//! Whether other processes still have memory of the daemon's: the kernel counts it (fcntl(2), F_SETLEASE).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use fastpath_inject::lease::open;
pub(crate) use fastpath_inject::lease::{Lease, reopen};
use fastpath_publish::SharedPage;
use nix::errno::Errno;
use nix::fcntl::OFlag;

/// Descriptor of memory that a client got for reading, used to find out whether the client still has it.
pub(crate) struct Plan(File);

impl Plan {
    /// Takes a memfd, and returns also the descriptor to give away: opened anew, so that the kernel counts it as long
    /// as it is open or mapped.
    pub(crate) fn new(made: &impl AsRawFd) -> io::Result<(Plan, OwnedFd)> {
        Ok((Plan(open(made, OFlag::O_RDONLY)?.into()), open(made, OFlag::O_RDONLY)?))
    }

    /// Returns whether the client, or a process that got it from there, has it open or mapped.
    pub(crate) fn is_held(&self) -> bool {
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
pub(crate) fn is_page_read(page: &SharedPage) -> bool {
    // The kernel counts only descriptors that were opened. A page that was made here was never opened, so it is opened once
    // before the question. A page that was adopted from another daemon was opened for writing, and counts as a writer.
    is_read(page.file()) && page.reader().is_ok_and(|reader| is_read(&reader.into()))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use fastpath_inject::lease::outlive_breaks;
    use nix::sys::memfd::{MFdFlags, memfd_create};

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
    fn a_mailbox_with_a_lease_of_its_owners_is_refused_at_once() {
        // This process is the owner, and gets the signal, which would end it.
        outlive_breaks().unwrap();
        let (_, memfd) = Lease::create().unwrap();
        let mailbox = reopen(&memfd).unwrap();
        drop(memfd);
        // SAFETY: fcntl with an int argument. No other descriptor of the file is open.
        until(|| unsafe { libc::fcntl(mailbox.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) } == 0);
        let begun = Instant::now();
        let refused = Lease::take(&mailbox).err().expect("it is refused").to_string();
        assert!(refused.contains("lease"), "{refused}");
        assert!(begun.elapsed().as_secs() < 5, "it was waited for");
    }

    #[test]
    fn what_was_given_for_reading_is_held_until_it_is_closed_and_unmapped() {
        let made = memfd_create(c"plan", MFdFlags::MFD_CLOEXEC).unwrap();
        let (plan, given) = Plan::new(&made).unwrap();
        assert!(plan.is_held());
        drop(given);
        until(|| !plan.is_held());
        for page in [
            SharedPage::create(),
            SharedPage::create_as(fastpath_page::MEMFD_NAME, Some(1)),
        ] {
            let page = page.unwrap();
            until(|| !is_page_read(&page));
            let reader = page.reader().unwrap();
            assert!(is_page_read(&page));
            drop(reader);
            until(|| !is_page_read(&page));
        }
        let page = SharedPage::create_as(fastpath_page::MEMFD_NAME, Some(1)).unwrap();
        page.writer().init(&fastpath_publish::host::init::of_this_host());
        let reader = File::from(page.reader().unwrap());
        drop(page);
        let mut adopted = None;
        until(|| {
            adopted = SharedPage::adopt(&reader, 1).ok();
            adopted.is_some()
        });
        let page = adopted.expect("it was adopted");
        assert!(is_page_read(&page));
        drop(reader);
        until(|| !is_page_read(&page));
    }
}
