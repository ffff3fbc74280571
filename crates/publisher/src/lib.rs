//! Keeps pages up to date: samples this host's clocks, gives the samples to the discipline, publishes, and implements
//! the failure rules.
//!
//! [`Publisher`] is for one page and a process tree that shares it, [`many`] for a host with one publisher.

mod keeper;
pub mod many;
mod ntp;
mod patrol;
mod settings;
mod shared_page;
mod steps;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastpath_evidence::Trust;
use fastpath_host::{OnePage, init};
use fastpath_page::{ClockSet, Writer};

pub use fastpath_evidence::{self as evidence, counter};
pub use fastpath_host::News;
use keeper::Keeper;
pub use shared_page::{NotAPage, SharedPage};

/// Time between checks of whether the page is still needed.
const QUESTIONS_EVERY: Duration = Duration::from_millis(250);

/// The page of a [`Publisher`].
struct One(Arc<SharedPage>);

impl OnePage for One {
    fn writer(&self) -> Writer<'_> {
        self.0.writer()
    }
}

/// Publishes this host's clocks on one page.
pub struct Publisher(Keeper<One>);

impl Publisher {
    /// Makes a page and takes the first sample. `clocks` are those that the page will answer; a counter that is trusted
    /// without invariance is watched more closely ([`fastpath_clock::Config::watched`]).
    pub fn new(clocks: ClockSet, trust: Trust) -> io::Result<Publisher> {
        let page = Arc::new(SharedPage::create()?);
        page.writer().init(&init::of_this_host());
        Ok(Publisher::take_over(page, clocks, trust))
    }

    /// Takes over a page whose publisher is gone. Until the rate is known again, readers fall back to the kernel.
    pub fn take_over(page: Arc<SharedPage>, clocks: ClockSet, trust: Trust) -> Publisher {
        let mut keeper = Keeper::new(One(page), clocks, trust);
        keeper.refresh(None);
        Publisher(keeper)
    }

    /// Returns a descriptor of the page for its readers.
    pub fn reader(&self) -> io::Result<OwnedFd> {
        self.0.pages.0.reader()
    }

    /// Returns the page.
    pub fn page(&self) -> Arc<SharedPage> {
        self.0.pages.0.clone()
    }

    /// Returns a function that says, in any thread, whether the page has been seeded.
    pub fn seeded(&self) -> Box<dyn Fn() -> bool + Send> {
        let page = self.page();
        Box::new(move || page.page().hres.copy[0].seq.load(Ordering::Acquire) != 0)
    }

    /// Makes a step of CLOCK_REALTIME wake [`Publisher::run`] at once, and detects changes of the kernel's rate by
    /// adjtimex(2) within ten milliseconds. Otherwise (no timerfd; a seccomp filter against adjtimex) both are noticed
    /// at the next refresh.
    pub fn watch_for_steps(&mut self) {
        self.0.watch_for_steps();
    }

    /// Starts to compare the CPUs' counters regularly, in a separate thread: samples are taken on one CPU, and readers
    /// run on all.
    pub fn compare_cpus(&mut self) -> io::Result<()> {
        self.0.compare_cpus()
    }

    /// Calls `hear` for every withdrawal, and when clocks are served again, for a log.
    pub fn on_news(&mut self, hear: impl FnMut(&News) + Send + 'static) {
        self.0.on_news(hear);
    }

    /// Publishes while `needed`, called from time to time, returns true.
    pub fn run(&mut self, mut needed: impl FnMut() -> bool) {
        let mut asked = Instant::now();
        loop {
            if asked.elapsed() >= QUESTIONS_EVERY {
                if !needed() {
                    return;
                }
                asked = Instant::now();
            }
            self.0.turn(None);
        }
    }
}
