//! What a page says for as long as it lives, as this host's kernel has it.

pub use fastpath_page::Init;

/// For guests that are processes of this very kernel, and see what it sees.
pub fn of_this_host() -> Init {
    Init {
        hres_res_ns: resolution_ns(libc::CLOCK_MONOTONIC),
        coarse_res_ns: resolution_ns(libc::CLOCK_MONOTONIC_COARSE),
        flags: cpu_flags(),
        ..Init::default()
    }
}

/// clock_getres(2) as the kernel answers it here; 0 if it has no answer that the page can hold.
fn resolution_ns(clock: libc::clockid_t) -> u32 {
    let mut resolution = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid timespec.
    match unsafe { libc::clock_getres(clock, &mut resolution) } {
        0 if resolution.tv_sec == 0 => u32::try_from(resolution.tv_nsec).unwrap_or(0),
        _ => 0,
    }
}

/// Whether the per-CPU segment says where this thread runs, as the kernel sets it up (arch/x86/kernel/cpu/common.c,
/// setup_getcpu): compared with getcpu(2) on the CPU that we happen to be on.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
fn cpu_flags() -> u32 {
    /// arch/x86/include/asm/segment.h: __CPUNODE_SEG
    const CPUNODE_SEG: u32 = 0x7b;
    // Moved to another CPU in between each time, it is not worth knowing.
    for _ in 0..5 {
        let (mut cpu, mut node) = (0u32, 0u32);
        let segment = |limit: &mut u32| -> bool {
            let valid: u8;
            // SAFETY: LSL only reads a descriptor; for a selector that is not valid it clears ZF.
            unsafe {
                std::arch::asm!("lsl {limit:e}, {selector:e}", "setz {valid}", limit = inout(reg) *limit,
                    selector = in(reg) CPUNODE_SEG, valid = out(reg_byte) valid, options(nomem, nostack));
            }
            valid == 1
        };
        let (mut before, mut after) = (0, 0);
        let valid = segment(&mut before);
        // SAFETY: getcpu stores two ints.
        let asked = unsafe { libc::syscall(libc::SYS_getcpu, &mut cpu, &mut node, 0) } == 0;
        if !valid || !segment(&mut after) || !asked {
            return 0;
        }
        if before == after {
            // arch/x86/include/asm/segment.h: VDSO_CPUNODE_BITS
            return if before & 0xfff == cpu && before >> 12 == node {
                fastpath_page::layout::FLAG_CPU_SEGMENT
            } else {
                0
            };
        }
    }
    0
}

/// Elsewhere nobody but the kernel knows.
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
fn cpu_flags() -> u32 {
    0
}
