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

/// `jmp rel32`, first or behind `endbr64`.
pub fn jump_target(code: &[u8], at: u64) -> Option<u64> {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let skipped = if code.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    let (0xe9, distance) = code.get(skipped..skipped + 5)?.split_first()? else {
        return None;
    };
    let distance = i32::from_le_bytes(distance.try_into().ok()?);
    Some((at + skipped as u64 + 5).wrapping_add_signed(distance.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_is_followed_behind_a_landing_pad_too() {
        let jump = [0xe9, 0xfb, 0xff, 0xff, 0xff];
        assert_eq!(jump_target(&jump, 0x1000), Some(0x1000));
        let padded = [&[0xf3, 0x0f, 0x1e, 0xfa][..], &jump].concat();
        assert_eq!(jump_target(&padded, 0x1000), Some(0x1004));
        assert_eq!(jump_target(&[0x55; 16], 0x1000), None);
        assert_eq!(jump_target(&[0xe9], 0x1000), None);
    }
}
