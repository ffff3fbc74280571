//! The region that a process gets. Its parts are at fixed distances from each other, and what is mapped apart begins at a
//! multiple of the largest page that kernels of the host's ISA have.
//!
//! | offset | with pages of 64 KiB | bytes | what | access |
//! |---|---|---|---|---|
//! | 0 | 0 | 4096 | the page, a sealed memfd | read |
//! | 4096 | 65536 | 8192 | the vDSO image | read, execute |
//! | 12288 | 131072 | 7168 | the hook | read, execute |
//! | 19456 | 138240 | 1024 | the thunk for AT_SYSINFO, in 32-bit programs | read, execute |
//! | 20480 | 196608 | 4096 | the hook's state, private | read, write |
//! | 24576 | 262144 | 4096 | the mailbox, a memfd | read, write |
//! | 28672 | 327680 | 8192 | the journal of the changes, and the thunks of the vDSO's entry points (`redirection/`) | read, execute |
//!
//! Between the parts, where a kernel has smaller pages, are pages of zeros that take no memory.
//!
//! In a program that starts without a kernel's vDSO, AT_SYSINFO_EHDR points to the image. It is alone in its mapping there:
//! some programs unmap all of the mapping that holds the vDSO, as Valgrind does. fastpath's own code uses a second image, and so do the
//! system calls that are rescued: the first one may call the kernel's vDSO, which the program may have unmapped.
//!
//! Thunks for system calls of the program and its libraries are on pages of their own, near that code
//! (`calls.rs`).

use std::num::NonZero;

use fastpath_image::{Isa, Placement};
use nix::errno::Errno;

use crate::abi::host::{CEILING, REACH};
use crate::error::{Error, Result};
use crate::target::maps::{self, Mapping};

/// Bytes that any kernel for the host's ISA can map and protect by themselves.
pub const LARGEST_PAGE: u64 = Isa::HOST.facts().largest_page;

/// Returns the room of a part of so many bytes that is mapped apart.
const fn room(bytes: u64) -> u64 {
    bytes.next_multiple_of(LARGEST_PAGE)
}

/// Returns where an image at this offset of the region at `region` lies, and its page.
pub fn placement(region: u64, image: u64) -> Placement {
    Placement {
        address: region + image,
        page_offset: PAGE.cast_signed() - image.cast_signed(),
    }
}

/// Offsets in the region; `hook/hook.lds` repeats those of the hook and what it refers to.
pub const PAGE: u64 = 0;
pub const IMAGE: u64 = LARGEST_PAGE;
pub const IMAGE_ROOM: u64 = room(8192);
pub const HOOK: u64 = IMAGE + IMAGE_ROOM;
/// `hook/hook.lds` has this size, too.
pub const HOOK_ROOM: u64 = 7168;
pub const THUNKS: u64 = HOOK + HOOK_ROOM;
pub const STATE: u64 = HOOK + room(8192);
pub const MAILBOX: u64 = STATE + LARGEST_PAGE;
pub const JOURNAL: u64 = MAILBOX + LARGEST_PAGE;
pub const JOURNAL_ROOM: u64 = 5120;
pub const ENTRY_THUNKS: u64 = JOURNAL + JOURNAL_ROOM;
/// Size of the region in bytes.
pub const SIZE: u64 = JOURNAL + room(8192);

/// Offset of the second image.
pub const OWN_IMAGE: u64 = SIZE + LARGEST_PAGE;
/// Size of the region with the second image, in bytes.
pub const SIZE_WITH_OWN_IMAGE: u64 = OWN_IMAGE + IMAGE_ROOM;

/// Bytes at the end of a mapping that remote calls may use (`remote/tail.rs`): the margin, the longest code of any ISA
/// (x86-64's, 106 bytes), and the mark.
pub const TAIL_BYTES: usize = 160;

/// Distance in bytes to mappings near which thunks are mapped, and to the heap above a static program.
const GUARD: u64 = 1 << 20;

/// The same where there is no room below the code, and the thunks must lie above: as much as a heap there usually
/// grows, and well within the reach of a jump (128 MiB on AArch64).
const GUARD_ABOVE: u64 = 32 << 20;
/// The same in 32-bit programs: a jump of T32 code reaches 16 MiB, and both the region and the thunks lie there.
const GUARD_ABOVE_32: u64 = 4 << 20;

/// Distance in bytes below code at which no program is about to map memory: the kernel chooses gaps, and places below the
/// lowest library. Nearer places are taken between the choice and its use, where other threads of the program run.
const FAR: u64 = 512 << 20;

