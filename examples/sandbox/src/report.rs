//! Counters of the sandbox.

use std::fmt;

/// Counters, updated as the guest runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// System calls that stopped.
    pub calls: u64,
    /// Calls that were refused.
    pub refused: u64,
    /// Calls by which the guest read a clock or asked about one.
    pub clock_calls: u64,
    /// Those of them that the image made because the page had no answer.
    pub from_image: u64,
    /// Samples taken after a clock call because the page had no anchor ...
    pub seeds: u64,
    /// ... or one that was too old.
    pub refreshes: u64,
    /// System call instructions that were led to the image.
    pub led: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "sandbox: {} system calls stopped, {} refused; {} about clocks, {} of them from the image, which led to {} seeds and \
             {} refreshes; {} call sites led to the image",
            self.calls, self.refused, self.clock_calls, self.from_image, self.seeds, self.refreshes, self.led
        )
    }
}
