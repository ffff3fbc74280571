//! The change from one anchor to the next, on one page or on many at once.

use super::{Which, Writer, load};
use crate::anchor::{Anchor, MAX_SHIFT};
use crate::clock::{ClockSet, base_index};
use crate::layout::{FLOOR_LIMIT_NS, Latch};
use crate::sync::{Ordering, fence, fence_before_counter};

/// Reason why an anchor was not published. The page keeps the anchor that it had, except with
/// [`PublishError::Ended`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The anchor in force begins in the future, so readers still need the one before it; or the new one does, and
    /// readers use the kernel until then.
    #[error("the counter ({counter}) has not reached the anchor's base ({base_cycles}) yet")]
    TooEarly {
        /// The counter when publishing began.
        counter: u64,
        /// The base of that anchor.
        base_cycles: u64,
    },
    /// The counter passed the new base before a reader was redirected.
    #[error("the counter ({counter}) passed the new anchor's base ({base_cycles}) before it could be published")]
    TooLate {
        /// The counter when publishing began.
        counter: u64,
        /// The base of the anchor that was refused.
        base_cycles: u64,
    },
    /// The counter passed the new base while readers were redirected. The anchors that were to be replaced have ended:
    /// their readers use the kernel.
    #[error("the counter ({counter}) passed the new anchor's base ({base_cycles}) while it was published")]
    Ended {
        /// The counter when that was found.
        counter: u64,
        /// The base of the anchor that was refused.
        base_cycles: u64,
    },
    /// The anchor is behind the kernel's clock, which the page's readers use until now.
    #[error("the anchor is behind the kernel's clock, which the page's readers use until now")]
    BehindKernel,
    /// Readers were shown a later time by an anchor that was withdrawn.
    #[error("the anchor begins before what readers of the page were shown")]
    BelowFloor,
    /// The anchor breaks a limit of the readers' arithmetic.
    #[error("the anchor exceeds what a reader can compute: {0:?}")]
    OutOfLimits(Anchor),
}

/// The change of one latch from the anchor in force to the next.
#[derive(Clone, Copy)]
pub struct PageChange<'p> {
    writer: &'p Writer<'p>,
    which: Which,
    clocks: ClockSet,
    old: Option<&'p Anchor>,
    new: &'p Anchor,
}

impl<'p> PageChange<'p> {
    /// Returns a change of REALTIME, MONOTONIC, BOOTTIME and TAI, of which the page answers those in `clocks`.
    ///
    /// `old` is the anchor in force as the publisher remembers it, for a page that others may have written to: the
    /// page's contents are then ignored. `None`: the anchor on the page.
    pub fn hres(writer: &'p Writer<'p>, clocks: ClockSet, old: Option<&'p Anchor>, new: &'p Anchor) -> PageChange<'p> {
        let which = Which::Hres;
        PageChange {
            writer,
            which,
            clocks,
            old,
            new,
        }
    }

    /// Returns a change of MONOTONIC_RAW.
    pub fn raw(writer: &'p Writer<'p>, clocks: ClockSet, old: Option<&'p Anchor>, new: &'p Anchor) -> PageChange<'p> {
        let which = Which::Raw;
        PageChange {
            which,
            ..PageChange::hres(writer, clocks, old, new)
        }
    }

    fn latch(&self) -> &'p Latch {
        self.writer.latch(self.which)
    }

    /// Returns the anchor that readers have until the new one begins.
    fn old(&self) -> Anchor {
        match self.old {
            Some(old) if !old.clocks.is_empty() => self.as_on_page(old),
            // Nothing is in force, whatever the page says; its contents may be a floor.
            Some(_) => Anchor {
                clocks: ClockSet::NONE,
                ..load(&self.latch().copy[0])
            },
            None => load(&self.latch().copy[0]),
        }
    }

    /// Returns whether a withdrawn anchor showed readers a later time than the new anchor begins with, so that they
    /// would see time go back. A floor that readers ignore ([`FLOOR_LIMIT_NS`]) does not count.
    pub fn is_below_floor(&self) -> bool {
        let (shown, new) = (self.old(), self.new);
        if !shown.clocks.is_empty() || shown.rate.shift > MAX_SHIFT {
            return false;
        }
        let above = |anchor: &Anchor, index: usize, counter: u64| {
            anchor.ns_shifted_at(index, counter) << (MAX_SHIFT - anchor.rate.shift)
        };
        let floors = ClockSet(self.latch().copy[0].floors.load(Ordering::Relaxed));
        let mut indices = floors.intersection(new.clocks).iter().filter_map(base_index);
        indices.any(|index| {
            let floor = above(&shown, index, shown.end_cycles());
            let begins = above(new, index, new.base_cycles);
            floor > begins && floor - begins < u128::from(FLOOR_LIMIT_NS) << MAX_SHIFT
        })
    }

    /// Returns whether readers of a clock that the new anchor answers use the kernel when the counter shows `counter`.
    fn asks_kernel(&self, counter: u64) -> bool {
        let (old, new) = (self.old(), self.as_on_page(self.new));
        let old_answers = old.may_answer_from(counter) && old.clocks.contains(new.clocks);
        !old_answers && !new.clocks.is_empty()
    }

    /// Returns whether a reader could have used the old anchor from the new one's base on, had it been redirected when
    /// the counter shows `counter`.
    fn comes_late(&self, counter: u64, spare_cycles: u64) -> bool {
        let base_cycles = self.new.base_cycles;
        let left_cycles = base_cycles.wrapping_sub(counter) as i64;
        left_cycles <= spare_cycles as i64 && self.old().may_answer_from(base_cycles)
    }

    /// Returns whether no anchor answers right before the new one begins, so that readers use the kernel, whose rate may
    /// change until then. That of MONOTONIC_RAW does not change.
    pub fn leaves_gap(&self) -> bool {
        let answers_until_then = self.old().may_answer_from(self.new.base_cycles.wrapping_sub(1));
        matches!(self.which, Which::Hres) && !answers_until_then && !self.as_on_page(self.new).clocks.is_empty()
    }

    fn as_on_page(&self, anchor: &Anchor) -> Anchor {
        Anchor {
            clocks: anchor.clocks.intersection(self.clocks),
            ..*anchor
        }
    }
}

