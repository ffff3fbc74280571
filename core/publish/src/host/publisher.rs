//! A publisher without a thread: it works when it is called.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fastpath_clock::{Config, Sample};
use fastpath_evidence::{Trust, Warp};
use fastpath_page::{ClockSet, Page, Reader, Reason, Writer};

use crate::host::refresher::{News, Occasion, Refreshed, Refresher};
use crate::host::relation::Relation;
use crate::host::sample::{self, Source};

/// Settings of a publisher.
#[derive(Clone, Copy, Debug)]
pub struct PublisherConfig {
    /// The clocks that the page answers.
    pub clocks: ClockSet,
    /// Whether refreshes follow system calls of the guest ([`Publisher::trapped`]) and not a timer.
    pub on_demand: bool,
    /// Relation of the guest's counter to the host's.
    pub relation: Relation,
    /// Requirements on the counter. With [`Trust::AllowNonInvariant`] the host takes the risk that its rate changes:
    /// anchors live for at most 40 ms, and the CPUs' counters should be compared every 10 ms ([`Publisher::compared`]).
    pub trust: Trust,
}

impl Default for PublisherConfig {
    fn default() -> PublisherConfig {
        PublisherConfig {
            clocks: ClockSet::ALL,
            on_demand: false,
            relation: Relation::SAME,
            trust: Trust::default(),
        }
    }
}

/// Another call is using this publisher. It does the work; this call does not wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another call is publishing on this publisher; there is nothing left to do here")]
pub struct Busy;

/// Reason why a call published nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPublished {
    /// Another call is using this publisher.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// MONOTONIC or REALTIME cannot be read.
    #[error(
        "CLOCK_MONOTONIC or CLOCK_REALTIME cannot be read; the page goes on with what it has until that is too old"
    )]
    NoSample,
    /// The sample fails [`Sample::is_possible`].
    #[error("the sample is none: a bracket's reads of the counter are out of order or zero, or a clock shows zero")]
    Impossible,
}

/// Samples a host's clocks and publishes them on one page, whenever it is called.
///
/// One call at a time publishes; a second one at the same time returns [`Busy`] at once. So it can be shared between
/// threads and used in signal handlers, without a lock. [`Publisher::trapped`] and [`Publisher::state`] only read, and
/// are never busy.
pub struct Publisher<'p, S> {
    pub(crate) page: &'p Page,
    pub(crate) source: S,
    pub(crate) options: PublisherConfig,
    busy: AtomicBool,
    /// The kernel's MONOTONIC at the last sample; 0 before the first.
    pub(crate) sampled_ns: AtomicU64,
    /// Time from the last sample to the next, in nanoseconds.
    pub(crate) window_ns: AtomicU64,
    refresher: UnsafeCell<Refresher>,
}

// SAFETY: the refresher is accessed through `alone` only, by one thread at a time; the page and all else are atomics or
// never change.
unsafe impl<S: Sync> Sync for Publisher<'_, S> {}

