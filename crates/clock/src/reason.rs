//! Reasons to withdraw the anchors and leave the clocks to the kernel.

/// Reason why the anchors in force must be withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u32)]
pub enum Reason {
    /// The kernel's clock advanced and the counter did not, or hardly.
    #[error("the counter stopped while the kernel's clock went on")]
    CounterStopped = 1,
    /// The counter went backwards, or far ahead of the kernel's clock.
    #[error("the counter jumped against the kernel's clock")]
    CounterJumped = 2,
    /// The counter's rate against the kernel's clock changed by more than NTP can explain.
    #[error("the counter's rate against the kernel's clock changed by more than NTP can explain")]
    RateImplausible = 3,
    // 4 belonged to a version that withdrew its anchors when they were far ahead of the kernel's clock.
    /// The machine was suspended, and the counter must be measured anew.
    #[error("the machine was suspended; the counter is being measured anew")]
    Suspended = 5,
    /// The counters of two CPUs disagree.
    #[error("the counters of two CPUs disagree")]
    Warp = 6,
}

impl Reason {
    /// Returns the reason as the page's statistics hold it. Never 0, which means that the anchors are in force.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// Returns the reason of a code, or `None` if this version does not know it.
    pub fn from_code(code: u32) -> Option<Reason> {
        [
            Reason::CounterStopped,
            Reason::CounterJumped,
            Reason::RateImplausible,
            Reason::Suspended,
            Reason::Warp,
        ]
        .into_iter()
        .find(|reason| reason.code() == code)
    }
}
