//! Whether the counter can be believed.

use std::ffi::{CStr, c_char, c_int};

use fastpath_publish::host::evidence::{Distrust, Evidence, Trust};
use fastpath_publish::host::image::CpuFeatures;

use crate::error::{Error, answer};
use crate::image::{CPU_CNTVCTSS, CPU_FENCE, CPU_RDTSCP};
use crate::plain::{Sized32, give, size_of_32};

/// `FASTPATH_EXAMINE_CPUS`
pub const EXAMINE_CPUS: u32 = 1;
/// `FASTPATH_TRUST_COUNTER`
pub const TRUST_COUNTER: u32 = 2;
/// `FASTPATH_NOT_INVARIANT`
pub const NOT_INVARIANT: u32 = 1;
/// `FASTPATH_NOT_READABLE`
pub const NOT_READABLE: u32 = 2;
/// `FASTPATH_WARP`
pub const WARP: u32 = 3;

/// `FASTPATH_COUNTER_TRAPS`
pub const COUNTER_TRAPS: u32 = 4;
/// `FASTPATH_NOT_COMPARED`
pub const NOT_COMPARED: u32 = 5;

/// `struct fastpath_verdict`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// Size of this struct.
    pub size: u32,
    /// 0, or the reason why the counter is not believed.
    pub distrust: u32,
    /// With `FASTPATH_WARP`, the least distance of two CPUs' counters; otherwise the largest distance that the
    /// comparison could have missed.
    pub warp_cycles: u64,
    /// `FASTPATH_CPU_*` of this CPU.
    pub cpu_features: u32,
    /// CPUs that this process may use.
    pub cpus: u32,
    /// CPUs that took part in the comparison.
    pub cpus_tested: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `#[repr(C)]`, with its size first, and made of integers.
unsafe impl Sized32 for Verdict {}

/// Stores whether the counter can be believed here.
///
/// # Safety
/// `verdict` is NULL or a struct that begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_examine(flags: u32, verdict: *mut Verdict) -> c_int {
    if flags & !(EXAMINE_CPUS | TRUST_COUNTER) != 0 {
        return Error::INVALID.0;
    }
    // SAFETY: the caller guarantees the verdict.
    answer(unsafe { give(verdict, examine(flags)) }.map(|()| 0))
}

fn examine(flags: u32) -> Verdict {
    let mut verdict = Verdict {
        size: size_of_32::<Verdict>(),
        distrust: 0,
        warp_cycles: 0,
        cpu_features: 0,
        cpus: 0,
        cpus_tested: 0,
        reserved: 0,
    };
    let trust = if flags & TRUST_COUNTER != 0 {
        Trust::AllowNonInvariant
    } else {
        Trust::Invariant
    };
    let evidence = if flags & EXAMINE_CPUS != 0 {
        Evidence::of_this_host(trust)
    } else {
        Evidence::at_first_sight()
    };
    let features = CpuFeatures::of_this_cpu();
    let flag = |has: bool, flag: u32| if has { flag } else { 0 };
    verdict.cpu_features =
        flag(features.rdtscp, CPU_RDTSCP) | flag(features.cntvctss, CPU_CNTVCTSS) | flag(features.fence, CPU_FENCE);
    if let Some(warp) = &evidence.warp {
        verdict.cpus = warp.cpus.len() as u32;
        verdict.cpus_tested = (warp.cpus.len() - warp.left_out.len()) as u32;
        verdict.warp_cycles = warp.within_cycles().unwrap_or(0);
    }
    verdict.distrust = match evidence.verdict(trust) {
        Ok(()) => 0,
        Err(Distrust::NotInvariant) => NOT_INVARIANT,
        Err(Distrust::NotReadable | Distrust::NotStated) => NOT_READABLE,
        Err(Distrust::Trapped) => COUNTER_TRAPS,
        // This evidence has no publisher, so no withdrawal either, no rates, and is not about the kernel's clock.
        Err(Distrust::NotCompared | Distrust::Withdrawn { .. } | Distrust::Drift(_) | Distrust::CoarseClock) => {
            NOT_COMPARED
        }
        Err(Distrust::Warp { cycles, .. }) => {
            verdict.warp_cycles = cycles;
            WARP
        }
    };
    verdict
}

/// Returns the description of a verdict.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_distrust_string(distrust: u32) -> *const c_char {
    let text: &'static CStr = match distrust {
        0 => c"the counter is believed",
        NOT_INVARIANT => {
            c"the CPU does not state a counter of one rate (x86: invariant TSC, CPUID 8000_0007H, EDX bit 8)"
        }
        NOT_READABLE => c"this process may not read the counter (x86: prctl PR_GET_TSC)",
        COUNTER_TRAPS => {
            c"reading the counter traps to the kernel, and is no faster than a system call (an erratum of this CPU)"
        }
        WARP => c"the counters of two CPUs disagree",
        NOT_COMPARED => c"the counter is not invariant, and the CPUs' counters could not be compared with each other",
        _ => c"a verdict that this libfastpath does not know",
    };
    text.as_ptr()
}
