//! The instructions of an image that differ from one process to another.
//!
//! The code itself recorded every place that is changed here, as it was assembled (`vdso/record.h`).

use crate::features::CpuFeatures;
use crate::instance::Placement;
use fastpath_elf::Isa;

/// Symbol type of data.
const STT_OBJECT: u8 = 1;

/// Returns how far from the image's start its page may lie, and a description of that.
pub fn page_reach(isa: Isa) -> (u64, &'static str) {
    match isa {
        // The displacement has 32 bits, and counts from an instruction in the image.
        Isa::X86_64 => ((1 << 31) - (1 << 16), "it reaches 2 GiB, less 64 KiB, to either side"),
        // ADRP counts 21 bits of pages.
        Isa::Aarch64 => ((1 << 32) - (1 << 16), "it reaches 4 GiB, less 64 KiB, to either side"),
        Isa::I386 | Isa::Arm => ((1 << 32) - 1, "an address has 32 bits"),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Adds `moved` to the distance of the page in the instruction at `at`.
pub fn move_page_reference(isa: Isa, bytes: &mut [u8], at: usize, moved: i64) {
    match isa {
        // The displacement itself.
        Isa::X86_64 | Isa::I386 => {
            let distance = u32_at(bytes, at).wrapping_add(moved as u32);
            put_u32(bytes, at, distance);
        }
        Isa::Aarch64 => {
            // ADRP: immhi:immlo, in pages (Arm ARM, C6.2).
            const IMMEDIATE: u32 = 0x60ff_ffe0;
            let instruction = u32_at(bytes, at);
            let pages = (instruction >> 5 & 0x7_ffff) << 2 | instruction >> 29 & 3;
            let pages = pages.wrapping_add((moved >> 12) as u32);
            let immediate = (pages >> 2 & 0x7_ffff) << 5 | (pages & 3) << 29;
            put_u32(bytes, at, instruction & !IMMEDIATE | immediate);
        }
        Isa::Arm => {
            // MOVW, then MOVT: imm4:imm12 each (Arm ARM, F5.1).
            let half = |instruction: u32| instruction >> 4 & 0xf000 | instruction & 0xfff;
            let with = |instruction: u32, half: u32| instruction & !0xf_0fff | (half & 0xf000) << 4 | half & 0xfff;
            let (low, high) = (u32_at(bytes, at), u32_at(bytes, at + 4));
            let distance = (half(high) << 16 | half(low)).wrapping_add(moved as u32);
            put_u32(bytes, at, with(low, distance & 0xffff));
            put_u32(bytes, at + 4, with(high, distance >> 16));
        }
    }
}

/// Replaces an ordered read of the counter by the best one that the CPU has.
pub fn improve_counter_read(isa: Isa, bytes: &mut [u8], at: usize, cpu: CpuFeatures) {
    match isa {
        Isa::X86_64 | Isa::I386 if cpu.rdtscp => {
            // `rdtscp` and a no-op of two bytes, in place of `lfence; rdtsc`.
            const RDTSCP: [u8; 5] = [0x0f, 0x01, 0xf9, 0x66, 0x90];
            bytes[at..at + RDTSCP.len()].copy_from_slice(&RDTSCP);
        }
        Isa::Aarch64 if cpu.cntvctss => {
            // `nop; mrs Xt, CNTVCTSS_EL0` in place of `isb; mrs Xt, CNTVCT_EL0`.
            const NOP: u32 = 0xd503_201f;
            const MRS_CNTVCTSS: u32 = 0xd53b_e0c0;
            const REGISTER: u32 = 0x1f;
            let register = u32_at(bytes, at + 4) & REGISTER;
            put_u32(bytes, at, NOP);
            put_u32(bytes, at + 4, MRS_CNTVCTSS | register);
        }
        _ => {}
    }
}

/// Returns the size of the instruction that an exported function begins with, as the target of an indirect call.
pub const fn landing_pad(isa: Isa) -> usize {
    // `endbr64`, `bti c`
    if isa.is_64() { 4 } else { 0 }
}

/// Writes a jump to the address in a slot.
pub fn jump_to_slot(isa: Isa, bytes: &mut [u8], at: usize, slot_at: usize, placement: &Placement) {
    let distance = |from: usize| (slot_at as u32).wrapping_sub(from as u32);
    match isa {
        Isa::X86_64 => {
            // `jmp *distance(%rip)`
            bytes[at..at + 2].copy_from_slice(&[0xff, 0x25]);
            put_u32(bytes, at + 2, distance(at + 6));
        }
        Isa::I386 => {
            let to = u64::from(u32_at(bytes, slot_at));
            jump_i386(bytes, at, placement.address + at as u64, to);
        }
        Isa::Aarch64 => {
            // `ldr x16, slot; br x16`
            put_u32(bytes, at, 0x5800_0010 | (distance(at) >> 2 & 0x7_ffff) << 5);
            put_u32(bytes, at + 4, 0xd61f_0200);
        }
        Isa::Arm => {
            // `ldr pc, [pc, #distance]`, which counts from two instructions on, up or down.
            let distance = distance(at + 8) as i32;
            let up = u32::from(distance >= 0) << 23;
            put_u32(bytes, at, 0xe51f_f000 | up | distance.unsigned_abs() & 0xfff);
        }
    }
}

/// Writes `jmp rel32` at `at`, which will be at the address `from`, to the address `to`. It needs no register, so it
/// suits `__kernel_vsyscall`, to which all of them are arguments.
pub fn jump_i386(bytes: &mut [u8], at: usize, from: u64, to: u64) {
    bytes[at] = 0xe9;
    put_u32(bytes, at + 1, to.wrapping_sub(from.wrapping_add(5)) as u32);
}

/// Gives the dynamic symbol whose entry is at `entry` this value, which loaders add to the image's address. The sum
/// wraps around.
pub fn set_symbol(isa: Isa, bytes: &mut [u8], entry: usize, value: u64) {
    let (at, width) = if isa.is_64() { (entry + 8, 8) } else { (entry + 4, 4) };
    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
}

/// Makes the dynamic symbol whose entry is at `entry` undefined, and no function. Every loader then skips it, as if
/// this kernel did not have the function (rustix only checks the type); the hash tables stay unchanged.
pub fn hide_symbol(isa: Isa, bytes: &mut [u8], entry: usize) {
    // Both classes have section index, value and size, in a different order and with two different widths.
    let fields = if isa.is_64() { [6..8, 8..24] } else { [4..12, 14..16] };
    for field in fields {
        bytes[entry + field.start..entry + field.end].fill(0);
    }
    let info = entry + if isa.is_64() { 4 } else { 12 };
    bytes[info] = bytes[info] & 0xf0 | STT_OBJECT;
}
