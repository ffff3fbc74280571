//! The state of a page, for a log.

use std::sync::atomic::Ordering;

use fastpath_page::{ClockSet, Reader, Reason, Writer};

use crate::host::publisher::Publisher;
use crate::host::sample::Source;

/// Number of measurements of the distance from the host's clock; enough that one of them is not interrupted.
const ATTEMPTS: u32 = 5;

/// State of a publisher's page at one moment. If another thread publishes meanwhile, some of it may be newer than the
/// rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublisherState {
    /// The clocks that the page answers.
    pub clocks: ClockSet,
    /// Reason why the anchors were withdrawn; `None`: they were not.
    pub withdrawn_reason: Option<Reason>,
    /// Whether the page has, or had, an anchor.
    pub seeded: bool,
    /// Number of anchors published since the publisher was made.
    pub refreshes: u64,
    /// How far the page was ahead of the host's MONOTONIC before the last refresh, in nanoseconds.
    pub residual_ns: i64,
    /// Age of the newest anchor, in nanoseconds. A negative age belongs to an anchor that has yet to take effect.
    /// Beyond `cap_ns` the guest makes system calls.
    pub age_ns: i64,
    /// Max age of the anchor, in nanoseconds.
    pub cap_ns: u64,
    /// How far the page is ahead of the host's MONOTONIC, in nanoseconds; 0 if it does not answer that clock.
    pub drift_ns: i64,
    /// Time from the last sample to the next, in nanoseconds.
    pub next_window_ns: u64,
    /// The anchor's rate, in nanoseconds per guest count; 0 without an anchor.
    pub ns_per_cycle: f64,
}

impl<S: Source> Publisher<'_, S> {
    /// Reads the page, the counter and the host's MONOTONIC, and returns the state.
    pub fn state(&self) -> PublisherState {
        let reader = Reader::new(self.page);
        let stats = reader.stats();
        let cycles = self.guest_counter();
        let clocks = ClockSet::ALL
            .iter()
            .filter(|id| reader.read(*id, || cycles).is_some())
            .fold(ClockSet::NONE, |clocks, id| clocks.union(ClockSet::of_id(id)));
        let mut state = PublisherState {
            clocks,
            withdrawn_reason: stats.withdrawn_reason,
            seeded: self.page.hres.copy[0].seq.load(Ordering::Acquire) != 0,
            refreshes: stats.refreshes,
            residual_ns: stats.residual_ns,
            age_ns: 0,
            cap_ns: 0,
            drift_ns: self.drift_ns(&reader),
            next_window_ns: self.window_ns.load(Ordering::Relaxed),
            ns_per_cycle: 0.0,
        };
        if let Some(hres) = Writer::new(self.page).hres() {
            let ns_per_cycle = f64::from(hres.rate.mult) / (1_u64 << hres.rate.shift.min(63)) as f64;
            state.ns_per_cycle = ns_per_cycle;
            state.age_ns = (cycles.wrapping_sub(hres.base_cycles) as i64 as f64 * ns_per_cycle) as i64;
            state.cap_ns = (f64::from(hres.cap_cycles) * ns_per_cycle) as u64;
        }
        state
    }

    /// Returns the page's MONOTONIC less the host's, read between two reads of the page.
    fn drift_ns(&self, reader: &Reader<'_>) -> i64 {
        let page = || {
            let (sec, nsec) = reader.read(libc::CLOCK_MONOTONIC as u32, || self.guest_counter())?;
            Some(sec.wrapping_mul(1_000_000_000).wrapping_add(u64::from(nsec)))
        };
        let attempt = || {
            let before = page()?;
            let host = self.source.clock(libc::CLOCK_MONOTONIC)?;
            let width = page()?.wrapping_sub(before);
            let middle = before.wrapping_add(width / 2);
            Some((width, middle.wrapping_sub(host) as i64))
        };
        // The tightest attempt was not interrupted.
        let tightest = (0..ATTEMPTS).filter_map(|_| attempt()).min_by_key(|(width, _)| *width);
        tightest.map_or(0, |(_, drift_ns)| drift_ns)
    }
}
