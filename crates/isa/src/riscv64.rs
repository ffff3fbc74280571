//! RISC-V, 64-bit, little-endian. Instructions: the unprivileged specification, RV64I and Zicsr.
//!
//! The image uses no compressed instructions and no extension beyond M and A, so it runs on every CPU that Linux runs
//! on, and each of its instructions has four bytes.

use crate::bytes::{first_u32, put_u32, u32_at};
use crate::calls::ASM_GENERIC;
use crate::{Counter, Facts, Unwind, Version};

pub(crate) const FACTS: Facts = Facts {
    name: c"riscv64",
    rust_name: "riscv64",
    is_64: true,
    elf_machine: 243,
    unwind: Unwind::EhFrame,
    calls: ASM_GENERIC,
    answered: None,
    // ecall
    system_call: &[0x73, 0x00, 0x00, 0x00],
    prefix: "__vdso_",
    // arch/riscv/kernel/vdso/vdso.lds.S; riscv_hwprobe since Linux 6.4, getrandom since 6.16
    vdso: &[Version {
        name: "LINUX_4.15",
        functions: &[
            "__vdso_rt_sigreturn",
            "__vdso_gettimeofday",
            "__vdso_clock_gettime",
            "__vdso_clock_getres",
            "__vdso_getcpu",
            "__vdso_flush_icache",
            "__vdso_riscv_hwprobe",
            "__vdso_getrandom",
        ],
        weak: &[],
    }],
    forwarded: &["getrandom", "flush_icache", "riscv_hwprobe"],
    slots: &[
        "clock_gettime",
        "gettimeofday",
        "clock_getres",
        "getcpu",
        "getrandom",
        "flush_icache",
        "riscv_hwprobe",
    ],
    counter: COUNTER,
    // The kernel's vDSO makes the system call.
    has_cpu_number: false,
    clang_target: "riscv64-linux-gnu",
    // No linker relaxation: it would change the instructions that the image records.
    machine_flags: &["-march=rv64ima", "-mabi=lp64", "-mno-relax"],
    // It makes the image fit a page.
    image_flags: &["-falign-functions=4"],
    hot_alignment: 16,
    shared_folder: None,
    // AUIPC adds 20 bits of pages, signed.
    page_reach: ((1 << 31) - (1 << 16), "it reaches 2 GiB, less 64 KiB, to either side"),
    jump_reach: None,
    // Landing pads (Zicfilp) are no part of the baseline.
    landing_pad: 0,
    move_page_reference,
    // There is no better one.
    improve_counter_read: |_, _, _| {},
    jump_to_slot,
    jump_target,
};

/// The `time` CSR (Zicntr). It counts real time at one rate, and all harts' are within one tick of each other.
///
/// RVWMO does not order a CSR read with accesses to memory ("CSR Access Ordering"): only a fence does, for which the
/// read is device input, or a dependency. Ztso, which orders loads with loads, does not change that. The kernel's vDSO
/// has no fence, because on the first CPUs the read trapped to the firmware, which is an order of its own; where the
/// CPU has the CSR, the read may run ahead of earlier loads. `vdso/riscv64/counter.h` has the proof of the order.
const COUNTER: Counter = Counter {
    // Orders every load before it, in program order, before every load after it.
    load_barrier: "fence r, r",
    // fence r, i; csrrs rd, time, zero
    read: &[
        (0x0f, 0xff),
        (0x00, 0xff),
        (0x80, 0xff),
        (0x02, 0xff),
        (0x73, 0x7f),
        (0x20, 0xf0),
        (0x10, 0xff),
        (0xc0, 0xff),
    ],
    trapped: Some(
        "reading the counter traps to the firmware, and is no faster than a system call (this CPU has no time CSR)",
    ),
    invariant_source: "Zicntr: the time CSR counts real time",
    not_invariant: "there is no counter of real time (Zicntr)",
};

/// Adds to the pages of an AUIPC.
fn move_page_reference(image: &mut [u8], at: usize, by: i64) {
    let pages = (by >> 12) as u32;
    let moved = u32_at(image, at).wrapping_add(pages << 12);
    put_u32(image, at, moved);
}

/// Writes `auipc t2, slot; ld t2, slot(t2); jr t2`. By way of t2, an indirect jump needs no landing pad.
fn jump_to_slot(image: &mut [u8], at: usize, slot_at: usize, _: u64) {
    let distance = (slot_at as u32).wrapping_sub(at as u32);
    // The lower part is signed.
    put_u32(image, at, 0x0000_0397 | distance.wrapping_add(0x800) & 0xffff_f000);
    put_u32(image, at + 4, 0x0003_b383 | distance << 20);
    put_u32(image, at + 8, 0x0003_8067);
}

