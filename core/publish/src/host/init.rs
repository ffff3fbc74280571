//! Constants of a page's lifetime, from this host's kernel.

pub use fastpath_page::Init;

/// Returns the constants for guests that are processes of this kernel, and see the same CPUs.
pub fn of_this_host() -> Init {
    super::sample::look_whether_served();
    Init {
        hres_res_ns: resolution_ns(libc::CLOCK_MONOTONIC),
        coarse_res_ns: resolution_ns(libc::CLOCK_MONOTONIC_COARSE),
        flags: cpu_flags(),
        ..Init::default()
    }
}

/// Returns clock_getres(2) of this kernel; 0 if the page cannot hold its answer.
fn resolution_ns(clock: libc::clockid_t) -> u32 {
    let mut resolution = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `resolution` is valid for the write.
    match unsafe { libc::clock_getres(clock, &mut resolution) } {
        0 if resolution.tv_sec == 0 => u32::try_from(resolution.tv_nsec).unwrap_or(0),
        _ => 0,
    }
}

/// Returns whether the per-CPU segment holds the CPU and node of this thread, as the kernel sets it up
/// (arch/x86/kernel/cpu/common.c, setup_getcpu): compared with getcpu(2) on the current CPU.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
fn cpu_flags() -> u32 {
    /// `__CPUNODE_SEG` of arch/x86/include/asm/segment.h.
    const CPUNODE_SEG: u32 = 0x7b;
    // If the thread migrates between the two each time, the page has no CPU number.
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
            // `VDSO_CPUNODE_BITS` of arch/x86/include/asm/segment.h.
            return if before & 0xfff == cpu && before >> 12 == node {
                fastpath_page::layout::FLAG_CPU_SEGMENT
            } else {
                0
            };
        }
    }
    0
}

/// Returns no flags: on other ISAs only the kernel knows the CPU.
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
fn cpu_flags() -> u32 {
    0
}
