//! Grants: from the host's daemon, or from a private one.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use fastpath_daemon::Examination;
use fastpath_daemon::private;
use fastpath_evidence::PageCopy;
use fastpath_inject::Shared;
use fastpath_page::{ClockSet, Grant};
use fastpath_protocol::client::Failure;
use fastpath_protocol::{Client, Code, Refusal};
use fastpath_publisher::News;
use fastpath_publisher::evidence::Trust;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Shortest and longest time between two checks whether a helper is still needed: many programs end soon, and each check
/// wakes up a CPU.
const FIRST_CHECK: Duration = Duration::from_millis(8);
const LATE_CHECKS: Duration = Duration::from_secs(1);

/// What a grant is for.
#[derive(Clone, Copy)]
pub struct Purpose<'a> {
    /// The clocks that the page answers.
    pub clocks: ClockSet,
    /// The process, by its pidfd; `None`: the program that this process becomes.
    pub process: Option<BorrowedFd<'a>>,
}

/// Returns a page of the host's daemon, kept as long as a process maps `mailbox`, or a mailbox of the daemon's.
pub fn of_host(purpose: Purpose<'_>, mailbox: Option<&Shared>) -> Result<Grant, Failure> {
    ask(&Client::connect()?, purpose, mailbox)
}

/// Asks for a page; again while the process is not found: when a thread other than the first executes a program, the
/// process does not exist for a moment.
fn ask(client: &Client, purpose: Purpose<'_>, mailbox: Option<&Shared>) -> Result<Grant, Failure> {
    let internal = |e: &dyn std::fmt::Display| Refusal::new(Code::Internal, e.to_string());
    let is_passing = |answer: &Result<Grant, Failure>| matches!(answer, Err(Failure::Refused(refusal)) if refusal.code == Code::Process);
    let once = || {
        let theirs = mailbox.map(Shared::reopen).transpose().map_err(|e| internal(&e))?;
        client.page(purpose.clocks, purpose.process, theirs)
    };
    retried(once, is_passing)
}

/// Repeats `work` for some milliseconds, as long as its result is a passing one.
fn retried<T>(work: impl Fn() -> T, is_passing: impl Fn(&T) -> bool) -> T {
    const TRIES: u32 = 20;
    const EVERY: Duration = Duration::from_millis(1);
    for _ in 0..TRIES {
        let done = work();
        if !is_passing(&done) {
            return done;
        }
        std::thread::sleep(EVERY);
    }
    work()
}

/// Returns whether the policy of the host's daemon forbids the page.
pub fn is_forbidden(failure: &Failure) -> bool {
    matches!(failure, Failure::Refused(refusal) if refusal.code == Code::Policy)
}

/// Returns a page of a private daemon, which this starts in threads of this process. `program` and `hear` are those of
/// [`private`]. The error: this host, or this process, cannot publish.
pub fn of_private(
    purpose: Purpose<'_>,
    mailbox: &Shared,
    trust: Trust,
    program: i32,
    examination: Examination,
    hear: impl FnMut(&News) + Send + 'static,
) -> Result<Grant, String> {
    let client = private(purpose.clocks, trust, program, examination, hear)?;
    let granted = ask(&client, purpose, Some(mailbox));
    granted.map_err(|failure| match failure {
        Failure::Refused(refusal) => refusal.sentence,
        other => format!("the page could not be made: {other}"),
    })
}

/// Returns a function that reports, in any thread, whether a page has an anchor.
pub fn seeded(page: &OwnedFd) -> impl Fn() -> bool + Send + use<> {
    let page = page.try_clone().map(File::from).ok();
    move || {
        let copy = page.as_ref().and_then(|page| PageCopy::read(page, 0).ok().flatten());
        copy.is_some_and(|copy| copy.hres.copy[0].cap_cycles.load(Ordering::Acquire) != 0)
    }
}

/// Keeps this process as long as `needed`, called from time to time, returns true.
pub fn stay_while(mut needed: impl FnMut() -> bool) {
    let mut every = FIRST_CHECK;
    while needed() {
        std::thread::sleep(every);
        every = (every * 2).min(LATE_CHECKS);
    }
}

/// Opens a pidfd, which names a process for good.
pub fn pidfd(pid: i32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(pid)?;
    // See `ask`.
    retried(|| pidfd_open(pid, PidfdFlags::empty()).ok(), Option::is_none)
}

impl<'a> Purpose<'a> {
    /// Returns the purpose of a page for a process.
    pub fn of(clocks: ClockSet, process: &'a impl AsFd) -> Purpose<'a> {
        Purpose {
            clocks,
            process: Some(process.as_fd()),
        }
    }
}
