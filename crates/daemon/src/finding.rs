//! Finds the pages that a dead daemon left, in the processes that map them. It runs in a thread of its own: reading
//! /proc/PID/maps waits while a thread changes that process's mappings. If a process takes too long, its thread is left
//! behind, and another thread continues with the next process; after [`TOO_LONG`] such processes of a user, the user's
//! other processes are skipped.
//!
//! A name in /proc/PID/maps proves nothing: a file of any file system may have it, and opening one of FUSE waits for
//! its server. Only memory of the kernel's own (memfd_create(2)), which its device identifies, is opened, and without
//! waiting for leases on it. [`SharedPage::take_up`] checks the rest.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use fastpath_inject::{MAILBOX_MAPPED_NAME, region};
use fastpath_maps::Mapping;
use fastpath_page::MAPPED_NAME;
use fastpath_publisher::SharedPage;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};

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
    /// Searches all processes once, for pages of this keeper.
    pub fn start(keeper: u64) -> io::Result<Finder> {
        let (sender, found) = sync_channel(UNREAD);
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let theirs = wake.clone();
        std::thread::Builder::new()
            .name("fastpath-finder".into())
            .stack_size(256 << 10)
            .spawn(move || look_at_all(keeper, &sender, &theirs))?;
        Ok(Finder { found, wake })
    }

    /// Returns the pages found since the last call.
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

/// Limit of pages that are found and not yet taken up.
const UNREAD: usize = 64;
/// Timeout for one process.
const PATIENCE: Duration = Duration::from_secs(2);
/// Limit of processes of one user that time out.
const TOO_LONG: usize = 2;

fn look_at_all(keeper: u64, found: &SyncSender<Found>, wake: &Arc<EventFd>) {
    let Ok(own) = device_of_memory() else { return };
    let mut worker = None;
    let mut too_long: HashMap<Payer, usize> = HashMap::new();
    for pid in fastpath_maps::processes().into_iter().flatten() {
        let Some(payer) = payer_of(pid) else { continue };
        if too_long.get(&payer).is_some_and(|times| *times >= TOO_LONG) {
            continue;
        }
        let Some(at_work) = worker.take().or_else(|| Worker::start(&own, keeper, found, wake).ok()) else {
            return;
        };
        match at_work.look_at(pid) {
            true => worker = Some(at_work),
            false => {
                *too_long.entry(payer).or_default() += 1;
                say(
                    Priority::Warning,
                    format_args!(
                        "process {pid} takes too long to look at: if it had a page, it stays on the kernel's path"
                    ),
                );
            }
        }
    }
}

fn payer_of(pid: i32) -> Option<Payer> {
    let process = Process::of(pid).ok()?;
    Payer::of_pid(pid, process.uid).ok()
}

/// Returns the device of the kernel's own memory, as /proc/PID/maps prints it.
fn device_of_memory() -> io::Result<String> {
    let memory = File::from(memfd_create(c"fastpath-device", MFdFlags::MFD_CLOEXEC)?);
    let device = memory.metadata()?.dev();
    Ok(format!("{:02x}:{:02x}", libc::major(device), libc::minor(device)))
}

/// A thread that examines one process after another.
struct Worker {
    pids: Sender<i32>,
    done: Receiver<()>,
}

impl Worker {
    fn start(device: &str, keeper: u64, found: &SyncSender<Found>, wake: &Arc<EventFd>) -> io::Result<Worker> {
        let (pids, theirs) = channel::<i32>();
        let (says_done, done) = channel();
        let (device, found, wake) = (device.to_owned(), found.clone(), wake.clone());
        std::thread::Builder::new()
            .name("fastpath-finder".into())
            .stack_size(256 << 10)
            .spawn(move || {
                for pid in theirs {
                    let one = of_process(pid, &device, keeper);
                    // Before it waits for the server.
                    if says_done.send(()).is_err() && one.is_none() {
                        return;
                    }
                    if let Some(one) = one {
                        let _ = found.send(one);
                        let _ = wake.write(1);
                    }
                }
            })?;
        Ok(Worker { pids, done })
    }

    /// Examines a process; returns false after the timeout.
    fn look_at(&self, pid: i32) -> bool {
        self.pids.send(pid).is_ok() && self.done.recv_timeout(PATIENCE).is_ok()
    }
}

/// Returns the page that a process maps, if it is this keeper's and no daemon keeps it. A page that several processes
/// map is taken up with the first of them: for the others it is locked.
fn of_process(pid: i32, device: &str, keeper: u64) -> Option<Found> {
    let maps = fastpath_maps::of(pid).ok()?;
    let page = maps
        .iter()
        .find(|mapping| mapping.name.starts_with(MAPPED_NAME) && mapping.device == device)?;
    let mailbox = maps.iter().find(|mapping| {
        mapping.name.starts_with(MAILBOX_MAPPED_NAME)
            && mapping.device == device
            && mapping.start == page.start + region::MAILBOX
    })?;
    let process = Process::of(pid).ok()?;
    let opened = open(pid, page).and_then(|page| Ok((page, open(pid, mailbox)?)));
    let (page, mailbox) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            // The process may just have ended.
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
    let page = SharedPage::take_up(&page, keeper).ok()?;
    let lease = Lease::of(&mailbox).ok()?;
    let payer = Payer::of_pid(process.pid, process.uid).ok()?;
    Some(Found {
        process,
        payer,
        page,
        lease,
    })
}

/// Opens the memory that is mapped there (proc_pid_map_files(5)), without waiting for the holder of a lease on it.
fn open(pid: i32, mapping: &Mapping) -> io::Result<File> {
    let path = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}
