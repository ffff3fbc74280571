//! Notices that the kernel's clocks run on another clocksource, which it does not announce.

use fastpath_evidence::clocksource;

/// The clocksource at the last look.
pub(crate) struct ClocksourceWatch {
    last: [u8; 64],
}

impl ClocksourceWatch {
    /// Returns `None` if the kernel's file cannot be read here.
    pub(crate) fn new() -> Option<ClocksourceWatch> {
        Some(ClocksourceWatch { last: clocksource()? })
    }

    /// Returns whether the clocksource is another one than at the last look.
    pub(crate) fn has_changed(&mut self) -> bool {
        let Some(now) = clocksource() else { return false };
        std::mem::replace(&mut self.last, now) != now
    }
}
