//! Grants: of the host's daemon, or of a publisher in this process.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use fastpath_evidence::PageCopy;
use fastpath_inject::Shared;
use fastpath_page::{ClockSet, Grant, Page, Reader};
use fastpath_protocol::client::ClientError;
use fastpath_protocol::{Client, Code, RequestRefusal};
use fastpath_publish::evidence::{self, Trust};
use fastpath_publish::{News, Offsets, Publisher, UnknownOffsets};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Shortest and longest time between two checks whether a helper is still needed: many programs end soon, and each check
/// wakes up a CPU.
const FIRST_CHECK: Duration = Duration::from_millis(8);
const LATE_CHECKS: Duration = Duration::from_secs(1);
/// Time between checks at the end of the first program, and the number of them.
const AFTER_END: Duration = Duration::from_millis(1);
const CHECKS_AFTER_END: u32 = 8;
/// Time between two looks at a page that has no anchor yet.
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// What a grant is for.
#[derive(Clone, Copy)]
pub struct Purpose<'a> {
    /// The clocks that the page answers.
    pub clocks: ClockSet,
    /// The process, by its pidfd; `None`: the program that this process becomes.
    pub process: Option<BorrowedFd<'a>>,
}

/// Returns a page of the host's daemon, kept as long as a process maps `mailbox`, or a mailbox of the daemon's.
pub fn of_host(purpose: Purpose<'_>, mailbox: Option<&Shared>) -> Result<Grant, ClientError> {
    let client = Client::connect()?;
    let internal = |e: &dyn std::fmt::Display| RequestRefusal::new(Code::Internal, e.to_string());
    let is_passing = |answer: &Result<Grant, ClientError>| matches!(answer, Err(ClientError::Refused(refusal)) if refusal.code == Code::Process);
    let once = || {
        let theirs = mailbox.map(Shared::reopen).transpose().map_err(|e| internal(&e))?;
        client.page(purpose.clocks, purpose.process, theirs)
    };
    retried(once, is_passing)
}

/// Reads the offsets of a process's clocks.
pub fn offsets(pid: i32) -> Result<Offsets, String> {
    let is_passing = |read: &Result<Offsets, UnknownOffsets>| matches!(read, Err(UnknownOffsets::Gone(_)));
    retried(|| Offsets::read(pid), is_passing).map_err(|e| e.to_string())
}

/// Repeats `work` for some milliseconds, as long as its result is a passing one: when a thread other than the first
/// executes a program, the process does not exist for a moment.
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
pub fn is_forbidden(failure: &ClientError) -> bool {
    matches!(failure, ClientError::Refused(refusal) if refusal.code == Code::Policy)
}

/// Returns a publisher in this process, and its grant for programs with these offsets. It publishes once the counter is
/// examined ([`begin`]), as long as its `run` runs. `report` is called for every withdrawal, and when clocks are served
/// again. The error: this process cannot publish.
pub fn publish(
    clocks: ClockSet,
    offsets: Offsets,
    mailbox: &Shared,
    trust: Trust,
    report: impl FnMut(&News) + Send + 'static,
) -> Result<(Grant, Publisher), String> {
    let failed = |e: std::io::Error| format!("the publisher: {e}");
    let (mut publisher, _) = Publisher::new(clocks, trust).map_err(failed)?;
    publisher.on_news(report);
    let mailbox = mailbox.reopen().map_err(|e| e.to_string())?;
    let grant = publisher.grant(clocks, offsets, mailbox).map_err(failed)?;
    Ok((grant, publisher))
}

/// Examines the counter, and prepares the publisher to run. The error: this host cannot be served.
pub fn begin(publisher: &mut Publisher, trust: Trust) -> Result<(), String> {
    evidence::examine_with_offsets(trust)?;
    publisher.watch_for_steps();
    let failed = |e| format!("a thread that compares the CPUs' counters: {e}");
    publisher.compare_cpus().map_err(failed)
}

/// Returns a function that reports, in any thread, whether to wait on for a page's first anchor: at most for `limit`, and
/// no longer once the publisher has withdrawn the clocks.
pub fn awaits_anchor(page: &OwnedFd, limit: Duration) -> impl Fn() -> bool + Send + use<> {
    let page = page.try_clone();
    let begun = Instant::now();
    move || {
        let copy = page.as_ref().ok().and_then(copy_of);
        let is_due = |copy: PageCopy| !has_anchor(&copy) && Reader::new(&copy).stats().withdrawn_reason.is_none();
        copy.is_some_and(is_due) && begun.elapsed() < limit
    }
}

