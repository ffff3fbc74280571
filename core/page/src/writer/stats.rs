//! What a writer stores besides anchors.

use crate::reason::Reason;

/// Constants of a page's lifetime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Init {
    /// `clock_getres` of the clocks with an anchor, in nanoseconds; 0: readers fall back to the kernel.
    pub hres_res_ns: u32,
    /// `clock_getres` of the COARSE clocks, in nanoseconds; 0: readers fall back to the kernel.
    pub coarse_res_ns: u32,
    /// [`crate::layout::FLAG_CPU_SEGMENT`], [`crate::layout::FLAG_ONE_CPU`] or 0.
    pub flags: u32,
    /// The CPU's number, with `FLAG_ONE_CPU`.
    pub cpu: u32,
    /// Its node's number, with `FLAG_ONE_CPU`.
    pub node: u32,
}

/// Statistics for `status` and `probe`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Anchors published since the page was made.
    pub refreshes: u64,
    /// Error against the kernel's clock before the last refresh, in nanoseconds.
    pub residual_ns: i64,
    /// The publisher's process id as it sees itself.
    pub publisher_pid: u32,
    /// Reason why the anchors were withdrawn; `None`: they are in force.
    pub withdrawn_reason: Option<Reason>,
}

/// A withdrawal of anchors from the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withdrawal {
    /// The kernel's CLOCK_BOOTTIME, in nanoseconds.
    pub boottime_ns: u64,
    /// The reason.
    pub reason: Reason,
    /// How far the anchor was ahead of the kernel's MONOTONIC, in nanoseconds; `None`: no reader was served, or the
    /// value could not be measured.
    pub ahead_ns: Option<i64>,
}

/// Comparisons of the CPUs' counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// Comparisons since the publisher started.
    pub warp_tests: u32,
    /// Upper bound of the distance of any two CPUs' counters in the last one.
    pub warp_within_cycles: Option<u64>,
    /// Whether the publisher may use a counter whose rate is not stated to be constant (`--trust-counter`).
    pub allows_non_invariant: bool,
}
