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

mod change;
mod stats;

use std::mem::size_of;
use std::ptr::NonNull;

use crate::anchor::{Anchor, Base, MAX_SHIFT, Rate, UtcError};
use crate::clock::ClockSet;
use crate::layout::{
    ABI, AHEAD_UNKNOWN, AnchorCell, BASES, FLAG_OFFSETS, HISTORY, Latch, MAGIC, Page, WATCH_ALLOWS_NON_INVARIANT,
};
#[cfg(not(loom))]
use crate::layout::{NO_OFFSET, OFFSETS};
use crate::reason::Reason;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use change::end_anchors;

pub use change::{PageChange, PublishError, publish_all, publish_changes};
pub use stats::{Init, Stats, Watch, Withdrawal};

/// Longest time by which a reader's recheck of seq may be executed before its counter read has finished: see
/// [`publish_changes`].
pub const LOOK_AHEAD_NS: u64 = 2_000;

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
