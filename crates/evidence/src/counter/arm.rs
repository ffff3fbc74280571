//! The virtual counter of the generic timer, by coprocessor 15: Arm ARM (DDI 0406) B8, "The Generic Timer".

use core::arch::asm;

use serde::Serialize;

/// Reads the counter: after all that precedes it in the program, before all that follows it.
#[inline]
pub fn read() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: where the counter is missing or may not be read, the verdict on it has refused before this is called. No
    // `nomem`: accesses stay on their side.
    unsafe {
        asm!("isb", "mrrc p15, 1, {low}, {high}, c14", "isb", low = out(reg) low, high = out(reg) high,
            options(nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// The CPU's statement about the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Features {
    /// There is a generic timer, and the kernel runs it: then the architecture requires that it ticks at one rate, and
    /// user space may read it. A CPU without one raises an exception at the read, so it must not be tried.
    pub invariant: bool,
}

impl Features {
    /// Where the CPU states whether the counter has one rate.
    pub const INVARIANT_SOURCE: &str = "the auxiliary vector, HWCAP_EVTSTRM";

    /// Returns the features of this CPU.
    pub fn of_this_cpu() -> Features {
        // HWCAP_EVTSTRM, arch/arm/include/uapi/asm/hwcap.h: the kernel has set up the timer's event stream.
        const HWCAP_EVTSTRM: libc::c_ulong = 1 << 21;
        // SAFETY: getauxval only reads the auxiliary vector.
        let hwcap = unsafe { libc::getauxval(libc::AT_HWCAP) };
        Features {
            invariant: hwcap & HWCAP_EVTSTRM != 0,
        }
    }
}
