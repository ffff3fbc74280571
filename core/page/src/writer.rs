//! The only code that stores to a page.
//!
//! A latch is refreshed in two phases, so that all pages of a publisher, and all threads of a process, change from one
//! anchor to the next at the same value of the counter, the new anchor's base:
//!
//! 1. *prepare*: `seq += 2` turns away readers that are still in `copy[1]`; the current anchor is copied there, with
//!    its cap cut just short of the new base; `seq += 1` (odd) sends readers there. From now on no reader gets an
//!    answer from the old anchor at or after the new base: there, readers fall back to the kernel.
//! 2. If the counter has not reached the new base by now (it may have, where the publisher was preempted), *commit*:
//!    the new anchor goes to `copy[0]`, `seq += 1`. Otherwise the old anchor may have answered beyond the new base, and
//!    switching could take time back; and readers may have had the kernel's time since, so that going back to the old
//!    anchor could, too. So *end* it: readers use the kernel, above the floor of what the old anchor can have shown,
//!    and the caller makes a later anchor.
//!
//! A writer that dies between any two stores leaves either the old anchor, the old one that ends at the new base, or
//! the new one, and a reader can always distinguish them.

use std::mem::size_of;
use std::ptr::NonNull;

use crate::anchor::{Anchor, Base, MAX_SHIFT, Rate, UtcError};
use crate::clock::{ClockSet, base_index};
use crate::layout::{
    ABI, AHEAD_UNKNOWN, AnchorCell, BASES, FLAG_OFFSETS, FLOOR_LIMIT_NS, HISTORY, Latch, MAGIC, Page,
    WATCH_ALLOWS_NON_INVARIANT,
};
#[cfg(not(loom))]
use crate::layout::{NO_OFFSET, OFFSETS};
use crate::reason::Reason;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, fence_before_counter};

/// Longest time by which a reader's recheck of seq may be executed before its counter read has finished: see
/// [`publish_changes`].
pub const LOOK_AHEAD_NS: u64 = 2_000;

/// Constants of a page's lifetime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Init {
    /// `clock_getres` of the clocks with an anchor, in nanoseconds; 0: readers fall back to the kernel.
    pub hres_res_ns: u32,
    /// `clock_getres` of the COARSE clocks, in nanoseconds; 0: readers fall back to the kernel.
    pub coarse_res_ns: u32,
    /// [`crate::layout::FLAG_CPU_SEGMENT`], [`crate::layout::FLAG_ONE_CPU`] or 0.
    pub flags: u32,
    /// The CPU's number, with `FLAG_ONE_CPU`.
    pub cpu: u32,
    /// Its node's number, with `FLAG_ONE_CPU`.
    pub node: u32,
}

/// Statistics for `status` and `probe`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Anchors published since the page was made.
    pub refreshes: u64,
    /// Error against the kernel's clock before the last refresh, in nanoseconds.
    pub residual_ns: i64,
    /// The publisher's process id as it sees itself.
    pub publisher_pid: u32,
    /// Reason why the anchors were withdrawn; `None`: they are in force.
    pub withdrawn_reason: Option<Reason>,
}

/// A withdrawal of anchors from the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withdrawal {
    /// The kernel's CLOCK_BOOTTIME, in nanoseconds.
    pub boottime_ns: u64,
    /// The reason.
    pub reason: Reason,
    /// How far the anchor was ahead of the kernel's MONOTONIC, in nanoseconds; `None`: no reader was served, or the
    /// value could not be measured.
    pub ahead_ns: Option<i64>,
}

/// Comparisons of the CPUs' counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// Comparisons since the publisher started.
    pub warp_tests: u32,
    /// Upper bound of the distance of any two CPUs' counters in the last one.
    pub warp_within_cycles: Option<u64>,
    /// Whether the publisher may use a counter whose rate is not stated to be constant (`--trust-counter`).
    pub allows_non_invariant: bool,
}

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

/// Writes one page. There is one writer at a time; it continues from whatever state a dead one left.
pub struct Writer<'p> {
    page: &'p Page,
    /// Stores that are left before this writer is dead: the model checker kills it at each.
    #[cfg(loom)]
    stores_left: std::cell::Cell<u32>,
}

