//! Advice after a system call of the guest, which replaces a timer.

use std::sync::atomic::Ordering;

use fastpath_page::{ClockSet, Writer};

use crate::host::publisher::Publisher;
use crate::host::sample::Source;

/// Distance between an anchor and the host's answer that age alone does not explain, in nanoseconds.
const DRIFT_NS: u64 = 100_000_000;
/// Least time between two checks of the drift, however often a guest makes system calls, in nanoseconds.
const DRIFT_LOOK_NS: u64 = 1_000_000;
/// The longest window of any discipline: a sample that seems further away was taken before the host's clock was set
/// back.
const LONGEST_WINDOW_NS: u64 = 1_000_000_000;

/// A system call of the guest, as the host that trapped it saw it.
#[derive(Clone, Copy, Debug)]
pub struct Trap<'i> {
    /// System calls of the guest's image, from `Image::system_calls`: offsets just behind its system-call instructions.
    pub system_calls: &'i [u64],
    /// Address of that image in the guest.
    pub image_address: u64,
    /// The guest's program counter, behind the system-call instruction.
    pub pc: u64,
    /// The clock that the guest asked for: CLOCK_REALTIME (0) for gettimeofday and time, -1 for calls about no clock.
    pub clock_id: i32,
    /// The answer of the host's own implementation just now, in nanoseconds since the clock's epoch.
    pub answered_ns: Option<u64>,
}

/// The action that the host should take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Do nothing: the call does not come from the image, the clock is not served, it is too soon for a sample to help,
    /// or the page is correct.
    LeaveAlone,
    /// Publish: the page has no anchor.
    Seed,
    /// Publish: the anchor is too old, or too far from the host's answer.
    Refresh,
}

impl Trap<'_> {
    /// Returns whether one of the image's own instructions made the call.
    fn comes_from_image(&self) -> bool {
        self.system_calls.contains(&self.pc.wrapping_sub(self.image_address))
    }
}

impl<S: Source> Publisher<'_, S> {
    /// Returns what the guest's system call implies for the page, and changes nothing.
    ///
    /// Nothing that the guest controls reaches an anchor: a false program counter or clock id at worst makes the host
    /// take a sample of its own, and not more often than once per window.
    pub fn trapped(&self, trap: &Trap<'_>) -> Advice {
        let clock = u32::try_from(trap.clock_id).map_or(ClockSet::NONE, ClockSet::of_id);
        if !trap.comes_from_image() || clock.intersection(self.options.clocks).is_empty() {
            return Advice::LeaveAlone;
        }
        match (self.read(trap.clock_id as u32), trap.answered_ns) {
            (Some((sec, nsec)), Some(answered_ns)) => {
                let shown_ns = sec.wrapping_mul(1_000_000_000).wrapping_add(u64::from(nsec));
                if shown_ns.abs_diff(answered_ns) > DRIFT_NS && self.is_due(DRIFT_LOOK_NS) {
                    Advice::Refresh
                } else {
                    Advice::LeaveAlone
                }
            }
            (Some(_), None) => Advice::LeaveAlone,
            (None, _) if !self.is_due(self.window_ns.load(Ordering::Relaxed)) => Advice::LeaveAlone,
            (None, _) if Writer::new(self.page).hres().is_some() => Advice::Refresh,
            (None, _) => Advice::Seed,
        }
    }

    /// Returns whether the last sample was taken at least so long ago.
    fn is_due(&self, after_ns: u64) -> bool {
        let sampled_ns = self.sampled_ns.load(Ordering::Relaxed);
        let Some(now_ns) = self.source.clock(libc::CLOCK_MONOTONIC).filter(|_| sampled_ns != 0) else {
            return true;
        };
        // A sample from the future was taken before the host's clock was set back.
        now_ns.wrapping_sub(sampled_ns) >= after_ns.min(LONGEST_WINDOW_NS)
    }
}