/// Decodes `j`, first or behind a landing pad (`lpad`).
fn jump_target(code: &[u8], address: u64) -> Option<u64> {
    // auipc zero
    let is_pad = first_u32(code)? & 0xfff == 0x17;
    let skipped = if is_pad { 4 } else { 0 };
    let instruction = first_u32(&code[skipped..])?;
    let bits = |from: u32, count: u32, to: u32| (instruction >> from & ((1 << count) - 1)) << to;
    let distance = bits(21, 10, 1) | bits(20, 1, 11) | bits(12, 8, 12) | bits(31, 1, 20);
    let distance = i64::from((distance << 11) as i32 >> 11);
    (instruction & 0xfff == 0x6f).then(|| (address + skipped as u64).wrapping_add_signed(distance))
}

/// Code for this CPU.
#[cfg(target_arch = "riscv64")]
pub mod cpu {
    use core::arch::asm;
    use std::hint::black_box;

    use crate::CpuFeatures;

    /// The ISA of this CPU's programs.
    pub const ISA: crate::Isa = crate::Isa::Riscv64;

    /// Returns nothing: no instruction reads the counter together with the CPU's number.
    pub fn read_counter_and_cpu() -> Option<(u64, usize)> {
        None
    }

    /// Reads the counter: after all that precedes it in the program, before all that follows it.
    #[inline]
    pub fn read_counter() -> u64 {
        let counter: u64;
        // SAFETY: Linux lets every program read the CSR, or its firmware emulates the read; a fence changes nothing. No
        // `nomem`: accesses stay on their side.
        unsafe {
            asm!("fence iorw, iorw", "rdtime {}", "fence iorw, iorw", out(reg) counter, options(nostack, preserves_flags));
        }
        counter
    }

    /// Makes every earlier store visible to all CPUs before a counter read after it.
    ///
    /// A fence of the memory model orders only accesses to memory. This one orders stores before device input, which
    /// the read of a CSR is. RVWMO is multi-copy atomic: a store that comes before is visible to all.
    pub fn complete_stores() {
        // SAFETY: a fence changes no register and no memory.
        unsafe { asm!("fence w, i", options(nostack, preserves_flags)) };
    }

    /// Makes so many ordered reads, one after the other, by the instructions that the image uses.
    #[inline(never)]
    pub fn repeat_image_reads(reads: u32) {
        for _ in 0..reads {
            let counter: u64;
            // SAFETY: as in `read_counter`.
            unsafe {
                asm!("fence r, i", "rdtime {}", out(reg) counter, options(nostack, preserves_flags));
            }
            black_box(counter);
        }
    }

    /// Returns the instructions of the image's ordered read.
    pub fn image_read() -> &'static str {
        "fence r,i; rdtime"
    }

    /// Returns whether the counter ticks at one rate: the specification requires that of Zicntr, and Linux requires
    /// Zicntr.
    pub fn is_counter_invariant() -> bool {
        true
    }

    /// Returns the CPU's features: none matters.
    pub fn features() -> CpuFeatures {
        CpuFeatures::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_jump_is_followed_behind_a_landing_pad_too() {
        assert_eq!(jump_target(&code(&[0xffdf_f06f]), 0x1000), Some(0xffc));
        assert_eq!(jump_target(&code(&[0x0000_0017, 0x0080_006f]), 0x1000), Some(0x100c));
        assert_eq!(jump_target(&code(&[0x0010_006f]), 0x1000), Some(0x1800));
        assert_eq!(jump_target(&code(&[0x0000_106f]), 0x1000), Some(0x2000));
        assert_eq!(jump_target(&code(&[0x0080_00ef]), 0x1000), None); // jal ra
        assert_eq!(jump_target(&code(&[0x0000_0017]), 0x1000), None);
    }

    #[test]
    fn a_jump_to_a_slot_loads_it_from_either_side() {
        for (at, slot_at) in [(0x100_usize, 0xf00_usize), (0xf00, 0x108), (0x20, 0x820), (0x820, 0x20)] {
            let mut image = vec![0; 0x1000];
            jump_to_slot(&mut image, at, slot_at, 0);
            let [high, low, jump] = [at, at + 4, at + 8].map(|at| u32_at(&image, at));
            assert_eq!((high & 0xfff, low & 0xf_ffff, jump), (0x397, 0x3_b383, 0x3_8067));
            let distance = (high & 0xffff_f000).wrapping_add((low as i32 >> 20) as u32);
            assert_eq!(at.wrapping_add_signed(distance as i32 as isize), slot_at);
        }
    }
}