/// Waits for a page's first anchor, of a publisher in another thread or process; returns whether there is one.
pub fn wait_for_anchor(page: &OwnedFd, limit: Duration) -> bool {
    let waits = awaits_anchor(page, limit);
    while waits() {
        std::thread::sleep(LOOK_EVERY);
    }
    copy_of(page).is_some_and(|copy| has_anchor(&copy))
}

fn copy_of(page: &OwnedFd) -> Option<PageCopy> {
    let page = page.try_clone().map(File::from).ok()?;
    PageCopy::read(&page, 0).ok().flatten()
}

fn has_anchor(page: &Page) -> bool {
    Reader::new(page).age_ns(0).is_some()
}

/// Keeps this process as long as `needed`, called from time to time and at the end of `process`, returns true. Meanwhile
/// `publisher` publishes.
pub fn stay_while(publisher: Option<&mut Publisher>, process: Option<&OwnedFd>, mut needed: impl FnMut() -> bool) {
    let mut every = FIRST_CHECK;
    let mut process = process.map(AsFd::as_fd);
    let Some(publisher) = publisher else {
        while needed() {
            if has_ended(process, every) {
                (process, every) = (None, AFTER_END);
            }
            every = (every * 2).min(LATE_CHECKS);
        }
        return;
    };
    let mut next = Instant::now();
    publisher.run_with(|| {
        if has_ended(process, Duration::ZERO) {
            process = None;
            // What still reads the process's mappings in /proc keeps them for a moment.
            let is_needed = (0..CHECKS_AFTER_END).all(|_| {
                std::thread::sleep(AFTER_END);
                needed()
            });
            (next, every) = (Instant::now(), FIRST_CHECK);
            return is_needed.then_some(None);
        }
        let now = Instant::now();
        if now < next {
            return Some(process);
        }
        next = now + every;
        every = (every * 2).min(LATE_CHECKS);
        needed().then_some(process)
    });
}

/// Waits for the end of `process`, at most for `limit`, and returns whether it has ended.
fn has_ended(process: Option<BorrowedFd<'_>>, limit: Duration) -> bool {
    match process {
        Some(process) => fastpath_os::is_ready(process, libc::POLLIN, limit),
        None => {
            std::thread::sleep(limit);
            false
        }
    }
}

/// Opens a pidfd, which names a process for good.
pub fn pidfd(pid: i32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(pid)?;
    retried(|| pidfd_open(pid, PidfdFlags::empty()).ok(), Option::is_none)
}

impl<'a> Purpose<'a> {
    /// Returns the purpose of a page for a process.
    pub fn for_process(clocks: ClockSet, process: &'a impl AsFd) -> Purpose<'a> {
        Purpose {
            clocks,
            process: Some(process.as_fd()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use fastpath_publish::SharedPage;

    use super::*;

    fn refreshes(page: &OwnedFd) -> u64 {
        let page = File::from(page.try_clone().unwrap());
        let copy = PageCopy::read(&page, 0).unwrap().expect("a page");
        copy.stats.refreshes.load(Ordering::Relaxed)
    }

    #[test]
    fn a_page_answers_once_the_counter_is_examined_and_is_adopted_by_no_daemon() {
        let mailbox = Shared::create().unwrap();
        let trust = Trust::AllowNonInvariant;
        let (grant, mut publisher) = publish(ClockSet::HRES, Offsets::default(), &mailbox, trust, |_| {}).unwrap();
        assert_eq!(grant.clocks, ClockSet::HRES);
        assert_eq!(refreshes(&grant.page), 0);
        assert!(!wait_for_anchor(&grant.page, Duration::ZERO));
        begin(&mut publisher, trust).unwrap();
        publisher.run(awaits_anchor(&grant.page, Duration::from_secs(60)));
        assert!(wait_for_anchor(&grant.page, Duration::ZERO));
        assert_ne!(refreshes(&grant.page), 0, "it is never published");
        // 0 is the mark of a page that no daemon made.
        for keeper in [0, 1] {
            assert!(SharedPage::adopt(&File::from(grant.page.try_clone().unwrap()), keeper).is_err());
        }
    }
}