/// Returns where `size` bytes can be mapped so that jumps from the code that is mapped at `code` reach them.
pub fn place_beside(maps: &[Mapping], code: u64, size: u64) -> Option<u64> {
    // A 32-bit program has no address space to spare.
    let below = code.checked_sub(FAR).filter(|below| *below > u64::from(u32::MAX));
    let far = below.and_then(|below| maps::gap_below(maps, below, size, GUARD));
    // Go's programs for AArch64 begin at 64 KiB: there is no room below.
    far.filter(|at| code - at < REACH)
        .or_else(|| maps::gap_below(maps, code, size, GUARD))
        .or_else(|| {
            // The stack is at the end of the address space.
            let is_32_bit = maps.last().is_some_and(|last| last.end <= 1 << 32);
            let guard = if is_32_bit { GUARD_ABOVE_32 } else { GUARD_ABOVE };
            maps::gap_above(maps, code, size, guard)
        })
}

/// Returns the end of the address space of this kernel's programs, at most [`CEILING`]. User Mode Linux has less, and its
/// vDSO is the last page of it.
fn end_of_address_space() -> u64 {
    static END: std::sync::LazyLock<u64> = std::sync::LazyLock::new(|| end_of(CEILING, may_be_mapped));
    *END
}

/// Returns the end of the pages below `ceiling` that exist. They are the first ones.
fn end_of(ceiling: u64, exists: impl Fn(u64) -> bool) -> u64 {
    let page = LARGEST_PAGE;
    if exists(ceiling - page) {
        return ceiling;
    }
    let (mut low, mut high) = (0, ceiling / page - 1);
    while low < high {
        let middle = low.midpoint(high);
        if exists(middle * page) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low * page
}

/// Returns whether this process could map the page at `at`, or has mapped something there.
fn may_be_mapped(at: u64) -> bool {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let (Some(size), Some(hint)) = (NonZero::new(LARGEST_PAGE as usize), NonZero::new(at as usize)) else {
        return true;
    };
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
    // SAFETY: the flag keeps the kernel from replacing a mapping, and the new one is only unmapped.
    match unsafe { mmap_anonymous(Some(hint), size, ProtFlags::PROT_NONE, flags) } {
        Ok(mapped) => {
            // SAFETY: it was mapped just now, and nothing refers to it.
            let _ = unsafe { munmap(mapped, size.get()) };
            true
        }
        // EPERM: below vm.mmap_min_addr.
        Err(errno) => matches!(errno, Errno::EEXIST | Errno::EPERM | Errno::EACCES),
    }
}

/// Room for the growth of the stack; within [`REACH`] only on x86-64.
const STACK_ROOM: u64 = 512 << 20;

/// Returns where a region can be mapped so that jumps from the vDSO at `vdso_base` reach it.
pub fn place_near(maps: &[Mapping], vdso_base: u64) -> Result<u64> {
    /// End of the address space of 32-bit programs (arch/x86/include/asm/page_64_types.h, IA32_PAGE_OFFSET).
    const CEILING_32: u64 = 0xffff_e000;
    let is_32_bit = vdso_base <= u64::from(u32::MAX);
    let ceiling = if is_32_bit { CEILING_32 } else { end_of_address_space() };
    place_near_below(maps, vdso_base, ceiling)
}

/// The same in an address space that ends at `ceiling`. Tries above the vDSO first: the mapping below is often the stack, which
/// grows. Without address space randomization, that is the mapping above, and the free room is no more than its limit.
fn place_near_below(maps: &[Mapping], vdso_base: u64, ceiling: u64) -> Result<u64> {
    /// So that an overrun of one mapping does not hit the other.
    const DISTANCE: u64 = LARGEST_PAGE;
    let is_stack = |m: &&Mapping| m.name.starts_with("[stack");
    let reached = |at: &u64| at.abs_diff(vdso_base) < REACH;
    let above = maps::gap_above(maps, vdso_base, SIZE_WITH_OWN_IMAGE, DISTANCE)
        .filter(|at| reached(at) && at + SIZE_WITH_OWN_IMAGE + DISTANCE <= ceiling);
    let is_below_the_stack = |at: u64| {
        let next = maps.iter().find(|mapping| mapping.start >= at);
        next.is_some_and(|next| is_stack(&next) && next.start - at < STACK_ROOM)
    };
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
        let free = maps::gap_below(maps, lowest, SIZE_WITH_OWN_IMAGE, DISTANCE).filter(reached)?;
        // Not where the stack would grow to.
        let grows_here = maps
            .iter()
            .find(is_stack)
            .is_some_and(|stack| free < stack.start && stack.start <= lowest);
        (!grows_here).then_some(free)
    };
    // Where a stack that ends at the vDSO is in the way: below all that it may become. The kernel itself may map as
    // near to it as 128 MiB (arch/x86/mm/mmap.c: SIZE_128M, stack_maxrandom_size).
    let below_the_stack = || {
        let stack = maps.iter().find(is_stack)?;
        let ceiling = stack.start.checked_sub(STACK_ROOM)?;
        maps::gap_below(maps, ceiling, SIZE_WITH_OWN_IMAGE, DISTANCE).filter(reached)
    };
    if let Some(above) = above {
        let elsewhere = is_below_the_stack(above).then(|| place_beside(maps, lowest, SIZE_WITH_OWN_IMAGE));
        return Ok(elsewhere.flatten().filter(reached).unwrap_or(above));
    }
    below()
        .or_else(below_the_stack)
        .ok_or_else(|| Error::Unsupported("there is no room near its vDSO".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_near_a_vdso_at_the_end_of_the_address_space_lies_below_it() {
        for (vdso, end) in [(0xffff_b000, 0xffff_d000u64), (CEILING - 0x3000, CEILING - 0x1000)] {
            let maps = fastpath_os::maps::parse(&format!("{vdso:x}-{end:x} r-xp 0 0:0 0 [vdso]\n"));
            let at = place_near(&maps, vdso).unwrap();
            assert!(at + SIZE < vdso, "{at:#x}");
        }
        let maps = fastpath_os::maps::parse("f7f0b000-f7f0d000 r-xp 0 0:0 0 [vdso]\n");
        assert_eq!(place_near(&maps, 0xf7f0_b000).unwrap(), 0xf7f0_d000 + LARGEST_PAGE);
    }

    /// Regression: User Mode Linux's address space ends with the vDSO, and the region was placed behind it.
    #[test]
    fn a_region_near_a_vdso_at_the_end_of_a_smaller_address_space_lies_below_it() {
        let maps = fastpath_os::maps::parse(
            "7fbfde6000-7fbfe07000 rw-p 0 0:0 0 [stack]\n7fbffff000-7fc0000000 r-xp 0 0:0 0 [vdso]\n",
        );
        let at = place_near_below(&maps, 0x7f_bfff_f000, 0x7f_c000_0000).unwrap();
        assert!(0x7f_bfe0_7000 < at && at + SIZE < 0x7f_bfff_f000, "{at:#x}");
        // Its stack may end right below the vDSO.
        let maps = fastpath_os::maps::parse(
            "7fbffdd000-7fbfffe000 rw-p 0 0:0 0 [stack]\n7fbffff000-7fc0000000 r-xp 0 0:0 0 [vdso]\n",
        );
        let at = place_near_below(&maps, 0x7f_bfff_f000, 0x7f_c000_0000);
        if STACK_ROOM < REACH {
            let at = at.unwrap();
            assert!(
                at + SIZE + STACK_ROOM < 0x7f_bffd_d000 && 0x7f_bfff_f000 - at < REACH,
                "{at:#x}"
            );
        }
    }

    #[test]
    fn a_region_takes_no_room_from_a_stack_above_the_vdso() {
        // As `setarch -R` has it, with a stack of at most 128 MiB.
        let linker = "7ffff7ec1000-7ffff7ec5000 r--p 0 0:0 0 [vvar]\n7ffff7ec5000-7ffff7ec7000 r-xp 0 0:0 0 [vdso]\n\
                      7ffff7ec7000-7ffff7efd000 r-xp 0 0:0 0 /lib/ld.so\n";
        let maps = |stack| fastpath_os::maps::parse(&format!("{linker}{stack}"));
        let at = place_near(
            &maps("7ffffffde000-7ffffffff000 rw-p 0 0:0 0 [stack]\n"),
            0x7fff_f7ec_5000,
        )
        .unwrap();
        assert!(at + SIZE_WITH_OWN_IMAGE < 0x7fff_f7ec_1000, "{at:#x}");
        // The kernel maps nothing there, and so neither does another thread meanwhile.
        let at = place_near(&maps(""), 0x7fff_f7ec_5000).unwrap();
        assert!(at > 0x7fff_f7ef_d000, "{at:#x}");
    }

    #[test]
    fn the_end_of_an_address_space_is_found_by_its_pages() {
        for end in [
            CEILING,
            CEILING - LARGEST_PAGE,
            0x7f_c000_0000,
            0x10_0000,
            LARGEST_PAGE,
            0,
        ] {
            assert_eq!(end_of(CEILING, |at| at < end), end);
        }
        assert!(may_be_mapped(0x1000_0000) && may_be_mapped(may_be_mapped as *const () as u64 & !4095));
        assert!(!may_be_mapped(1 << 60));
        let maps = maps::read(std::process::id() as i32).unwrap();
        let last = maps.iter().rev().find(|m| m.end <= CEILING).unwrap();
        assert!(end_of_address_space() >= last.end);
    }
}
