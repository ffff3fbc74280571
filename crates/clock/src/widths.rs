//! How wide an undisturbed bracket is here.

use crate::bracket::Bracket;
use crate::recent::Recent;

/// Brackets that are remembered. However busy the host, one of so many is not interrupted; and if its clocks become slow
/// to read for good, the samples that are refused until that is believed, one every few milliseconds, take no long time.
const RECENT: usize = 64;

/// The widths of one clock's recent brackets. Clocks differ: one may be read by the vDSO, the next by a system call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Widths {
    recent: Recent<u64, RECENT>,
}

impl Widths {
    /// Takes a bracket in, and says whether it is as narrow as they are here when nothing interrupts them.
    pub fn see(&mut self, bracket: &Bracket) -> bool {
        self.recent.push(bracket.width_cycles());
        self.is_good(bracket)
    }

    /// Says the same of a bracket that is not taken in.
    pub fn is_good(&self, bracket: &Bracket) -> bool {
        bracket.width_cycles() <= 2 * self.narrowest_cycles() + 2
    }

    /// The narrowest of the recent brackets.
    pub fn narrowest_cycles(&self) -> u64 {
        // Far below u64::MAX, so that small multiples of it are numbers.
        self.recent.iter().copied().min().unwrap_or(0).min(u64::MAX / 8)
    }
}
