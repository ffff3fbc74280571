//! The clocks and their indices in an anchor.

use fastpath_page::ClockSet;
use fastpath_page::clock::{ClockLatch, SERVED, base_index};
use fastpath_page::layout::BASES;

pub(crate) const REALTIME: usize = index(ClockSet::REALTIME);
pub(crate) const MONOTONIC: usize = index(ClockSet::MONOTONIC);
pub(crate) const BOOTTIME: usize = index(ClockSet::BOOTTIME);
pub(crate) const TAI: usize = index(ClockSet::TAI);
/// Index of the raw clock in its own latch.
pub(crate) const RAW: usize = index(ClockSet::MONOTONIC_RAW);

/// The clocks of the `hres` latch and their indices there.
pub(crate) const CLOCKS: [(usize, ClockSet); BASES] = {
    let mut clocks = [(0, ClockSet::NONE); BASES];
    let mut at = 0;
    while at < SERVED.len() {
        let clock = SERVED[at];
        if matches!(clock.latch, ClockLatch::Hres) {
            clocks[clock.base] = (clock.base, ClockSet::of_id(clock.id));
        }
        at += 1;
    }
    clocks
};

const fn index(clock: ClockSet) -> usize {
    base_index(clock.0.trailing_zeros()).expect("a clock in an anchor")
}
