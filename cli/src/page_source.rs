//! Sources of the page of a process tree: a daemon, if one runs here, or a publisher in this process.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastpath_evidence::PageCopy;
use fastpath_page::ClockSet;
use fastpath_protocol::Client;
use fastpath_publisher::Publisher;

/// Time between two checks whether the page is still needed.
const QUESTIONS_EVERY: Duration = Duration::from_millis(250);

/// The publisher of the page.
pub enum PageSource {
    /// This process.
    Own(Box<Publisher>),
    /// `fastpathd`. If it ends, the page's readers ask the kernel until another one runs.
    Daemon(File),
}

impl PageSource {
    /// Returns a daemon's page for a process (by its pidfd, or the calling one) and its descendants, kept for as long
    /// as a process maps `mailbox`. `None`: no daemon runs here, or it has no page for them.
    pub fn daemon(clocks: ClockSet, process: Option<BorrowedFd<'_>>, mailbox: BorrowedFd<'_>) -> Option<PageSource> {
        let client = Client::connect().ok()?;
        let page = client.page(clocks.0, process, Some(mailbox)).ok()?;
        Some(PageSource::Daemon(page.page.into()))
    }

    /// Returns a descriptor of the page for readers.
    pub fn reader(&self) -> io::Result<OwnedFd> {
        match self {
            PageSource::Own(publisher) => publisher.reader(),
            PageSource::Daemon(page) => Ok(page.try_clone()?.into()),
        }
    }

    /// Returns a function that reports, in any thread, whether the page has been seeded.
    pub fn seeded(&self) -> Box<dyn Fn() -> bool + Send> {
        match self {
            PageSource::Own(publisher) => publisher.seeded(),
            PageSource::Daemon(page) => {
                let page = page.try_clone().ok();
                Box::new(move || {
                    let copy = page.as_ref().and_then(|page| PageCopy::read(page, 0).ok().flatten());
                    copy.is_some_and(|copy| copy.hres.copy[0].seq.load(Ordering::Relaxed) != 0)
                })
            }
        }
    }

    /// Publishes, or leaves that to the daemon, as long as `needed` returns true.
    pub fn run(&mut self, mut needed: impl FnMut() -> bool) {
        match self {
            PageSource::Own(publisher) => publisher.run(needed),
            PageSource::Daemon(_) => {
                while needed() {
                    std::thread::sleep(QUESTIONS_EVERY);
                }
            }
        }
    }
}
