//! The publisher: one sample, one discipline, one anchor, written to all of its pages.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use fastpath_evidence::Trust;
use fastpath_page::{ClockSet, Grant};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::SharedPage;
use crate::host::News;
use crate::keeper::Keeper;
use crate::many::{Many, Member, Offsets};

/// Commands handled between two looks at the clock: a thousand new clients must not delay a refresh.
const AT_A_TIME: usize = 64;

enum Command {
    Add(u64, Arc<Member>),
    Remove(u64),
}

/// Tells a publisher, from any thread, which pages it keeps. Nothing here waits.
#[derive(Clone)]
pub struct Handle {
    commands: Sender<Command>,
    wake: Arc<EventFd>,
    turns: Arc<AtomicU64>,
}

impl Handle {
    /// Returns how often the publisher has woken up. It wakes up at least ten times a second while it is alive.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Makes the publisher keep `member`, under the name `id`. It is seeded within milliseconds.
    pub fn add(&self, id: u64, member: Arc<Member>) {
        self.send(Command::Add(id, member));
    }

    /// Removes a page that has no readers any more.
    pub fn remove(&self, id: u64) {
        self.send(Command::Remove(id));
    }

    fn send(&self, command: Command) {
        // Fails only if the publisher has ended.
        let _ = self.commands.send(command);
        let _ = self.wake.write(1);
    }
}

/// Publishes this host's clocks on many pages.
pub struct Publisher {
    /// It is large: on the stacks of those that hand a publisher on, it would take page faults.
    keeper: Box<Keeper>,
    commands: Receiver<Command>,
    wake: Arc<EventFd>,
    turns: Arc<AtomicU64>,
}

impl Publisher {
    /// Returns a publisher, and the handle that adds and removes its pages. `clocks` are those that any of them will
    /// answer.
    pub fn new(clocks: ClockSet, trust: Trust) -> io::Result<(Publisher, Handle)> {
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (sender, commands) = mpsc::channel();
        let handle = Handle {
            commands: sender,
            wake: wake.clone(),
            turns: Arc::default(),
        };
        let publisher = Publisher {
            keeper: Box::new(Keeper::new(Many::new(), clocks, trust)),
            commands,
            wake,
            turns: handle.turns.clone(),
        };
        Ok((publisher, handle))
    }

    /// Makes a page for readers of a time namespace, which is published as long as [`Publisher::run`] runs, and grants
    /// it with `mailbox`. Its clocks are among those that this publisher answers.
    pub fn grant(&mut self, clocks: ClockSet, offsets: Offsets, mailbox: OwnedFd) -> io::Result<Grant> {
        let (member, page) = Member::new(SharedPage::create()?, clocks, offsets)?;
        // The ids of a handle's pages count up.
        let id = u64::MAX - self.keeper.pages.each().count() as u64;
        self.keeper.pages.add(id, Arc::new(member));
        Ok(Grant { page, mailbox, clocks })
    }

    /// Makes a step of CLOCK_REALTIME wake [`Publisher::run`] at once, and detects changes of the kernel's rate by
    /// adjtimex(2) within ten milliseconds. Otherwise (no timerfd; a seccomp filter against adjtimex) both are noticed
    /// at the next refresh.
    pub fn watch_for_steps(&mut self) {
        self.keeper.watch_for_steps();
    }

    /// Starts to compare the CPUs' counters regularly, in a separate thread: samples are taken on one CPU, and readers
    /// run on all. Must be called once the counter is examined.
    pub fn compare_cpus(&mut self) -> io::Result<()> {
        // Pages may have been added before the examination.
        self.keeper.pages.store_offsets();
        self.keeper.compare_cpus()
    }

    /// Calls `report` for every withdrawal, and when clocks are served again, for a log.
    pub fn on_news(&mut self, report: impl FnMut(&News) + Send + 'static) {
        self.keeper.on_news(report);
    }

    /// Publishes as long as `goes_on`, called at least a few times a second, returns true.
    pub fn run(&mut self, mut goes_on: impl FnMut() -> bool) {
        self.run_with(|| goes_on().then_some(None));
    }

    /// Publishes as long as `goes_on`, called at least a few times a second, returns something: a descriptor that ends
    /// the sleep before the next call if it is readable, if there is one.
    pub fn run_with<'a>(&mut self, mut goes_on: impl FnMut() -> Option<Option<BorrowedFd<'a>>>) {
        while let Some(other) = goes_on() {
            self.turns.fetch_add(1, Ordering::Relaxed);
            let others = [Some(self.wake.as_fd()), other];
            let others: Vec<_> = others.into_iter().flatten().collect();
            if self.keeper.turn(&others) {
                self.obey();
            }
        }
    }

    fn obey(&mut self) {
        let _ = self.wake.read();
        for _ in 0..AT_A_TIME {
            match self.commands.try_recv() {
                Ok(Command::Add(id, member)) => self.keeper.pages.add(id, member),
                Ok(Command::Remove(id)) => drop(self.keeper.pages.remove(id)),
                Err(_) => return,
            }
        }
        // There may be more.
        let _ = self.wake.write(1);
    }
}
