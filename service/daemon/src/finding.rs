//! Finds the pages that a dead daemon left, in the processes that map them. It runs in threads of its own: reading
//! /proc/PID/maps waits while a thread changes that process's mappings ([`crate::search`]).
//!
//! A name in /proc/PID/maps proves nothing: a file of any file system may have it, and opening one of FUSE waits for
//! its server. Only memory of the kernel's own (memfd_create(2)), which its device identifies, is opened, and without
//! waiting for leases on it. [`SharedPage::adopt`] checks the rest.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use fastpath_inject::{MAILBOX_MAPPED_NAME, region};
use fastpath_os::{Mapping, foreign};
use fastpath_page::{MAPPED_NAME, PageError};
use fastpath_protocol::CLOCK_MAPPED_NAME;
use fastpath_publish::{NotAPage, SharedPage};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::account::Account;
use crate::lease::Lease;
use crate::log::{Priority, say};
use crate::peer::Process;
use crate::registry::{FoundPage, Owner};
use crate::search::{Bounds, Examine, search};

/// The thread, and what it has found.
pub(crate) struct Finder {
    found: Receiver<FoundPage>,
    wake: Arc<EventFd>,
}

impl Finder {
    /// Searches all processes once, for pages of this keeper.
    pub(crate) fn start(keeper: u64) -> io::Result<Finder> {
        let (sender, found) = sync_channel(UNREAD);
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let examiner = Examiner {
            keeper,
            found: sender,
            wake: wake.clone(),
        };
        std::thread::Builder::new()
            .name("fastpath-finder".into())
            .stack_size(256 << 10)
            .spawn(move || look_at_all(examiner))?;
        Ok(Finder { found, wake })
    }

    /// Returns the pages found since the last call.
    pub(crate) fn take(&self) -> Vec<FoundPage> {
        let _ = self.wake.read();
        self.found.try_iter().collect()
    }
}

impl AsFd for Finder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Limit of pages that are found and not yet adopted.
const UNREAD: usize = 64;
/// A process answers within a millisecond, on a busy machine later.
const BOUNDS: Bounds = Bounds {
    timeout: Duration::from_secs(2),
    first: 2,
    late_timeout: Duration::from_millis(100),
    most: 32,
};

/// Looks for pages in processes, for the server.
struct Examiner {
    keeper: u64,
    found: SyncSender<FoundPage>,
    wake: Arc<EventFd>,
}

impl Examine for Examiner {
    type Found = Vec<FoundPage>;

    fn examine(&self, pid: i32) -> Option<Vec<FoundPage>> {
        let maps = fastpath_os::maps::read(pid).ok()?;
        let of_name = |name| of_process(pid, &maps, name, self.keeper);
        let found: Vec<_> = [MAPPED_NAME, CLOCK_MAPPED_NAME]
            .into_iter()
            .filter_map(of_name)
            .collect();
        (!found.is_empty()).then_some(found)
    }

    fn report(&self, found: Vec<FoundPage>) {
        for page in found {
            let _ = self.found.send(page);
            let _ = self.wake.write(1);
        }
    }
}

fn look_at_all(examiner: Examiner) {
    let processes = fastpath_os::processes().into_iter().flatten();
    let processes = processes.filter_map(|pid| Some((pid, account_of(pid)?)));
    let searched = search(processes, BOUNDS, examiner, |pid| {
        say(
            Priority::Warning,
            format_args!(
                "process {pid} does not answer: if it has a page, it stays on the kernel's path until it does"
            ),
        );
    });
    if let Err(error) = searched {
        say(
            Priority::Warning,
            format_args!("the pages of the daemon before this one cannot be searched for: {error}"),
        );
    }
}

fn account_of(pid: i32) -> Option<Account> {
    let process = Process::read(pid).ok()?;
    Account::of_pid(pid, process.uid).ok()
}

/// Returns the page that a process maps by this name, if it is this keeper's and no daemon keeps it. A page that several
/// processes map is adopted with the first of them: for the others it is locked.
fn of_process(pid: i32, maps: &[Mapping], name: &str, keeper: u64) -> Option<FoundPage> {
    let page = maps.iter().find(|mapping| mapping.is_memory(name))?;
    let mailbox = maps
        .iter()
        .find(|mapping| mapping.is_memory(MAILBOX_MAPPED_NAME) && mapping.start == page.start + region::MAILBOX)?;
    let process = Process::read(pid).ok()?;
    let opened = open(pid, page).and_then(|page| Ok((page, open(pid, mailbox)?)));
    let (page, mailbox) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            // The process may just have ended.
            if Process::read(pid).is_ok() {
                let why = "CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE opens what others map";
                say(
                    Priority::Warning,
                    format_args!("process {pid}'s page cannot be opened: {error} ({why})"),
                );
            }
            return None;
        }
    };
    let page = match SharedPage::adopt(&page, keeper) {
        Ok(page) => page,
        Err(NotAPage::Contents(error @ PageError::Abi { .. })) => {
            let what =
                format_args!("process {pid}'s page stays without a publisher: {error}; detach and attach it again");
            say(Priority::Warning, what);
            return None;
        }
        Err(_) => return None,
    };
    let lease = Lease::take(&mailbox).ok()?;
    let account = Account::of_pid(process.pid, process.uid).ok()?;
    let owner = Owner {
        process,
        account,
        attached: None,
    };
    Some(FoundPage { owner, page, lease })
}

/// Opens the memory that is mapped there (proc_pid_map_files(5)), without waiting for the holder of a lease on it.
fn open(pid: i32, mapping: &Mapping) -> io::Result<File> {
    let directory = Path::new("/proc").join(pid.to_string());
    foreign::open(foreign::handle_of_mapped(&directory, mapping)?)
}
