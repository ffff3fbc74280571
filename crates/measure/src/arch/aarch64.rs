//! The virtual counter.

use std::arch::asm;
use std::hint::black_box;

/// `isb` keeps the read behind all earlier instructions.
#[inline(always)]
fn read_ordered() -> u64 {
    let count: u64;
    // SAFETY: Linux lets user space read cntvct_el0, and reading it changes nothing.
    unsafe {
        asm!("isb", "mrs {}, cntvct_el0", out(reg) count, options(nostack, preserves_flags));
    }
    count
}

/// As the image reads it.
#[inline(never)]
pub fn repeat(reads: u32) {
    for _ in 0..reads {
        black_box(read_ordered());
    }
}

/// The instructions of an ordered read.
pub fn counter_name() -> &'static str {
    "isb; mrs cntvct_el0"
}

/// `b`, first or behind a landing pad (`bti c`, `paciasp`).
pub fn jump_target(code: &[u8], at: u64) -> Option<u64> {
    const PADS: [u32; 2] = [0xd503_245f, 0xd503_233f];
    let word = |index: usize| Some(u32::from_le_bytes(code.get(4 * index..4 * index + 4)?.try_into().ok()?));
    let index = usize::from(PADS.contains(&word(0)?));
    let instruction = word(index)?;
    // Arm ARM C6.2: 000101 and 26 bits of words.
    let distance = i64::from((instruction << 6) as i32 >> 6) * 4;
    (instruction >> 26 == 0b00_0101).then(|| (at + 4 * index as u64).wrapping_add_signed(distance))
}
