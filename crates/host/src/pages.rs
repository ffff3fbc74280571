//! Where a refresher publishes.

use fastpath_page::Anchor;
use fastpath_page::writer::{PublishError, Stats, Watch, Withdrawal, Writer, publish_all};

/// One page, or many that change from anchor to anchor at the same value of the counter. Nobody else writes them.
pub trait Pages {
    /// Whether something is in force that another publisher left.
    fn are_in_force(&self) -> bool;
    /// Makes the change to new anchors: see [`fastpath_page::publish_changes`].
    fn publish(
        &mut self,
        hres: &Anchor,
        raw: Option<&Anchor>,
        spare_cycles: u64,
        counter: impl Fn() -> u64,
    ) -> Result<(), PublishError>;
    /// How long it took, when it was last tried, until all readers had been told: a new anchor begins later by that.
    fn telling_cycles(&self) -> u64 {
        0
    }
    /// Takes all clocks off.
    fn withdraw(&mut self, reason: u32);
    /// Adds to the history.
    fn note_withdrawal(&mut self, withdrawal: &Withdrawal);
    /// Writes the statistics.
    fn set_stats(&mut self, stats: &Stats);
    /// Says what is known of the CPUs' counters.
    fn set_watch(&mut self, watch: &Watch);
}

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
    ) -> Result<(), PublishError> {
        publish_all([&*self], Some(hres), raw, spare_cycles, counter)
    }

    fn withdraw(&mut self, reason: u32) {
        Writer::withdraw(self, reason);
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