#[derive(Clone, Copy)]
enum Which {
    Hres,
    Raw,
}

impl<'p> Writer<'p> {
    /// Returns a writer for a page in ordinary memory.
    pub fn new(page: &'p Page) -> Writer<'p> {
        Writer {
            page,
            #[cfg(loom)]
            stores_left: std::cell::Cell::new(u32::MAX),
        }
    }

    /// Returns the page that it writes.
    pub fn page(&self) -> &'p Page {
        self.page
    }

    /// Returns a writer for a mapped page.
    ///
    /// # Safety
    /// `page` is aligned to 64 bytes and [`crate::PAGE_SIZE`] bytes from it stay mapped and writable for `'p`; all
    /// others only read them, and no other writer is active.
    pub unsafe fn from_ptr(page: NonNull<u8>) -> Writer<'p> {
        // SAFETY: the caller guarantees that the memory is mapped for 'p and aligned; a page is valid in any bit
        // pattern.
        Writer::new(unsafe { page.cast::<Page>().as_ref() })
    }

    /// Writes the header. The magic comes last: a page without it is refused at mapping time.
    pub fn init(&self, init: &Init) {
        let header = &self.page.header;
        self.store32(&header.abi, ABI);
        self.store32(&header.size, size_of::<Page>() as u32);
        self.store32(&header.hres_res_ns, init.hres_res_ns);
        self.store32(&header.coarse_res_ns, init.coarse_res_ns);
        self.store32(&header.flags, init.flags);
        self.store32(&header.cpu, init.cpu);
        self.store32(&header.node, init.node);
        fence(Ordering::Release);
        self.store64(&header.magic, MAGIC);
    }

    /// Stores how far the counters of the CPUs are ahead of the counts that the anchors are in; CPUs that are not listed
    /// are left to the kernel. No anchor may be in force, and from now on anchors are for readers that subtract these;
    /// `None`: for readers of counters that agree.
    ///
    /// Each CPU's number must be below [`OFFSETS`], and each offset one that the page [can
    /// hold](crate::layout::OffsetsCell::can_hold).
    #[cfg(not(loom))]
    pub fn set_offsets(&self, offsets: Option<&[(usize, i64)]>) {
        let (flags, cells) = (&self.page.header.flags, &self.page.offsets);
        let Some(offsets) = offsets else {
            return self.store32(flags, flags.load(Ordering::Relaxed) & !FLAG_OFFSETS);
        };
        let mut table = [(NO_OFFSET, 0); OFFSETS];
        for (cpu, offset) in offsets {
            table[*cpu] = ((*offset >> 32) as i8, *offset as u32);
        }
        // A reader that sees a store below finds seq changed by the withdrawal, or no anchor in force.
        fence(Ordering::Release);
        for (cpu, (high, low)) in table.into_iter().enumerate() {
            cells.low[cpu].store(low, std::sync::atomic::Ordering::Relaxed);
            cells.high[cpu].store(high, std::sync::atomic::Ordering::Relaxed);
        }
        self.store32(flags, flags.load(Ordering::Relaxed) | FLAG_OFFSETS);
        fence(Ordering::Release);
    }

    /// Returns whether readers subtract the offset of their CPU.
    fn has_offsets(&self) -> bool {
        self.page.header.flags.load(Ordering::Relaxed) & FLAG_OFFSETS != 0
    }

    /// Stores for which clocks the page is kept, for the next publisher.
    pub fn set_clocks(&self, clocks: ClockSet) {
        self.store32(&self.page.header.clocks, clocks.0);
    }

    /// Stores which daemon keeps the page, for its next instance.
    pub fn set_keeper(&self, keeper: u64) {
        self.store64(&self.page.header.keeper, keeper);
    }

    /// Publishes an anchor for REALTIME, MONOTONIC, BOOTTIME and TAI; `counter` reads the counter, ordered.
    pub fn publish_hres(&self, anchor: &Anchor, counter: impl Fn() -> u64) -> Result<(), PublishError> {
        publish_all([self], Some(anchor), None, 0, counter, || false)
    }

    /// Takes all clocks off the page: from now on readers fall back to the kernel. `reason` is for `status`; `counter`
    /// reads the counter, ordered.
    ///
    /// The anchors end here: their time at this moment stays on the page as the floor of what readers get from the
    /// kernel.
    pub fn withdraw(&self, reason: Reason, counter: impl Fn() -> u64) {
        self.end(counter);
        self.store32(&self.page.stats.withdrawn_reason, reason.code());
    }

    /// Does the same without a reason: for a moment, which no statistics show.
    pub fn end(&self, counter: impl Fn() -> u64) {
        let latches = [Which::Hres, Which::Raw].map(|which| (self, self.latch(which)));
        latches.into_iter().for_each(|(_, latch)| self.repair(latch));
        end_anchors(latches.into_iter(), counter);
    }

    /// Takes some clocks off the page, and their floors too: the kernel's clock was set, which voids the times that
    /// readers were shown. The next anchor answers them again.
    pub fn forget(&self, clocks: ClockSet) {
        for which in [Which::Hres, Which::Raw] {
            let latch = self.latch(which);
            self.repair(latch);
            for copy in &latch.copy {
                for set in [&copy.clocks, &copy.by_cpu, &copy.floors] {
                    self.store32(set, set.load(Ordering::Relaxed) & !clocks.0);
                }
            }
            self.turn_away(latch);
        }
    }

    /// Cuts an anchor's cap at a value of the counter: no reader is shown a later time of it. The cut allows for
    /// readers that look ahead of their counter read by a little ([`publish_changes`]).
    fn cut(&self, cell: &AnchorCell, ended: u64) {
        let anchor = load(cell);
        let rate = Rate {
            shift: anchor.rate.shift.min(MAX_SHIFT),
            ..anchor.rate
        };
        let anchor = anchor.ended_at(ended.wrapping_add(rate.cycles_for_ns(LOOK_AHEAD_NS)));
        self.store32(&cell.cap_cycles, anchor.cap_cycles);
    }

    /// Writes the statistics. A reader may see some of them newer than others.
    pub fn set_stats(&self, stats: &Stats) {
        let cell = &self.page.stats;
        self.store64(&cell.refreshes, stats.refreshes);
        self.store64(&cell.residual_ns, stats.residual_ns as u64);
        self.store32(&cell.publisher_pid, stats.publisher_pid);
        self.store32(&cell.withdrawn_reason, stats.withdrawn_reason.map_or(0, Reason::code));
    }

    /// Adds to the page's history. This does not affect readers; [`Writer::withdraw`] does.
    pub fn note_withdrawal(&self, withdrawal: &Withdrawal) {
        let stats = &self.page.stats;
        let count = stats.withdrawals.load(Ordering::Relaxed);
        let entry = &stats.history[(count % HISTORY as u64) as usize];
        self.store32(&entry.reason, 0);
        // A reader that sees the stores below sees the 0, or a later reason.
        fence(Ordering::Release);
        self.store64(&entry.boottime_ns, withdrawal.boottime_ns);
        self.store64(&entry.ahead_ns, withdrawal.ahead_ns.unwrap_or(AHEAD_UNKNOWN) as u64);
        fence(Ordering::Release);
        self.store32(&entry.reason, withdrawal.reason.code());
        fence(Ordering::Release);
        self.store64(&stats.withdrawals, count.wrapping_add(1));
    }

    /// Stores the comparisons of the CPUs' counters.
    pub fn set_watch(&self, watch: &Watch) {
        let stats = &self.page.stats;
        self.store32(&stats.warp_tests, watch.warp_tests);
        let flags = if watch.allows_non_invariant {
            WATCH_ALLOWS_NON_INVARIANT
        } else {
            0
        };
        self.store32(&stats.watch_flags, flags);
        self.store64(&stats.warp_within_cycles, watch.warp_within_cycles.unwrap_or(0));
    }

    /// Returns the anchor in force for REALTIME, MONOTONIC, BOOTTIME and TAI, for a publisher that takes over a page.
    pub fn hres(&self) -> Option<Anchor> {
        self.in_force(Which::Hres)
    }

    /// Returns the anchor in force for MONOTONIC_RAW, for a publisher that takes over a page.
    pub fn raw(&self) -> Option<Anchor> {
        self.in_force(Which::Raw)
    }

    fn latch(&self, which: Which) -> &Latch {
        match which {
            Which::Hres => &self.page.hres,
            Which::Raw => &self.page.raw,
        }
    }

    fn in_force(&self, which: Which) -> Option<Anchor> {
        let latch = self.latch(which);
        let odd = latch.copy[0].seq.load(Ordering::Relaxed) & 1;
        let anchor = load(&latch.copy[odd as usize]);
        (!anchor.clocks.is_empty()).then_some(anchor)
    }

    /// Finishes what a dead writer began: with an odd seq, `copy[1]` is whole and `copy[0]` may not be.
    fn repair(&self, latch: &Latch) {
        let seq = latch.copy[0].seq.load(Ordering::Relaxed);
        if seq & 1 == 1 {
            fence(Ordering::Release);
            let copy = &latch.copy[1];
            let floors = copy.floors.load(Ordering::Relaxed);
            self.store_anchor(&latch.copy[0], &load(copy), ClockSet(floors));
            self.store_seq(latch, next_even(seq - 1));
        }
    }

    /// Makes every reader that began before now begin again, and returns the new, even seq.
    ///
    /// From then on no reader uses `copy[1]` until seq is odd: the counter is past `copy[0]`'s base.
    fn turn_away(&self, latch: &Latch) -> u32 {
        let seq = next_even(latch.copy[0].seq.load(Ordering::Relaxed) & !1);
        self.store_seq(latch, seq);
        // A reader that sees a store to copy[1] below sees this seq (or a later one) at the recheck.
        fence(Ordering::Release);
        seq
    }

    fn prepare(&self, change: &Change<'_>) {
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

    fn commit(&self, change: &Change<'_>) {
        let latch = change.latch();
        // The fence before the counter was read orders these stores after the odd seq: see `publish_changes`.
        let new = change.as_on_page(change.new);
        self.store_anchor(&latch.copy[0], &new, new.clocks);
        self.finish(latch);
    }

    fn finish(&self, latch: &Latch) {
        let odd = latch.copy[0].seq.load(Ordering::Relaxed);
        self.store_seq(latch, next_even(odd.wrapping_sub(1)));
    }

    fn store_anchor(&self, cell: &AnchorCell, anchor: &Anchor, floors: ClockSet) {
        let (in_all, by_cpu) = match self.has_offsets() {
            true => (0, anchor.clocks.0),
            false => (anchor.clocks.0, 0),
        };
        self.store32(&cell.clocks, in_all);
        self.store32(&cell.by_cpu, by_cpu);
        self.store32(&cell.floors, floors.0);
        self.store64(&cell.base_cycles, anchor.base_cycles);
        self.store32(&cell.mult, anchor.rate.mult);
        self.store32(&cell.shift, anchor.rate.shift);
        self.store32(&cell.cap_cycles, anchor.cap_cycles);
        self.store32(&cell.utc_error_mult, anchor.utc_error.mult);
        self.store64(&cell.utc_error_ns, anchor.utc_error.ns);
        for (cell, base) in cell.base.iter().zip(&anchor.base) {
            self.store64(&cell.sec, base.sec);
            self.store64(&cell.nsec_shifted, base.nsec_shifted);
        }
    }

    fn store_seq(&self, latch: &Latch, seq: u32) {
        if self.alive() {
            latch.copy[0].seq.store(seq, Ordering::Release);
        }
    }

    fn store32(&self, cell: &AtomicU32, value: u32) {
        if self.alive() {
            cell.store(value, Ordering::Relaxed);
        }
    }

    fn store64(&self, cell: &AtomicU64, value: u64) {
        if self.alive() {
            cell.store(value, Ordering::Relaxed);
        }
    }

    #[cfg(not(loom))]
    fn alive(&self) -> bool {
        true
    }

    /// Returns whether the next store still happens.
    #[cfg(loom)]
    fn alive(&self) -> bool {
        let left = self.stores_left.get();
        self.stores_left.set(left.saturating_sub(1));
        left > 0
    }

    /// Lets only the next `stores` stores happen, as if the writer were killed after them.
    #[cfg(loom)]
    pub fn dies_after(&self, stores: u32) {
        self.stores_left.set(stores);
    }
}

