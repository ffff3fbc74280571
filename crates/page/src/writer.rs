//! The only code that stores to a page.
//!
//! A latch is refreshed in two phases, so that all pages of a publisher, and all threads of a process, change from one
//! anchor to the next at the same value of the counter, the new anchor's base:
//!
//! 1. *prepare*: `seq += 2` turns away readers that are still in `copy[1]`; the current anchor is copied there, with its cap
//!    cut just short of the new base; `seq += 1` (odd) sends readers there. From now on nobody gets an answer from the old
//!    anchor at or after the new base: there, readers ask the kernel.
//! 2. If the counter has not reached the new base by now (it may have, where the publisher was preempted), *commit*: the new
//!    anchor goes to `copy[0]`, `seq += 1`. Otherwise the old anchor may have answered beyond the new base, and switching
//!    could take time back, so *cancel*: `seq += 1` with `copy[0]` as it was, and the caller makes a later anchor.
//!
//! A writer that dies between any two stores leaves either the old anchor, the old one that ends at the new base, or the
//! new one, and a reader always knows which.

use std::mem::size_of;
use std::ptr::NonNull;

use crate::anchor::{Anchor, Base, ClockSet, Rate};
use crate::layout::{ABI, AnchorCell, BASES, Latch, MAGIC, Page};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// What a page says for as long as it lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Init {
    /// `clock_getres` of the clocks with an anchor, in nanoseconds; 0: readers ask the kernel.
    pub hres_res_ns: u32,
    /// `clock_getres` of the COARSE clocks, in nanoseconds; 0: readers ask the kernel.
    pub coarse_res_ns: u32,
    /// [`crate::layout::FLAG_CPU_SEGMENT`] or 0.
    pub flags: u32,
}

/// For `status` and `probe`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Anchors published since the page was made.
    pub refreshes: u64,
    /// Error against the kernel's clock before the last refresh, in nanoseconds.
    pub residual_ns: i64,
    /// The publisher's process id as it sees itself.
    pub publisher_pid: u32,
    /// Why the anchors were withdrawn; 0: they are in force.
    pub withdrawn_reason: u32,
}

/// Why an anchor was not published. The page then goes on with the anchor that it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The anchor in force begins in the future, so readers still need the one before it.
    #[error("the counter ({counter}) has not reached the base of the anchor in force ({base_cycles}) yet")]
    TooEarly {
        /// The counter when publishing began.
        counter: u64,
        /// The base of the anchor in force.
        base_cycles: u64,
    },
    /// The counter passed the new base before the readers could be told.
    #[error("the counter ({counter}) passed the new anchor's base ({base_cycles}) before it could be published")]
    TooLate {
        /// The counter once all readers had been told.
        counter: u64,
        /// The base of the anchor that was refused.
        base_cycles: u64,
    },
    /// The anchor breaks a limit of the readers' arithmetic.
    #[error("the anchor exceeds what a reader can compute: {0:?}")]
    OutOfLimits(Anchor),
}

