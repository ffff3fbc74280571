//! TSC: Intel SDM volume 2, RDTSC; AMD APM volume 3, RDTSC.

#[cfg(target_arch = "x86")]
use core::arch::x86::{__cpuid, _mm_lfence, _rdtsc};
#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::{__cpuid, _mm_lfence, _rdtsc};

use fastpath_image::CpuFeatures;

/// Reads the counter: after all that precedes it in the program, before all that follows it.
#[inline]
pub fn read() -> u64 {
    // SAFETY: both instructions exist on every x86-64 CPU, and LFENCE, part of SSE2, on every one that Rust's i686 runs
    // on. Where the counter may not be read (PR_SET_TSC), the verdict on the counter has refused before this is called.
    unsafe {
        _mm_lfence();
        let counter = _rdtsc();
        _mm_lfence();
        counter
    }
}

/// CPUID's statement about the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct Features {
    /// It ticks at one rate in all power states (Intel SDM 18.17.1; leaf 8000_0007H, EDX bit 8).
    pub invariant: bool,
    /// RDTSCP (leaf 8000_0001H, EDX bit 27).
    pub rdtscp: bool,
}

impl Features {
    /// Where the CPU states whether the counter has one rate.
    pub const INVARIANT_SOURCE: &str = "CPUID 8000_0007H, EDX bit 8";

    /// Returns the features of this CPU.
    pub fn of_this_cpu() -> Features {
        const POWER_MANAGEMENT: u32 = 0x8000_0007;
        const INVARIANT_TSC: u32 = 1 << 8;
        let highest = __cpuid(0x8000_0000).eax;
        Features {
            invariant: highest >= POWER_MANAGEMENT && __cpuid(POWER_MANAGEMENT).edx & INVARIANT_TSC != 0,
            rdtscp: CpuFeatures::of_this_cpu().rdtscp,
        }
    }
}
