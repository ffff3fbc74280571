//! The CPU's counter, read in order, and the CPU's statement about it. The instructions are in `fastpath-isa`.

use fastpath_isa::{CpuFeatures, Isa, cpu};
use fastpath_page::Page;
use fastpath_page::layout::FLAG_OFFSETS;

use crate::offsets::table::{self, read_less};

/// Reads this CPU's own counter: after all that precedes it in the program, before all that follows it.
pub use fastpath_isa::cpu::read_counter as read_raw;

/// Reads the counter, ordered in the same way: in a publisher whose CPUs' counters differ, in the counts that all of its
/// anchors are in ([`crate::offsets::in_force`]).
#[inline]
pub fn read() -> u64 {
    match table::in_force() {
        None => read_raw(),
        Some(offsets) => table::read(offsets),
    }
}

/// Returns a function that reads the counter in the counts of a page's anchors, whichever process publishes them.
pub fn of_page(page: &Page) -> impl Fn() -> u64 {
    let offsets = page.header.flags.load(std::sync::atomic::Ordering::Relaxed) & FLAG_OFFSETS != 0;
    let offsets = offsets.then_some(&page.offsets);
    move || match offsets {
        None => read(),
        // A CPU without an offset is before all anchors.
        Some(offsets) => read_less(|cpu| offsets.get(cpu)).unwrap_or(0),
    }
}

/// The CPU's statement about the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Features {
    /// Whether there is a counter at all by the CPU's statement (x86: leaf 1, EDX bit 4).
    #[serde(default = "yes")]
    pub exists: bool,
    /// Whether it ticks at one rate in all power states.
    pub invariant: bool,
    /// Whether the CPU has RDTSCP (leaf 8000_0001H, EDX bit 27).
    #[serde(default)]
    pub rdtscp: bool,
    /// Whether a hypervisor makes the CPU (leaf 1, ECX bit 31): the statements are then the hypervisor's.
    #[serde(default)]
    pub virtual_cpu: bool,
    /// Whether the CPU has CNTVCTSS_EL0, which needs no barrier (FEAT_ECV, shown as HWCAP2_ECV).
    #[serde(default)]
    pub cntvctss: bool,
}

/// Evidence of earlier releases does not contain it.
fn yes() -> bool {
    true
}

impl Features {
    /// Source of the CPU's statement whether the counter has one rate.
    pub const INVARIANT_SOURCE: &str = Isa::HOST.facts().counter.invariant_source;

    /// Returns the features of this CPU.
    pub fn of_this_cpu() -> Features {
        let CpuFeatures { rdtscp, cntvctss, .. } = cpu::features();
        Features {
            exists: cpu::has_counter(),
            invariant: cpu::is_counter_invariant(),
            rdtscp,
            virtual_cpu: cpu::hypervisor().is_some(),
            cntvctss,
        }
    }
}

/// Finds out once which ordered read of this CPU is the cheapest, if this process may read the counter. Instances that are
/// made from then on read by it.
pub fn choose_read() {
    if is_readable() {
        cpu::choose_read();
    }
}

/// Returns whether this process may read the counter: a process can have asked the kernel to fault it (PR_SET_TSC; on
/// Arm from Linux 6.12).
pub fn is_readable() -> bool {
    let mut mode: libc::c_int = 0;
    // A kernel without PR_GET_TSC forbids nothing.
    // SAFETY: PR_GET_TSC stores one int.
    unsafe { libc::prctl(libc::PR_GET_TSC, &mut mode) != 0 || mode == libc::PR_TSC_ENABLE }
}
