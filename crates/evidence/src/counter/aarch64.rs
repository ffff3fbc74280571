//! The virtual counter of the generic timer: Arm ARM (DDI 0487) D12, "The Generic Timer in AArch64 state".

use core::arch::asm;

use fastpath_image::CpuFeatures;

/// Reads the counter: after all that precedes it in the program, before all that follows it.
#[inline]
pub fn read() -> u64 {
    let counter: u64;
    // SAFETY: the barriers and the register exist on every AArch64 CPU. Where the counter may not be read (PR_SET_TSC,
    // Linux 6.12), the verdict on the counter has refused before this is called. No `nomem`: accesses stay on their
    // side.
    unsafe {
        asm!("isb", "mrs {}, cntvct_el0", "isb", out(reg) counter, options(nostack, preserves_flags));
    }
    counter
}

/// The CPU's statement about the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct Features {
    /// It ticks at one rate in all power states, as the architecture requires of every counter that firmware has set
    /// up: one whose frequency (CNTFRQ_EL0) is known.
    pub invariant: bool,
    /// CNTVCTSS_EL0, which needs no barrier (FEAT_ECV, shown as HWCAP2_ECV).
    pub cntvctss: bool,
}

impl Features {
    /// Where the CPU states whether the counter has one rate.
    pub const INVARIANT_SOURCE: &str = "CNTFRQ_EL0; Arm ARM D12.1: the system counter";

    /// Returns the features of this CPU.
    pub fn of_this_cpu() -> Features {
        let frequency_hz: u64;
        // SAFETY: Linux lets user space read this constant, or emulates the read where it is trapped
        // (arch/arm64/kernel/traps.c).
        unsafe {
            asm!("mrs {}, cntfrq_el0", out(reg) frequency_hz, options(nomem, nostack, preserves_flags));
        }
        Features {
            invariant: frequency_hz != 0,
            cntvctss: CpuFeatures::of_this_cpu().cntvctss,
        }
    }
}
