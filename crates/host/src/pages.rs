//! Where a refresher publishes.

use fastpath_page::writer::{PublishError, Stats, Watch, Withdrawal, Writer, publish_all};
use fastpath_page::{Anchor, ClockSet};

/// One page, or many that change from anchor to anchor at the same value of the counter. Nobody else writes them.
pub trait Pages {
    /// Whether something is in force that another publisher left.
    fn are_in_force(&self) -> bool;
    /// Makes the change to new anchors: see [`fastpath_page::publish_changes`]. `is_behind_kernel` is about `hres`.
    fn publish(
        &mut self,
        hres: &Anchor,
        raw: Option<&Anchor>,
        spare_cycles: u64,
        counter: impl Fn() -> u64,
        is_behind_kernel: impl Fn() -> bool,
    ) -> Result<(), PublishError>;
    /// How long it took, when it was last tried, until all readers had been told: a new anchor begins later by that.
    fn telling_cycles(&self) -> u64 {
        0
    }
    /// Takes all clocks off: see [`Writer::withdraw`].
    fn withdraw(&mut self, reason: u32, counter: impl Fn() -> u64);
    /// Takes some clocks off, because they were set: see [`Writer::forget`].
    fn forget(&mut self, clocks: ClockSet);
    /// Adds to the history.
    fn note_withdrawal(&mut self, withdrawal: &Withdrawal);
    /// Writes the statistics.
    fn set_stats(&mut self, stats: &Stats);
    /// Says what is known of the CPUs' counters.
    fn set_watch(&mut self, watch: &Watch);
}

/// A page by itself.
pub trait OnePage {
    /// The one who writes it.
    fn writer(&self) -> Writer<'_>;
}

impl OnePage for Writer<'_> {
    fn writer(&self) -> Writer<'_> {
        Writer::new(self.page())
    }
}

impl<P: OnePage> Pages for P {
    fn are_in_force(&self) -> bool {
        let writer = self.writer();
        writer.hres().is_some() || writer.raw().is_some()
    }

    fn publish(
        &mut self,
        hres: &Anchor,
        raw: Option<&Anchor>,
        spare_cycles: u64,
        counter: impl Fn() -> u64,
        is_behind_kernel: impl Fn() -> bool,
    ) -> Result<(), PublishError> {
        publish_all(
            [&self.writer()],
            Some(hres),
            raw,
            spare_cycles,
            counter,
            is_behind_kernel,
        )
    }

    fn withdraw(&mut self, reason: u32, counter: impl Fn() -> u64) {
        self.writer().withdraw(reason, counter);
    }

    fn forget(&mut self, clocks: ClockSet) {
        self.writer().forget(clocks);
    }

    fn note_withdrawal(&mut self, withdrawal: &Withdrawal) {
        self.writer().note_withdrawal(withdrawal);
    }

    fn set_stats(&mut self, stats: &Stats) {
        self.writer().set_stats(stats);
    }

    fn set_watch(&mut self, watch: &Watch) {
        self.writer().set_watch(watch);
    }
}
