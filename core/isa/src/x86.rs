//! What x86-64 and i386 share: the counter, and the instructions around it.

use crate::bytes::{put_u32, u32_at};
use crate::facts::exactly;
use crate::{Counter, CpuFeatures};

/// The TSC: Intel SDM volume 2, RDTSC; AMD APM volume 3, RDTSC. `core/image/vdso/x86/counter.h` has the reasons for the order of
/// the read.
pub(crate) const COUNTER: Counter = Counter {
    // x86 never reorders a load with another load (Intel SDM 3A, 9.2.2; AMD APM 2, 7.2): only the compiler must not.
    load_barrier: "",
    // lfence; rdtsc
    read: &exactly([0x0f, 0xae, 0xe8, 0x0f, 0x31]),
    trapped: None,
    invariant_source: "CPUID 8000_0007H, EDX bit 8",
    not_invariant: "the CPU does not state an invariant TSC (CPUID 8000_0007H, EDX bit 8)",
};

/// Adds to the displacement of an LEA.
pub(crate) fn move_page_reference(image: &mut [u8], at: usize, by: i64) {
    let distance = u32_at(image, at).wrapping_add(by as u32);
    put_u32(image, at, distance);
}

/// Writes `rdtscp` and a no-op of two bytes, in place of `lfence; rdtsc`, unless that is the better one.
pub(crate) fn improve_counter_read(image: &mut [u8], at: usize, cpu: CpuFeatures) {
    const RDTSCP: [u8; 5] = [0x0f, 0x01, 0xf9, 0x66, 0x90];
    if cpu.reads_by_rdtscp() {
        image[at..at + RDTSCP.len()].copy_from_slice(&RDTSCP);
    }
}

/// Decodes `jmp rel32`, first or behind `endbr64` or `endbr32`.
pub(crate) fn jump_target(code: &[u8], address: u64) -> Option<u64> {
    const PADS: [[u8; 4]; 2] = [[0xf3, 0x0f, 0x1e, 0xfa], [0xf3, 0x0f, 0x1e, 0xfb]];
    let skipped = if PADS.iter().any(|pad| code.starts_with(pad)) {
        4
    } else {
        0
    };
    let (0xe9, distance) = code.get(skipped..skipped + 5)?.split_first()? else {
        return None;
    };
    let distance = i32::from_le_bytes(distance.try_into().ok()?);
    Some((address + skipped as u64 + 5).wrapping_add_signed(distance.into()))
}

/// Code for this CPU.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
pub(crate) mod cpu {
    #[cfg(target_arch = "x86")]
    use core::arch::x86::{__cpuid, __rdtscp, _mm_lfence, _rdtsc};
    #[cfg(target_arch = "x86_64")]
    use core::arch::x86_64::{__cpuid, __rdtscp, _mm_lfence, _rdtsc};
    use std::hint::black_box;
    use std::sync::OnceLock;

    use crate::CpuFeatures;

    /// Reads the counter: after all that precedes it in the program, before all that follows it.
    #[inline]
    pub fn read_counter() -> u64 {
        // SAFETY: both instructions exist on every x86-64 CPU, and LFENCE, part of SSE2, on every one that Rust's i686
        // runs on. Where the counter may not be read (PR_SET_TSC), the caller does not get here: the verdict on the
        // counter has refused.
        unsafe {
            _mm_lfence();
            let counter = _rdtsc();
            _mm_lfence();
            counter
        }
    }

    /// Reads the counter, as [`read_counter`] does, and the number of the CPU that it belongs to, in one instruction;
    /// `None` if the CPU has no RDTSCP. Linux stores (node << 12) | cpu in IA32_TSC_AUX
    /// (arch/x86/kernel/cpu/common.c); other kernels may not.
    #[inline]
    pub fn read_counter_and_cpu() -> Option<(u64, usize)> {
        if !features().rdtscp {
            return None;
        }
        let mut aux = 0;
        // SAFETY: the CPU has the instruction, which stores to the given variable; otherwise as in `read_counter`.
        unsafe {
            let counter = __rdtscp(&mut aux);
            _mm_lfence();
            Some((counter, (aux & 0xfff) as usize))
        }
    }

    /// Makes every earlier store visible to all CPUs before a counter read after it.
    ///
    /// Nothing is left to do after a fence of the memory model, which is MFENCE or a locked instruction: `read_counter`
    /// begins with LFENCE, which waits until earlier instructions are done, and a fence is done when earlier stores are
    /// visible (Intel SDM volume 2, MFENCE, LFENCE; AMD APM volume 3). RDTSCP waits in the same way.
    pub fn complete_stores() {}

    /// Makes so many ordered reads, one after the other, by the instructions that the image uses on this CPU.
    #[inline(never)]
    pub fn repeat_image_reads(reads: u32) {
        if features().reads_by_rdtscp() {
            repeat_rdtscp(reads);
        } else {
            repeat_fenced(reads);
        }
    }

    #[inline(always)]
    fn repeat_fenced(reads: u32) {
        for _ in 0..reads {
            // SAFETY: as in `read_counter`.
            black_box(unsafe {
                _mm_lfence();
                _rdtsc()
            });
        }
    }

