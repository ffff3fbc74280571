//! The region that a process gets: eight pages, each at a fixed distance from the others.
//!
//! | offset | bytes | what | access |
//! |---|---|---|---|
//! | 0 | 4096 | the page, a sealed memfd | read |
//! | 4096 | 8192 | the vDSO image | read, execute |
//! | 12288 | 4096 | the hook | read, execute |
//! | 16384 | 4096 | the thunk for AT_SYSINFO, in 32-bit programs | read, execute |
//! | 20480 | 4096 | the hook's state, private | read, write |
//! | 24576 | 4096 | the mailbox, a memfd | read, write |
//! | 28672 | 4096 | the journal of the changes, and the thunks of the vDSO's entry points (`redirection/`) | read, execute |
//!
//! Thunks for system calls of the program and its libraries are on pages of their own, near that code
//! (`hooked_calls.rs`).

use fastpath_page::PAGE_SIZE;

use crate::error::{Error, Result};
use crate::maps::{self, Mapping};

/// Offsets in the region; `hook/hook.lds` repeats those of the hook and what it refers to.
pub const PAGE: u64 = 0;
pub const IMAGE: u64 = 4096;
pub const IMAGE_ROOM: u64 = 8192;
pub const HOOK: u64 = IMAGE + IMAGE_ROOM;
pub const THUNKS: u64 = HOOK + 4096;
pub const STATE: u64 = THUNKS + 4096;
pub const MAILBOX: u64 = STATE + 4096;
pub const JOURNAL: u64 = MAILBOX + 4096;
pub const JOURNAL_ROOM: u64 = 3072;
pub const ENTRY_THUNKS: u64 = JOURNAL + JOURNAL_ROOM;
/// Size of the region in bytes.
pub const SIZE: u64 = JOURNAL + 4096;

/// Refuses a kernel whose pages are larger than the region's (AArch64's may be of 16 or 64 KiB): parts of a page can be
/// neither mapped nor protected.
pub fn suits_pages_of(bytes: u64) -> Result<()> {
    if bytes <= PAGE_SIZE as u64 {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "this kernel's memory pages are of {bytes} bytes, and programs can be served only where they are of {PAGE_SIZE}"
    )))
}

/// Distance in bytes to code near which thunks are mapped, and to the heap above a static program.
const GUARD: u64 = 1 << 20;

/// The same where there is no room below the code, and the thunks must lie above: as much as a heap there usually
/// grows, and well within the reach of a jump (128 MiB on AArch64).
const GUARD_ABOVE: u64 = 32 << 20;

/// Returns where `size` bytes can be mapped so that jumps from the code that is mapped at `code` reach them.
pub fn place_beside(maps: &[Mapping], code: u64, size: u64) -> Option<u64> {
    // Go's programs for AArch64 begin at 64 KiB: there is no room below.
    maps::gap_below(maps, code, size, GUARD).or_else(|| maps::gap_above(maps, code, size, GUARD_ABOVE))
}

/// Returns where a region can be mapped so that jumps from the vDSO at `vdso_base` reach it.
/// Tries above the vDSO first: the mapping below it is often the stack, which grows.
pub fn place_near(maps: &[Mapping], vdso_base: u64) -> Result<u64> {
    /// One page to either neighbour, so that an overrun of one does not hit the other.
    const DISTANCE: u64 = 4096;
    /// Well within the reach of a jump: 128 MiB on AArch64, 2 GiB on x86-64.
    const REACH: u64 = if cfg!(target_arch = "aarch64") {
        96 << 20
    } else {
        1 << 30
    };
    /// Last page of a program's address space with four levels of page tables on x86-64
    /// (Documentation/arch/x86/x86_64/mm.rst); programs of all ISAs stay below it unless they ask for more.
    const CEILING: u64 = 0x7fff_ffff_f000;
    /// The same for 32-bit programs (arch/x86/include/asm/page_64_types.h, IA32_PAGE_OFFSET).
    const CEILING_32: u64 = 0xffff_e000;
    let is_32_bit = vdso_base <= u64::from(u32::MAX);
    let ceiling = if is_32_bit { CEILING_32 } else { CEILING };
    let reached = |at: &u64| at.abs_diff(vdso_base) < REACH;
    let above =
        maps::gap_above(maps, vdso_base, SIZE, DISTANCE).filter(|at| reached(at) && at + SIZE + DISTANCE <= ceiling);
    let lowest = maps
        .iter()
        .rev()
        .filter(|m| m.start <= vdso_base)
        .try_fold(vdso_base, |lowest, m| {
            let continues = m.end == lowest || m.start == lowest;
            if continues { Ok(m.start) } else { Err(lowest) }
        });
    let lowest = lowest.unwrap_or_else(|lowest| lowest);
    let below = || {
        let is_stack = |m: &&Mapping| m.name.starts_with("[stack");
        let free = maps::gap_below(maps, lowest, SIZE, DISTANCE).filter(reached)?;
        // Not where the stack would grow to.
        let grows_here = maps
            .iter()
            .find(is_stack)
            .is_some_and(|stack| free < stack.start && stack.start <= lowest);
        (!grows_here).then_some(free)
    };
    above
        .or_else(below)
        .ok_or_else(|| Error::Unsupported("there is no room near its vDSO".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_near_a_vdso_at_the_end_of_the_address_space_lies_below_it() {
        for (vdso, end) in [(0xffff_b000, 0xffff_d000u64), (0x7fff_ffff_c000, 0x7fff_ffff_e000)] {
            let maps = fastpath_proc::maps::parse(&format!("{vdso:x}-{end:x} r-xp 0 0:0 0 [vdso]\n"));
            let at = place_near(&maps, vdso).unwrap();
            assert!(at + SIZE < vdso, "{at:#x}");
        }
        let maps = fastpath_proc::maps::parse("f7f0b000-f7f0d000 r-xp 0 0:0 0 [vdso]\n");
        assert_eq!(place_near(&maps, 0xf7f0_b000).unwrap(), 0xf7f0_e000);
    }

    #[test]
    fn a_kernel_with_larger_pages_is_refused_in_one_sentence() {
        suits_pages_of(4096).unwrap();
        for bytes in [16384, 65536] {
            let refusal = suits_pages_of(bytes).unwrap_err().to_string();
            assert!(
                refusal.contains(&format!("{bytes} bytes")) && refusal.contains("4096"),
                "{refusal}"
            );
            assert_eq!(refusal.lines().count(), 1);
        }
    }
}
