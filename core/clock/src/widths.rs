//! The width of an undisturbed bracket on this host.

use crate::bracket::Bracket;
use crate::recent::Recent;

/// Number of brackets that are remembered. However busy the host, one of so many is not interrupted; and if its clocks
/// become permanently slow to read, this many samples, one every few milliseconds, are refused until the new width is
/// accepted.
const RECENT: usize = 64;

/// The widths of one clock's recent brackets. Clocks differ: one may be read by the vDSO, the next by a system call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Widths {
    recent: Recent<u64, RECENT>,
}

impl Widths {
    /// Takes a bracket, and returns whether it is as narrow as an uninterrupted one on this host.
    pub(crate) fn see(&mut self, bracket: &Bracket) -> bool {
        self.recent.push(bracket.width_cycles());
        self.is_good(bracket)
    }

    /// Returns the same for a bracket without taking it.
    pub(crate) fn is_good(&self, bracket: &Bracket) -> bool {
        bracket.width_cycles() <= 2 * self.narrowest_cycles() + 2
    }

    /// Returns the width of the narrowest of the recent brackets.
    pub(crate) fn narrowest_cycles(&self) -> u64 {
        // Bounded far below u64::MAX, so that small multiples of it do not overflow.
        self.recent.iter().copied().min().unwrap_or(0).min(u64::MAX / 8)
    }
}