impl<'p, S: Source> Publisher<'p, S> {
    /// Returns a publisher for a page whose header is written ([`Writer::init`]), and which no longer has another
    /// writer. The anchors of a former publisher are withdrawn.
    pub fn new(page: &'p Page, source: S, options: PublisherConfig) -> Publisher<'p, S> {
        let config = if options.on_demand {
            Config::on_demand(options.clocks)
        } else {
            Config {
                clocks: options.clocks,
                ..Config::default()
            }
        };
        let allows_non_invariant = options.trust == Trust::AllowNonInvariant;
        let config = if allows_non_invariant { config.watched() } else { config };
        let mut refresher = Refresher::new(config, std::process::id());
        let boottime_ns = source.clock(libc::CLOCK_BOOTTIME).unwrap_or(0);
        let counter = || options.relation.guest(source.counter());
        refresher.begin(&mut Writer::new(page), boottime_ns, allows_non_invariant, counter);
        Publisher {
            page,
            source,
            options,
            busy: AtomicBool::new(false),
            sampled_ns: AtomicU64::new(0),
            window_ns: AtomicU64::new(0),
            refresher: UnsafeCell::new(refresher),
        }
    }

    /// Takes one sample of the host's clocks and carries out its result.
    pub fn publish(&self) -> Result<Refreshed, NotPublished> {
        self.refresh(Occasion::Due, || sample::sample(&self.source))
    }

    /// Takes a sample from the host, in host counts. A sample must never depend on data of the guest.
    pub fn publish_sample(&self, sample: &Sample) -> Result<Refreshed, NotPublished> {
        let mut given = Some(possible(sample)?);
        self.refresh(Occasion::Due, || given.take())
    }

    /// Does the same as [`Publisher::publish`] after CLOCK_REALTIME was set: REALTIME and TAI follow at once, and the
    /// other clocks are not affected.
    pub fn publish_step(&self) -> Result<Refreshed, NotPublished> {
        self.refresh(Occasion::Step, || sample::careful_sample(&self.source))
    }

    /// Does the same with a sample from the host.
    pub fn publish_step_sample(&self, sample: &Sample) -> Result<Refreshed, NotPublished> {
        let mut given = Some(possible(sample)?);
        self.refresh(Occasion::Step, || given.take())
    }

    /// Withdraws all clocks from the page: from now on the guest makes system calls, until the next anchors are
    /// published. The known rate is kept, and no clock will show less than it last showed.
    pub fn withdraw(&self, reason: Reason) -> Result<(), Busy> {
        let mut refresher = self.alone()?;
        refresher.withdraw(&mut Writer::new(self.page), reason, || self.guest_counter());
        Ok(())
    }

    /// Takes a comparison of the CPUs' counters ([`fastpath_evidence::Patrol`]): while two are apart, nothing is
    /// published.
    pub fn compared(&self, warp: &Warp) -> Result<Refreshed, Busy> {
        Ok(self
            .alone()?
            .compared(&mut Writer::new(self.page), warp, || self.guest_counter()))
    }

    /// Returns the last event for a log that was not taken yet: a withdrawal, or that the guest is served again.
    pub fn take_news(&self) -> Result<Option<News>, Busy> {
        Ok(self.alone()?.take_news())
    }

    /// Returns the source of this publisher's time.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Returns the relation of the guest's counter to the host's.
    pub fn relation(&self) -> Relation {
        self.options.relation
    }

    /// Returns what the guest would read from its counter now.
    pub(crate) fn guest_counter(&self) -> u64 {
        self.options.relation.guest(self.source.counter())
    }

    /// Returns what the guest would read from the page now, in seconds and nanoseconds; `None` if it would make the
    /// system call.
    pub fn read(&self, clock_id: u32) -> Option<(u64, u32)> {
        Reader::new(self.page).read(clock_id, || self.guest_counter())
    }

    fn refresh(
        &self,
        occasion: Occasion,
        mut sample: impl FnMut() -> Option<Sample>,
    ) -> Result<Refreshed, NotPublished> {
        let mut refresher = self.alone()?;
        let mut sampled_ns = None;
        let refreshed = refresher.refresh(
            occasion,
            &mut Writer::new(self.page),
            || self.guest_counter(),
            || {
                let look = sample::bracket(&self.source, libc::CLOCK_MONOTONIC)?;
                Some(self.options.relation.guest_bracket(look))
            },
            || {
                let sample = sample()?;
                sampled_ns = Some(sample.mono.time_ns);
                Some(self.options.relation.guest_sample(&sample))
            },
            || {},
        );
        let Some(sampled_ns) = sampled_ns else {
            return Err(NotPublished::NoSample);
        };
        self.window_ns.store(refresher.next_window_ns(), Ordering::Relaxed);
        self.sampled_ns.store(sampled_ns, Ordering::Relaxed);
        Ok(refreshed)
    }

    fn alone(&self) -> Result<Alone<'_>, Busy> {
        if self.busy.swap(true, Ordering::Acquire) {
            return Err(Busy);
        }
        Ok(Alone {
            busy: &self.busy,
            refresher: &self.refresher,
        })
    }
}

fn possible(sample: &Sample) -> Result<Sample, NotPublished> {
    sample.is_possible().then_some(*sample).ok_or(NotPublished::Impossible)
}

/// Exclusive access to the refresher, until it is dropped.
struct Alone<'a> {
    busy: &'a AtomicBool,
    refresher: &'a UnsafeCell<Refresher>,
}

impl Deref for Alone<'_> {
    type Target = Refresher;

    fn deref(&self) -> &Refresher {
        // SAFETY: `busy` was false, and stays true while this lives: there is no other reference.
        unsafe { &*self.refresher.get() }
    }
}

impl DerefMut for Alone<'_> {
    fn deref_mut(&mut self) -> &mut Refresher {
        // SAFETY: `busy` was false, and stays true while this lives; `self` is borrowed mutably, so there is no
        // reference by it either.
        unsafe { &mut *self.refresher.get() }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.busy.store(false, Ordering::Release);
    }
}
