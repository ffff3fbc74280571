//! The virtual counter of the generic timer, by coprocessor 15: Arm ARM (DDI 0406) B8, "The Generic Timer".

use core::arch::asm;

use serde::Serialize;

/// Reads the counter: after all that comes before it in the program, before all that comes after it.
#[inline]
pub fn read() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: where the counter is missing or may not be read, the verdict on it has refused before anybody comes here. No `nomem`:
    // accesses stay on their side.
    unsafe {
        asm!("isb", "mrrc p15, 1, {low}, {high}, c14", "isb", low = out(reg) low, high = out(reg) high,
            options(nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// What the CPU says of the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Features {
    /// There is a generic timer, and the kernel runs it: then it ticks at one rate, as the architecture has it, and user space may
    /// read it. A CPU without one raises an exception instead, so it must not be tried.
    pub invariant: bool,
}

impl Features {
    /// Where the CPU promises one rate, or does not.
    pub const INVARIANT_SOURCE: &str = "the auxiliary vector, HWCAP_EVTSTRM";

    /// Of this CPU.
    pub fn of_this_cpu() -> Features {
        // HWCAP_EVTSTRM, arch/arm/include/uapi/asm/hwcap.h: the kernel has set up the timer's event stream.
        const HWCAP_EVTSTRM: libc::c_ulong = 1 << 21;
        // SAFETY: getauxval only looks at what the kernel left on the stack.
        let hwcap = unsafe { libc::getauxval(libc::AT_HWCAP) };
        Features {
            invariant: hwcap & HWCAP_EVTSTRM != 0,
        }
    }
}
