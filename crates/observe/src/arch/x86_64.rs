//! The time stamp counter.

use fastpath_image::CpuFeatures;
use std::arch::x86_64::{__rdtscp, _mm_lfence, _rdtsc};
use std::hint::black_box;
use std::sync::OnceLock;

/// As the image reads it: `rdtscp` where the CPU has it.
#[inline(never)]
pub fn repeat(reads: u32) {
    if !has_rdtscp() {
        for _ in 0..reads {
            // SAFETY: both instructions exist on every x86-64 CPU and touch no memory. `rdtsc` faults only where the process asked
            // for that (PR_SET_TSC), which `counter::usable` finds out before anything here is called.
            black_box(unsafe {
                _mm_lfence();
                _rdtsc()
            });
        }
        return;
    }
    let mut cpu = 0;
    for _ in 0..reads {
        // SAFETY: the CPU has the instruction, which writes the CPU's number to the reference given. On faults, as above.
        black_box(unsafe { __rdtscp(&mut cpu) });
    }
}

/// The instructions of an ordered read on this CPU.
pub fn counter_name() -> &'static str {
    if has_rdtscp() { "rdtscp" } else { "lfence; rdtsc" }
}

fn has_rdtscp() -> bool {
    // Asked once: under a hypervisor CPUID traps, and takes a thousand times as long as what is measured here.
    static HAS_RDTSCP: OnceLock<bool> = OnceLock::new();
    *HAS_RDTSCP.get_or_init(|| CpuFeatures::of_this_cpu().rdtscp)
}