impl Writer<'_> {
    fn prepare(&self, change: &PageChange<'_>) {
        let latch = change.latch();
        let mut old = change.old();
        let lead_cycles = change.new.base_cycles.wrapping_sub(old.base_cycles);
        // The old anchor only answers before the new base.
        match (lead_cycles as i64).checked_sub(1) {
            Some(last) if last >= 0 => {
                old.cap_cycles = old.cap_cycles.min(u32::try_from(last).unwrap_or(u32::MAX));
            }
            _ => old.clocks = ClockSet::NONE,
        }
        // A withdrawn anchor remains the floor.
        let floors = ClockSet(latch.copy[0].floors.load(Ordering::Relaxed)).union(old.clocks);
        let seq = self.turn_away(latch);
        self.store_anchor(&latch.copy[1], &old, floors);
        self.store_seq(latch, seq + 1);
    }

    fn commit(&self, change: &PageChange<'_>) {
        let latch = change.latch();
        // The fence before the counter was read orders these stores after the odd seq: see `publish_changes`.
        let new = change.as_on_page(change.new);
        self.store_anchor(&latch.copy[0], &new, new.clocks);
        self.finish(latch);
    }
}

/// Publishes the same anchors to several pages at once: see [`publish_changes`].
pub fn publish_all<'w, 'p: 'w>(
    writers: impl IntoIterator<Item = &'w Writer<'p>, IntoIter: Clone>,
    hres: Option<&Anchor>,
    raw: Option<&Anchor>,
    spare_cycles: u64,
    counter: impl Fn() -> u64,
    is_behind_kernel: impl Fn() -> bool,
) -> Result<(), PublishError> {
    let changes = writers.into_iter().flat_map(|writer| {
        let hres = hres.map(|anchor| PageChange::hres(writer, anchor.clocks, None, anchor));
        let raw = raw.map(|anchor| PageChange::raw(writer, anchor.clocks, None, anchor));
        [hres, raw].into_iter().flatten()
    });
    publish_changes(changes, spare_cycles, counter, is_behind_kernel)
}

