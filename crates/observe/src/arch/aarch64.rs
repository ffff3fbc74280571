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
