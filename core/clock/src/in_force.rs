//! The anchors in force, and what readers were shown by them.

use fastpath_page::Anchor;
use fastpath_page::layout::BASES;

use crate::clocks::{CLOCKS, MONOTONIC};

/// The anchors in force.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InForce {
    pub hres: Option<Anchor>,
    pub raw: Option<Anchor>,
    /// The withdrawn anchor, cut short at the withdrawal, while nothing is in force. No later anchor begins at an
    /// earlier time.
    pub floor_hres: Option<Anchor>,
    pub floor_raw: Option<Anchor>,
    /// Clocks that the kernel stepped since `hres` was made; these may go back.
    pub stepped: [bool; BASES],
}

impl InForce {
    pub(crate) fn withdrawn(self) -> InForce {
        InForce {
            hres: None,
            raw: None,
            floor_hres: self.hres.or(self.floor_hres),
            floor_raw: self.raw.or(self.floor_raw),
            stepped: [false; BASES],
        }
    }
    /// Ends all anchors at a value of the counter.
    pub(crate) fn end_at(&mut self, counter: u64) {
        let InForce {
            hres,
            raw,
            floor_hres,
            floor_raw,
            ..
        } = self;
        for anchor in [hres, raw, floor_hres, floor_raw].into_iter().flatten() {
            *anchor = anchor.ended_at(counter);
        }
    }
}

/// Returns the offset from MONOTONIC at which an anchor shows a clock, in whole nanoseconds; `None` if it does not
/// answer that clock.
pub(crate) fn shown_offset_ns(hres: &Anchor, index: usize) -> Option<i64> {
    let shift = hres.rate.shift;
    let (_, clock) = CLOCKS[index];
    let mono = hres.base[MONOTONIC].ns_shifted(shift) as i128;
    hres.clocks
        .contains(clock)
        .then(|| ((hres.base[index].ns_shifted(shift) as i128 - mono) >> shift) as i64)
}
