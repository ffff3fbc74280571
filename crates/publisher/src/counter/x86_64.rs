//! TSC: Intel SDM volume 2, RDTSC; AMD APM volume 3, RDTSC.

use core::arch::x86_64::{__cpuid, _mm_lfence, _rdtsc};

/// Reads the counter: after all that comes before it in the program, before all that comes after it.
pub fn read() -> u64 {
    // SAFETY: both instructions exist on every x86-64 CPU. Where the counter may not be read (PR_SET_TSC), the verdict on the
    // counter has refused before anybody comes here.
    unsafe {
        _mm_lfence();
        let counter = _rdtsc();
        _mm_lfence();
        counter
    }
}

/// What CPUID says of the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// It ticks at one rate in all power states (Intel SDM 18.17.1; leaf 8000_0007H, EDX bit 8).
    pub invariant: bool,
    /// RDTSCP (leaf 8000_0001H, EDX bit 27).
    pub rdtscp: bool,
}

impl Features {
    /// Of this CPU.
    pub fn of_this_cpu() -> Features {
        let highest = __cpuid(0x8000_0000).eax;
        let edx = |leaf| if highest >= leaf { __cpuid(leaf).edx } else { 0 };
        Features {
            invariant: edx(0x8000_0007) & 1 << 8 != 0,
            rdtscp: edx(0x8000_0001) & 1 << 27 != 0,
        }
    }
}