    /// The CPU must have RDTSCP.
    #[inline(always)]
    fn repeat_rdtscp(reads: u32) {
        let mut cpu = 0;
        for _ in 0..reads {
            // SAFETY: the CPU has the instruction, which stores the CPU's number in the given variable; otherwise as in
            // `read_counter`.
            black_box(unsafe { __rdtscp(&mut cpu) });
        }
    }

    /// Returns the instructions of the image's ordered read on this CPU.
    pub fn image_read() -> &'static str {
        if features().reads_by_rdtscp() {
            "rdtscp"
        } else {
            "lfence; rdtsc"
        }
    }

    static FENCE: OnceLock<bool> = OnceLock::new();

    /// Chooses the image's ordered read for the rest of this process: `lfence; rdtsc` where LFENCE orders RDTSC, and where
    /// that takes less time than RDTSCP by more than a twentieth, so that the choice is stable. Takes some 10 µs the
    /// first time. This process must be permitted to read the counter.
    pub fn choose_read() {
        FENCE.get_or_init(|| features().rdtscp && lfence_orders_rdtsc() && fence_takes_less());
    }

    /// Compares the least that some reads took in either way. The CPU must have RDTSCP.
    fn fence_takes_less() -> bool {
        const ROUNDS: u32 = 24;
        const READS: u32 = 8;
        let (mut fenced, mut rdtscp) = (u64::MAX, u64::MAX);
        for _ in 0..ROUNDS {
            let began = read_counter();
            repeat_fenced(READS);
            let between = read_counter();
            repeat_rdtscp(READS);
            let end = read_counter();
            fenced = fenced.min(between.wrapping_sub(began));
            rdtscp = rdtscp.min(end.wrapping_sub(between));
        }
        fenced < rdtscp - rdtscp / 20
    }

    /// Returns whether LFENCE waits until all earlier instructions are executed: on Intel's CPUs always (Intel SDM volume
    /// 2, LFENCE and RDTSC); on AMD's where the CPU says so (AMD APM volume 3, CPUID Fn8000_0021_EAX bit 2,
    /// LfenceAlwaysSerializing). A kernel can make others wait by a bit in an MSR, which no program can read.
    fn lfence_orders_rdtsc() -> bool {
        const MORE_FEATURES: u32 = 0x8000_0021;
        const ALWAYS_SERIALIZING: u32 = 1 << 2;
        let vendor = __cpuid(0);
        match [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).each_ref() {
            [b"Genu", b"ineI", b"ntel"] => true,
            [b"Auth", b"enti", b"cAMD"] | [b"Hygo", b"nGen", b"uine"] => {
                __cpuid(0x8000_0000).eax >= MORE_FEATURES && __cpuid(MORE_FEATURES).eax & ALWAYS_SERIALIZING != 0
            }
            _ => false,
        }
    }

    /// Returns whether the CPU states that it has the counter (Intel SDM volume 2, CPUID, leaf 1, EDX bit 4).
    pub fn has_counter() -> bool {
        const TSC: u32 = 1 << 4;
        __cpuid(1).edx & TSC != 0
    }

    /// Returns whether the CPU states that the counter ticks at one rate in all power states (Intel SDM 18.17.1).
    pub fn is_counter_invariant() -> bool {
        const POWER_MANAGEMENT: u32 = 0x8000_0007;
        const INVARIANT_TSC: u32 = 1 << 8;
        let highest = __cpuid(0x8000_0000).eax;
        highest >= POWER_MANAGEMENT && __cpuid(POWER_MANAGEMENT).edx & INVARIANT_TSC != 0
    }

    /// Returns the signature of the hypervisor that states that it makes this CPU (leaf 1, ECX bit 31, which is 0 on every
    /// physical CPU; a hypervisor's own leaves begin at 4000_0000H).
    pub fn hypervisor() -> Option<[u8; 12]> {
        const HYPERVISOR: u32 = 1 << 31;
        if __cpuid(1).ecx & HYPERVISOR == 0 {
            return None;
        }
        let leaf = __cpuid(0x4000_0000);
        let mut signature = [0; 12];
        for (bytes, register) in signature.chunks_exact_mut(4).zip([leaf.ebx, leaf.ecx, leaf.edx]) {
            bytes.copy_from_slice(&register.to_le_bytes());
        }
        Some(signature)
    }

    /// Returns whether the CPU has RDTSCP (leaf 8000_0001H, EDX bit 27), and what [`choose_read`] has chosen.
    pub fn features() -> CpuFeatures {
        const EXTENDED_FEATURES: u32 = 0x8000_0001;
        const RDTSCP: u32 = 1 << 27;
        // Under a hypervisor, CPUID traps and takes a thousand times as long as a read of the counter.
        static HAS_RDTSCP: OnceLock<bool> = OnceLock::new();
        let has_rdtscp = HAS_RDTSCP.get_or_init(|| {
            let highest = __cpuid(0x8000_0000).eax;
            highest >= EXTENDED_FEATURES && __cpuid(EXTENDED_FEATURES).edx & RDTSCP != 0
        });
        CpuFeatures {
            rdtscp: *has_rdtscp,
            fence: FENCE.get().is_some_and(|is_chosen| *is_chosen),
            cntvctss: false,
        }
    }
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
