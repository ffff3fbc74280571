//! AArch64. Instructions: Arm ARM (DDI 0487) C6.2.

use crate::bytes::{first_u32, put_u32, u32_at};
use crate::calls::{ASM_GENERIC, ASM_GENERIC_ANSWERED};
use crate::{Counter, CpuFeatures, IsaFacts, Property, Unwind, Version};

pub(crate) static FACTS: IsaFacts = IsaFacts {
    name: c"aarch64",
    rust_name: "aarch64",
    is_64: true,
    elf_machine: 183,
    unwind: Unwind::EhFrame,
    calls: ASM_GENERIC,
    answered: Some(ASM_GENERIC_ANSWERED),
    // svc #0
    system_call: &[0x01, 0x00, 0x00, 0xd4],
    prefix: "__kernel_",
    vdso: &[Version {
        name: "LINUX_2.6.39",
        functions: &[
            "__kernel_rt_sigreturn",
            "__kernel_clock_gettime",
            "__kernel_gettimeofday",
            "__kernel_clock_getres",
            "__kernel_getcpu",
            "__kernel_getrandom",
        ],
        weak: &[],
    }],
    forwarded: &["getrandom"],
    counter: COUNTER,
    has_cpu_number: false,
    clang_target: "aarch64-linux-gnu",
    machine_flags: &[],
    // Landing pads at every function, for processes that enforce them. x18 is reserved for the platform, which may be
    // any. x28 is Go's goroutine: its signal handlers take it as it is wherever no function of the kernel's vDSO was
    // interrupted (runtime.sigFetchG). Compilers would call a library's atomics.
    image_flags: &[
        "-mgeneral-regs-only",
        "-mbranch-protection=bti",
        "-ffixed-x18",
        "-ffixed-x28",
        "-mno-outline-atomics",
    ],
    // Kernels are built for pages of 4, 16 or 64 KiB (arch/arm64/Kconfig).
    largest_page: 64 << 10,
    hot_alignment: 64,
    shared_folder: None,
    // ADRP counts 21 bits of pages.
    page_reach: ((1 << 32) - (1 << 16), "it reaches 4 GiB, less 64 KiB, to either side"),
    // `b` reaches 128 megabytes.
    jump_reach: Some(0x7f0_0000),
    // bti c, bti jc
    landing_pads: &[[0x5f, 0x24, 0x03, 0xd5], [0xdf, 0x24, 0x03, 0xd5]],
    property: Some(Property {
        // GNU_PROPERTY_AARCH64_FEATURE_1_AND
        kind: 0xc000_0000,
        features: Property::LANDING_PADS,
        // What a branch goes to must be a landing pad if its own page is guarded: that is the guest's.
        features_for_hosts: Property::LANDING_PADS,
    }),
    move_page_reference,
    improve_counter_read,
    jump_to_slot,
    jump_target,
};

/// The virtual counter of the generic timer: Arm ARM D12, "The Generic Timer in AArch64 state".
/// `core/image/vdso/aarch64/counter.h` has the reasons for the order of the read.
const COUNTER: Counter = Counter {
    // B2.3: orders every load before it, in program order, before every access to memory after it. Unlike a
    // load-acquire, it also orders the caller's own loads from before the call: counter.h needs that.
    load_barrier: "dmb ishld",
    // isb; mrs Xt, CNTVCT_EL0
    read: &[
        (0xdf, 0xff),
        (0x3f, 0xff),
        (0x03, 0xff),
        (0xd5, 0xff),
        (0x40, 0xe0),
        (0xe0, 0xff),
        (0x3b, 0xff),
        (0xd5, 0xff),
    ],
    // The kernel emulates reads on CPUs with an erratum in their counter (drivers/clocksource/arm_arch_timer.c).
    trapped: Some(
        "reading the counter traps to the kernel, and is no faster than a system call (an erratum of this CPU, by /proc/cpuinfo's part)",
    ),
    invariant_source: "CNTFRQ_EL0; Arm ARM D12.1: the system counter",
    not_invariant: "firmware has not set up the counter (its frequency, CNTFRQ_EL0, is 0)",
};

/// Adds to the pages of an ADRP: immhi:immlo.
fn move_page_reference(image: &mut [u8], at: usize, by: i64) {
    const IMMEDIATE: u32 = 0x60ff_ffe0;
    let instruction = u32_at(image, at);
    let pages = (instruction >> 5 & 0x7_ffff) << 2 | instruction >> 29 & 3;
    let pages = pages.wrapping_add((by >> 12) as u32);
    let immediate = (pages >> 2 & 0x7_ffff) << 5 | (pages & 3) << 29;
    put_u32(image, at, instruction & !IMMEDIATE | immediate);
}

/// Writes `nop; mrs Xt, CNTVCTSS_EL0` in place of `isb; mrs Xt, CNTVCT_EL0`.
fn improve_counter_read(image: &mut [u8], at: usize, cpu: CpuFeatures) {
    const NOP: u32 = 0xd503_201f;
    const MRS_CNTVCTSS: u32 = 0xd53b_e0c0;
    const REGISTER: u32 = 0x1f;
    if cpu.cntvctss {
        let register = u32_at(image, at + 4) & REGISTER;
        put_u32(image, at, NOP);
        put_u32(image, at + 4, MRS_CNTVCTSS | register);
    }
}

