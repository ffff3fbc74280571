//! The target of a refresher.

use fastpath_page::writer::{PublishError, Stats, Watch, Withdrawal, Writer, publish_all};
use fastpath_page::{Anchor, ClockSet, Reason};

/// One page, or many that change from anchor to anchor at the same value of the counter. They have no other writer.
pub trait Pages {
    /// Returns whether anchors of another publisher are in force.
    fn are_in_force(&self) -> bool;
    /// Changes to new anchors: see [`fastpath_page::publish_changes`]. `is_behind_kernel` refers to `hres`.
    fn publish(
        &mut self,
        hres: &Anchor,
        raw: Option<&Anchor>,
        spare_cycles: u64,
        counter: impl Fn() -> u64,
        is_behind_kernel: impl Fn() -> bool,
    ) -> Result<(), PublishError>;
    /// Returns the time, in counts, that the last attempt needed to redirect all readers: a new anchor begins later by
    /// that.
    fn telling_cycles(&self) -> u64 {
        0
    }
    /// Withdraws all clocks: see [`Writer::withdraw`].
    fn withdraw(&mut self, reason: Reason, counter: impl Fn() -> u64);
    /// Ends all anchors: see [`Writer::end`].
    fn end(&mut self, counter: impl Fn() -> u64);
    /// Withdraws some clocks, because they were set: see [`Writer::forget`].
    fn forget(&mut self, clocks: ClockSet);
    /// Adds to the page's history.
    fn note_withdrawal(&mut self, withdrawal: &Withdrawal);
    /// Writes the statistics.
    fn set_stats(&mut self, stats: &Stats);
    /// Stores the comparisons of the CPUs' counters.
    fn set_watch(&mut self, watch: &Watch);
}

/// A single page.
impl Pages for Writer<'_> {
    fn are_in_force(&self) -> bool {
        self.hres().is_some() || self.raw().is_some()
    }

    fn publish(
        &mut self,
        hres: &Anchor,
        raw: Option<&Anchor>,
        spare_cycles: u64,
        counter: impl Fn() -> u64,
        is_behind_kernel: impl Fn() -> bool,
    ) -> Result<(), PublishError> {
        publish_all([&*self], Some(hres), raw, spare_cycles, counter, is_behind_kernel)
    }

    fn withdraw(&mut self, reason: Reason, counter: impl Fn() -> u64) {
        Writer::withdraw(self, reason, counter);
    }

    fn end(&mut self, counter: impl Fn() -> u64) {
        Writer::end(self, counter);
    }

    fn forget(&mut self, clocks: ClockSet) {
        Writer::forget(self, clocks);
    }

    fn note_withdrawal(&mut self, withdrawal: &Withdrawal) {
        Writer::note_withdrawal(self, withdrawal);
    }

    fn set_stats(&mut self, stats: &Stats) {
        Writer::set_stats(self, stats);
    }

    fn set_watch(&mut self, watch: &Watch) {
        Writer::set_watch(self, watch);
    }
}
