//! Finds the pages that a dead daemon left, in the processes that map them. In a thread of its own: /proc/PID/maps waits for whoever
//! changes that process's mappings.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use fastpath_inject::{MAILBOX_MAPPED_NAME, region};
use fastpath_maps::Mapping;
use fastpath_page::MAPPED_NAME;
use fastpath_publisher::SharedPage;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::book::Found;
use crate::lease::Lease;
use crate::log::{Priority, say};
use crate::payer::Payer;
use crate::peer::Process;

/// The thread, and what it has found.
pub struct Finder {
    found: Receiver<Found>,
    wake: Arc<EventFd>,
}

impl Finder {
    /// Looks through all processes once.
    pub fn start() -> io::Result<Finder> {
        let (sender, found) = channel();
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let theirs = wake.clone();
        std::thread::Builder::new()
            .name("fastpath-finder".into())
            .stack_size(256 << 10)
            .spawn(move || {
                for pid in fastpath_maps::processes().into_iter().flatten() {
                    if let Some(one) = of_process(pid) {
                        let _ = sender.send(one);
                        let _ = theirs.write(1);
                    }
                }
            })?;
        Ok(Finder { found, wake })
    }

    /// What has been found since.
    pub fn take(&self) -> Vec<Found> {
        let _ = self.wake.read();
        self.found.try_iter().collect()
    }
}

impl AsFd for Finder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// The page that a process maps, if no daemon keeps it. A page that several processes map is taken up with the first of them: the others
/// find it locked.
fn of_process(pid: i32) -> Option<Found> {
    let maps = fastpath_maps::of(pid).ok()?;
    let page = maps.iter().find(|mapping| mapping.name.starts_with(MAPPED_NAME))?;
    let mailbox = maps.iter().find(|mapping| {
        mapping.name.starts_with(MAILBOX_MAPPED_NAME) && mapping.start == page.start + region::MAILBOX
    })?;
    let process = Process::of(pid).ok()?;
    let opened = open(pid, page).and_then(|page| Ok((page, open(pid, mailbox)?)));
    let (page, mailbox) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            // It may just have ended.
            if Process::of(pid).is_ok() {
                let why = "CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE opens what others map";
                say(
                    Priority::Warning,
                    format_args!("process {pid}'s page cannot be opened: {error} ({why})"),
                );
            }
            return None;
        }
    };
    let page = SharedPage::take_up(&page).ok()?;
    let lease = Lease::of(&mailbox).ok()?;
    let payer = Payer::of_pid(process.pid, process.uid).ok()?;
    Some(Found {
        process,
        payer,
        page,
        lease,
    })
}

/// Opens the file that is mapped there (proc_pid_map_files(5)).
fn open(pid: i32, mapping: &Mapping) -> io::Result<File> {
    File::open(format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end))
}