/// Writes one page. There is one writer at a time; it carries on from whatever a dead one left.
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
    /// A writer for a page in ordinary memory.
    pub fn new(page: &'p Page) -> Writer<'p> {
        Writer {
            page,
            #[cfg(loom)]
            stores_left: std::cell::Cell::new(u32::MAX),
        }
    }

    /// A writer for a mapped page.
    ///
    /// # Safety
    /// `page` is aligned to 64 bytes and [`crate::PAGE_SIZE`] bytes from it stay mapped and writable for `'p`; everyone else
    /// only reads them, and no other writer is at work.
    pub unsafe fn from_ptr(page: NonNull<u8>) -> Writer<'p> {
        // SAFETY: the caller promises that the memory is there for 'p and aligned; a page is valid in any bit pattern.
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
        fence(Ordering::Release);
        self.store64(&header.magic, MAGIC);
    }

    /// Publishes an anchor for REALTIME, MONOTONIC, BOOTTIME and TAI; `counter` reads the counter, ordered.
    pub fn publish_hres(&self, anchor: &Anchor, counter: impl Fn() -> u64) -> Result<(), PublishError> {
        publish_all([self], Some(anchor), None, 0, counter)
    }

    /// Publishes an anchor for MONOTONIC_RAW; `counter` reads the counter, ordered.
    pub fn publish_raw(&self, anchor: &Anchor, counter: impl Fn() -> u64) -> Result<(), PublishError> {
        publish_all([self], None, Some(anchor), 0, counter)
    }

    /// Takes all clocks off the page: from now on readers ask the kernel. `reason` is for `status`.
    pub fn withdraw(&self, reason: u32) {
        for which in [Which::Hres, Which::Raw] {
            let latch = self.latch(which);
            self.repair(latch);
            // Copies in the latch are used by whoever began before; each is either whole or turned away by seq.
            let seq = self.turn_away(latch);
            self.store32(&latch.copy[1].clocks, 0);
            self.store_seq(latch, seq + 1);
            fence(Ordering::Release);
            self.store32(&latch.copy[0].clocks, 0);
            self.store_seq(latch, next_even(seq));
        }
        self.store32(&self.page.stats.withdrawn_reason, reason);
    }

    /// Writes the statistics. A reader may see some of them newer than others.
    pub fn set_stats(&self, stats: &Stats) {
        let cell = &self.page.stats;
        self.store64(&cell.refreshes, stats.refreshes);
        self.store64(&cell.residual_ns, stats.residual_ns as u64);
        self.store32(&cell.publisher_pid, stats.publisher_pid);
        self.store32(&cell.withdrawn_reason, stats.withdrawn_reason);
    }

    /// The anchor in force for REALTIME, MONOTONIC, BOOTTIME and TAI, for a publisher that takes over a page.
    pub fn hres(&self) -> Option<Anchor> {
        self.in_force(Which::Hres)
    }

    /// The anchor in force for MONOTONIC_RAW, for a publisher that takes over a page.
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
            self.store_anchor(&latch.copy[0], &load(&latch.copy[1]));
            self.store_seq(latch, next_even(seq - 1));
        }
    }

    /// Makes every reader that began before now begin again, and gives the new, even seq.
    ///
    /// Until seq is odd nobody uses `copy[1]` after this: the counter is past `copy[0]`'s base.
    fn turn_away(&self, latch: &Latch) -> u32 {
        let seq = next_even(latch.copy[0].seq.load(Ordering::Relaxed));
        self.store_seq(latch, seq);
        // Whoever sees a store to copy[1] below sees this seq (or a later one) at the recheck.
        fence(Ordering::Release);
        seq
    }

    fn prepare(&self, which: Which, new: &Anchor) {
        let latch = self.latch(which);
        let mut old = load(&latch.copy[0]);
        let lead_cycles = new.base_cycles.wrapping_sub(old.base_cycles);
        // The old anchor answers before the new base only.
        match (lead_cycles as i64).checked_sub(1) {
            Some(last) if last >= 0 => {
                old.cap_cycles = old.cap_cycles.min(u32::try_from(last).unwrap_or(u32::MAX));
            }
            _ => old.clocks = ClockSet::NONE,
        }
        let seq = self.turn_away(latch);
        self.store_anchor(&latch.copy[1], &old);
        self.store_seq(latch, seq + 1);
    }

    fn commit(&self, which: Which, new: &Anchor) {
        let latch = self.latch(which);
        // The fence before the counter was read orders these stores after the odd seq: see `publish_all`.
        self.store_anchor(&latch.copy[0], new);
        self.finish(latch);
    }

    fn finish(&self, latch: &Latch) {
        let odd = latch.copy[0].seq.load(Ordering::Relaxed);
        self.store_seq(latch, next_even(odd - 1));
    }

    fn store_anchor(&self, cell: &AnchorCell, anchor: &Anchor) {
        self.store32(&cell.clocks, anchor.clocks.0);
        self.store64(&cell.base_cycles, anchor.base_cycles);
        self.store32(&cell.mult, anchor.rate.mult);
        self.store32(&cell.shift, anchor.rate.shift);
        self.store32(&cell.cap_cycles, anchor.cap_cycles);
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

    /// Whether the next store still happens.
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

/// Publishes to several pages at once: all of them change to the new anchors at the same value of the counter, or none does.
///
/// `spare_cycles` must be left before the new base when all readers have been told. A reader's recheck of seq may be executed
/// before its counter read has finished (RDTSCP does not hold back later loads, Intel SDM volume 2), by as far as a CPU looks
/// ahead: some 500 instructions, well below a microsecond. A reader that misses the new seq so closely must still read its
/// counter before the new base.
///
/// `counter` reads the counter, ordered. For a page that already answers, the anchor's base must lie a little in the future,
/// after the base of the anchor in force; for one that does not answer yet (or no more), it may lie in the past.
pub fn publish_all<'w, 'p: 'w>(
    writers: impl IntoIterator<Item = &'w Writer<'p>, IntoIter: Clone>,
    hres: Option<&Anchor>,
    raw: Option<&Anchor>,
    spare_cycles: u64,
    counter: impl Fn() -> u64,
) -> Result<(), PublishError> {
    let writers = writers.into_iter();
    let latches = || {
        writers.clone().flat_map(move |writer| {
            [
                hres.map(|anchor| (writer, Which::Hres, anchor)),
                raw.map(|anchor| (writer, Which::Raw, anchor)),
            ]
            .into_iter()
            .flatten()
        })
    };

    let begun = counter();
    for (writer, which, anchor) in latches() {
        if !anchor.is_within_limits() {
            return Err(PublishError::OutOfLimits(*anchor));
        }
        writer.repair(writer.latch(which));
        if let Some(old) = writer.in_force(which)
            && (begun.wrapping_sub(old.base_cycles) as i64) < 0
        {
            return Err(PublishError::TooEarly {
                counter: begun,
                base_cycles: old.base_cycles,
            });
        }
    }

    for (writer, which, anchor) in latches() {
        writer.prepare(which, anchor);
    }
    // The odd seqs are visible everywhere before the counter is read: a reader whose counter is past `told` finds seq changed.
    // And whoever sees a store to copy[0] by `commit` sees an odd seq (or a later one) at the recheck.
    fence(Ordering::SeqCst);
    let told = counter();

    let late = latches().find(|(writer, which, anchor)| {
        let old = load(&writer.latch(*which).copy[0]);
        (told.wrapping_add(spare_cycles).wrapping_sub(anchor.base_cycles) as i64) >= 0
            && old.may_answer_from(anchor.base_cycles)
    });
    if let Some((_, _, anchor)) = late {
        for (writer, which, _) in latches() {
            writer.finish(writer.latch(which));
        }
        return Err(PublishError::TooLate {
            counter: told,
            base_cycles: anchor.base_cycles,
        });
    }
    for (writer, which, anchor) in latches() {
        writer.commit(which, anchor);
    }
    Ok(())
}

/// The even seq after an even one. 0 means "never seeded" and is skipped when the count wraps.
fn next_even(seq: u32) -> u32 {
    match seq.wrapping_add(2) {
        0 => 2,
        next => next,
    }
}

/// An anchor as the writer itself stored it.
fn load(cell: &AnchorCell) -> Anchor {
    let mut base = [Base::default(); BASES];
    for (base, cell) in base.iter_mut().zip(&cell.base) {
        base.sec = cell.sec.load(Ordering::Relaxed);
        base.nsec_shifted = cell.nsec_shifted.load(Ordering::Relaxed);
    }
    Anchor {
        clocks: ClockSet(cell.clocks.load(Ordering::Relaxed)),
        base_cycles: cell.base_cycles.load(Ordering::Relaxed),
        rate: Rate {
            mult: cell.mult.load(Ordering::Relaxed),
            shift: cell.shift.load(Ordering::Relaxed),
        },
        cap_cycles: cell.cap_cycles.load(Ordering::Relaxed),
        base,
    }
}