/// Makes several changes at once: all of them take place at the same value of the counter, or none does. The new
/// anchors of a latch begin at one base on all pages.
///
/// `spare_cycles` must be left before the new base when all readers have been redirected. A reader's recheck of seq may
/// be executed before its counter read has finished (RDTSCP does not hold back later loads, Intel SDM volume 2), by as
/// far as a CPU looks ahead: some 500 instructions, well below a microsecond. A reader that misses the new seq so
/// closely must still read its counter before the new base.
///
/// The same time must have passed since the base of the anchor in force: a reader on a CPU whose counter is slightly
/// behind this one's may still be before that base and in `copy[1]`, which is about to be written. Believable counters
/// differ by less (the bounds of an exchange between two CPUs are some hundred nanoseconds wide at most).
///
/// `counter` reads the counter, ordered. For a page that already answers, the anchor's base must lie a little in the
/// future, after the base of the anchor in force; for one that does not answer yet (or no more), it may lie in the
/// past.
///
/// The readers of such a page use the kernel until the change is made. The kernel's rate can change after the anchor
/// was computed, and the publisher can be preempted: `is_behind_kernel` is therefore called last, between the two
/// phases. If it returns true, nothing changes. For the same reason the base of such a change does not lie in the
/// future.
pub fn publish_changes<'p>(
    changes: impl Iterator<Item = PageChange<'p>> + Clone,
    spare_cycles: u64,
    counter: impl Fn() -> u64,
    is_behind_kernel: impl Fn() -> bool,
) -> Result<(), PublishError> {
    let begun = counter();
    for change in changes.clone() {
        if !change.new.is_within_limits() {
            return Err(PublishError::OutOfLimits(*change.new));
        }
        change.writer.repair(change.latch());
        if change.is_below_floor() {
            return Err(PublishError::BelowFloor);
        }
        let old = change.old();
        let begins_cycles = old.base_cycles.wrapping_add(spare_cycles);
        if !old.clocks.is_empty() && (begun.wrapping_sub(begins_cycles) as i64) < 0 {
            return Err(PublishError::TooEarly {
                counter: begun,
                base_cycles: old.base_cycles,
            });
        }
        if change.comes_late(begun, spare_cycles) {
            return Err(PublishError::TooLate {
                counter: begun,
                base_cycles: change.new.base_cycles,
            });
        }
    }

    for change in changes.clone() {
        // Asked for each page: from here to its new seq, readers may pass the new base by the old anchor, and then find
        // it cut there. That would take time back where the kernel is behind.
        if change.comes_late(counter(), spare_cycles) {
            return Err(end_changes(changes, change.new.base_cycles, counter));
        }
        change.writer.prepare(&change);
    }
    // The odd seqs are visible everywhere before the counter is read: a reader whose counter is past `redirected_at`
    // finds seq changed. And a reader that sees a store to copy[0] by `commit` sees an odd seq (or a later one) at the
    // recheck.
    fence_before_counter();
    let redirected_at = counter();

    let find_late = |now| changes.clone().find(|change| change.comes_late(now, spare_cycles));
    if let Some(late) = find_late(redirected_at) {
        return Err(end_changes(changes, late.new.base_cycles, counter));
    }
    let too_early = |change: &PageChange<'_>| {
        let left_cycles = change.new.base_cycles.wrapping_sub(redirected_at) as i64;
        left_cycles > 0 && change.leaves_gap()
    };
    let asks_kernel = || changes.clone().any(|change| change.asks_kernel(redirected_at));
    let refused = match changes.clone().find(too_early) {
        Some(change) => PublishError::TooEarly {
            counter: redirected_at,
            base_cycles: change.new.base_cycles,
        },
        None if asks_kernel() && is_behind_kernel() => PublishError::BehindKernel,
        None => {
            for change in changes {
                change.writer.commit(&change);
            }
            return Ok(());
        }
    };
    // Readers may have passed the cut meanwhile.
    if let Some(late) = find_late(counter()) {
        return Err(end_changes(changes, late.new.base_cycles, counter));
    }
    for change in changes {
        change.writer.finish(change.latch());
    }
    Err(refused)
}

/// Ends the anchors that the changes were to replace, on all pages: a reader of one page may have had the kernel's time
/// and tell it to a reader of another.
fn end_changes<'p>(
    changes: impl Iterator<Item = PageChange<'p>> + Clone,
    base_cycles: u64,
    counter: impl Fn() -> u64,
) -> PublishError {
    let counter = end_anchors(changes.map(|change| (change.writer, change.latch())), counter);
    PublishError::Ended { counter, base_cycles }
}

/// Ends the anchors in force, whose time at this moment becomes the floor, and returns the counter at their end.
/// `copy[0]` is whole.
pub(super) fn end_anchors<'p>(
    latches: impl Iterator<Item = (&'p Writer<'p>, &'p Latch)> + Clone,
    counter: impl Fn() -> u64,
) -> u64 {
    // A reader that sees a store to copy[0] below sees the odd seq of a change that is cancelled, or a later one.
    fence(Ordering::Release);
    for (writer, latch) in latches.clone() {
        for copy in &latch.copy {
            writer.store32(&copy.clocks, 0);
            writer.store32(&copy.by_cpu, 0);
        }
        // A reader that saw the clocks finds seq changed at its recheck, or has read its counter before `ended`.
        writer.turn_away(latch);
    }
    fence_before_counter();
    let ended = counter();
    for (writer, latch) in latches {
        for copy in &latch.copy {
            writer.cut(copy, ended);
        }
    }
    ended
}