/// Writes `ldr x16, slot; br x16`.
fn jump_to_slot(image: &mut [u8], at: usize, slot_at: usize, _: u64) {
    let distance = (slot_at as u32).wrapping_sub(at as u32);
    put_u32(image, at, 0x5800_0010 | (distance >> 2 & 0x7_ffff) << 5);
    put_u32(image, at + 4, 0xd61f_0200);
}

/// Decodes `b`, first or behind a landing pad (`bti c`, `paciasp`).
fn jump_target(code: &[u8], address: u64) -> Option<u64> {
    const PADS: [u32; 2] = [0xd503_245f, 0xd503_233f];
    let skipped = if PADS.contains(&first_u32(code)?) { 4 } else { 0 };
    let instruction = first_u32(&code[skipped..])?;
    // 000101 and 26 bits of words.
    let distance = i64::from((instruction << 6) as i32 >> 6) * 4;
    (instruction >> 26 == 0b00_0101).then(|| (address + skipped as u64).wrapping_add_signed(distance))
}

/// Code for this CPU.
#[cfg(target_arch = "aarch64")]
pub mod cpu {
    use core::arch::asm;
    use std::hint::black_box;

    use crate::CpuFeatures;

    /// The ISA of this CPU's programs.
    pub const ISA: crate::Isa = crate::Isa::Aarch64;

    /// Returns nothing: no instruction reads the counter together with the CPU's number.
    pub fn read_counter_and_cpu() -> Option<(u64, usize)> {
        None
    }

    /// Reads the counter: after all that precedes it in the program, before all that follows it.
    #[inline]
    pub fn read_counter() -> u64 {
        let counter: u64;
        // SAFETY: the barriers and the register exist on every AArch64 CPU. Where the counter may not be read
        // (PR_SET_TSC, Linux 6.12), the caller does not get here: the verdict on the counter has refused. No `nomem`:
        // accesses stay on their side.
        unsafe {
            asm!("isb", "mrs {}, cntvct_el0", "isb", out(reg) counter, options(nostack, preserves_flags));
        }
        counter
    }

    /// Makes every earlier store visible to all CPUs before a counter read after it.
    ///
    /// A fence of the memory model is a DMB, which orders only accesses to memory. DSB waits until they are complete,
    /// and the ISB of `read_counter` keeps the read from being executed earlier (Arm ARM, B2.3 and D11.2).
    pub fn complete_stores() {
        // SAFETY: a barrier changes no register and no memory.
        unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    }

    /// Makes so many ordered reads, one after the other, by the instructions that the image uses.
    #[inline(never)]
    pub fn repeat_image_reads(reads: u32) {
        for _ in 0..reads {
            let counter: u64;
            // SAFETY: as in `read_counter`.
            unsafe {
                asm!("isb", "mrs {}, cntvct_el0", out(reg) counter, options(nostack, preserves_flags));
            }
            black_box(counter);
        }
    }

    /// There is one ordered read.
    pub fn choose_read() {}

    /// Returns the instructions of the image's ordered read.
    pub fn image_read() -> &'static str {
        "isb; mrs cntvct_el0"
    }

    /// Returns whether there is a counter: [`is_counter_invariant`] says that of an Arm CPU.
    pub fn has_counter() -> bool {
        true
    }

    /// Returns whether the counter ticks at one rate in all power states, as the architecture requires of every counter
    /// that firmware has set up: one whose frequency (CNTFRQ_EL0) is known.
    pub fn is_counter_invariant() -> bool {
        let frequency_hz: u64;
        // SAFETY: Linux lets user space read this constant, or emulates the read where it is trapped
        // (arch/arm64/kernel/traps.c).
        unsafe {
            asm!("mrs {}, cntfrq_el0", out(reg) frequency_hz, options(nomem, nostack, preserves_flags));
        }
        frequency_hz != 0
    }

    /// Returns nothing: an Arm CPU does not state whether a hypervisor makes it.
    pub fn hypervisor() -> Option<[u8; 12]> {
        None
    }

    /// Returns whether CNTVCTSS_EL0 may be used, by HWCAP2_ECV.
    pub fn features() -> CpuFeatures {
        // arch/arm64/include/uapi/asm/hwcap.h. The kernel clears it where its use is not allowed.
        const ECV: libc::c_ulong = 1 << 19;
        CpuFeatures {
            // SAFETY: getauxval only reads the auxiliary vector.
            cntvctss: unsafe { libc::getauxval(libc::AT_HWCAP2) & ECV != 0 },
            ..CpuFeatures::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_is_followed_behind_a_landing_pad_too() {
        let code = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(jump_target(&code(&[0x17ff_ffff]), 0x1000), Some(0xffc));
        assert_eq!(jump_target(&code(&[0xd503_245f, 0x1400_0002]), 0x1000), Some(0x100c));
        assert_eq!(jump_target(&code(&[0x9400_0002]), 0x1000), None);
        assert_eq!(jump_target(&code(&[0xd503_245f]), 0x1000), None);
    }
}