/// The change of one latch from the anchor in force to the next.
#[derive(Clone, Copy)]
pub struct Change<'p> {
    writer: &'p Writer<'p>,
    which: Which,
    clocks: ClockSet,
    old: Option<&'p Anchor>,
    new: &'p Anchor,
}

impl<'p> Change<'p> {
    /// Returns a change of REALTIME, MONOTONIC, BOOTTIME and TAI, of which the page answers those in `clocks`.
    ///
    /// `old` is the anchor in force as the publisher remembers it, for a page that others may have written to: the
    /// page's contents are then ignored. `None`: the anchor on the page.
    pub fn hres(writer: &'p Writer<'p>, clocks: ClockSet, old: Option<&'p Anchor>, new: &'p Anchor) -> Change<'p> {
        let which = Which::Hres;
        Change {
            writer,
            which,
            clocks,
            old,
            new,
        }
    }

    /// Returns a change of MONOTONIC_RAW.
    pub fn raw(writer: &'p Writer<'p>, clocks: ClockSet, old: Option<&'p Anchor>, new: &'p Anchor) -> Change<'p> {
        let which = Which::Raw;
        Change {
            which,
            ..Change::hres(writer, clocks, old, new)
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
        let hres = hres.map(|anchor| Change::hres(writer, anchor.clocks, None, anchor));
        let raw = raw.map(|anchor| Change::raw(writer, anchor.clocks, None, anchor));
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
    changes: impl Iterator<Item = Change<'p>> + Clone,
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

    if let Some(late) = changes
        .clone()
        .find(|change| change.comes_late(redirected_at, spare_cycles))
    {
        return Err(end_changes(changes, late.new.base_cycles, counter));
    }
    let too_early = |change: &Change<'_>| {
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
    if let Some(late) = changes
        .clone()
        .find(|change| change.comes_late(counter(), spare_cycles))
    {
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
    changes: impl Iterator<Item = Change<'p>> + Clone,
    base_cycles: u64,
    counter: impl Fn() -> u64,
) -> PublishError {
    let counter = end_anchors(changes.map(|change| (change.writer, change.latch())), counter);
    PublishError::Ended { counter, base_cycles }
}

/// Ends the anchors in force, whose time at this moment becomes the floor, and returns the counter at their end.
/// `copy[0]` is whole.
fn end_anchors<'p>(
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

/// Returns the even seq after an even one. 0 means "never seeded" and is skipped when the count wraps.
fn next_even(seq: u32) -> u32 {
    match seq.wrapping_add(2) {
        0 => 2,
        next => next,
    }
}

/// Loads an anchor as the writer itself stored it.
fn load(cell: &AnchorCell) -> Anchor {
    let mut base = [Base::default(); BASES];
    for (base, cell) in base.iter_mut().zip(&cell.base) {
        base.sec = cell.sec.load(Ordering::Relaxed);
        base.nsec_shifted = cell.nsec_shifted.load(Ordering::Relaxed);
    }
    Anchor {
        clocks: cell.answered(),
        base_cycles: cell.base_cycles.load(Ordering::Relaxed),
        rate: Rate {
            mult: cell.mult.load(Ordering::Relaxed),
            shift: cell.shift.load(Ordering::Relaxed),
        },
        cap_cycles: cell.cap_cycles.load(Ordering::Relaxed),
        base,
        utc_error: UtcError {
            ns: cell.utc_error_ns.load(Ordering::Relaxed),
            mult: cell.utc_error_mult.load(Ordering::Relaxed),
        },
    }
}
