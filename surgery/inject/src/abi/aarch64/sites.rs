//! Finds system call instructions of AArch64 code, and builds their thunks.
//!
//! A jump has the size of `svc`, so it replaces that instruction alone. Which instructions to redirect depends on what
//! moves the number into x8 shortly before:
//!
//! - `mov x8, #NR`: a wrapper for one call, as every C library compiles it;
//! - `mov w8, w0` (glibc), `mov x8, xN` (musl): `syscall()`;
//! - `ldr x8, [sp, #8]`, and `cmn x0, #4095` after the `svc`: Go's assembly for all its calls.

use fastpath_code::rescue::thunk::{Change, Thunk};

use super::arm::sites as arm;
pub use super::shape::Shape;
use super::{INSTRUCTION, SVC};
use crate::target::sites::{Doors, MOST_CALLS, OUT_OF_REACH, Site, WATCHED};

/// `b` by three instructions
const FORWARD: u32 = 0x1400_0003;
/// `cmn x0, #4095`
const GO_CHECK: u32 = 0xb13f_fc1f;
/// A thunk's call of the hook: `ldr x16`, the literal after the code; `blr x16`
pub(super) const CALL_DOOR: [u32; 2] = [0x5800_0130, 0xd63f_0200];
/// Number of instructions before an `svc` that are searched for its number: `syscall()` unpacks its arguments in about
/// twenty.
const LOOK_BACK: usize = 32;
/// `mov x5, x7`, before the `svc` of the calls at which a thread can be cancelled, in musl, and in glibc since 2.41. The C library decides
/// by the thread's address whether it is in one, so they stay in their place; the hook watches none of them.
const AT_CANCELLATION: u32 = 0xaa07_03e5;
/// Size of one thunk in bytes.
pub const THUNK_BYTES: usize = 64;
/// Reach of a jump, less the size of a thunk and the site.
const REACH: u64 = (128 << 20) - 4096;

/// Finds the sites in code of 32-bit programs.
pub const FIND_IN_32_BITS: Option<crate::target::sites::Find> = Some(arm::find);

/// Finds the sites in `code`, whose address in the file is `address`.
pub fn find(code: &[u8], address: u64, _ends: &[u64], sites: &mut Vec<Site>) {
    let (instructions, _) = code.as_chunks::<INSTRUCTION>();
    let at = |index: usize| instructions.get(index).map(|bytes| u32::from_le_bytes(*bytes));
    for index in 0..instructions.len() {
        if at(index) != Some(SVC) {
            continue;
        }
        let before = (1..=LOOK_BACK).map_while(|back| at(index.checked_sub(back)?));
        let before = before.take_while(|instruction| *instruction != AT_CANCELLATION);
        let shape = match source_of_number(before) {
            Some(Shape::Constant(nr)) if !WATCHED.contains(&nr) => continue,
            Some(Shape::Go) if at(index + 1) != Some(GO_CHECK) => continue,
            Some(shape) => shape,
            None => continue,
        };
        if sites.len() == MOST_CALLS {
            return;
        }
        sites.push(Site {
            address: address + (index * INSTRUCTION) as u64,
            shape,
        });
    }
}

/// Returns the source of x8's value: the last instruction that changes x8, given the instructions latest first.
fn source_of_number(latest_first: impl Iterator<Item = u32>) -> Option<Shape> {
    for instruction in latest_first {
        // mov x8, #imm16 or mov w8, #imm16
        if instruction & 0x7fe0_001f == 0x5280_0008 {
            return Some(Shape::Constant(instruction >> 5 & 0xffff));
        }
        return match instruction {
            // mov w8, w0
            0x2a00_03e8 => Some(Shape::Glibc),
            // mov x8, xN
            _ if instruction & 0xffe0_ffff == 0xaa00_03e8 => Some(Shape::Musl),
            // ldr x8, [sp, #8]
            0xf940_07e8 => Some(Shape::Go),
            // A branch, a call or an exception (C4.1.68 of the Arm ARM), or x8 changed in another way: its low five
            // bits name the register that most instructions write. Those that only read it there (stores) are treated
            // the same.
            _ if instruction & 0x1c00_0000 == 0x1400_0000 || instruction & 0x1f == 8 => None,
            _ => continue,
        };
    }
    None
}

/// Returns a `b` at `from` to `to`; `None` if it cannot reach.
pub(super) fn branch(from: u64, to: u64) -> Option<u32> {
    let distance = to.wrapping_sub(from) as i64;
    (distance.unsigned_abs() < REACH).then_some(0x1400_0000 | (distance >> 2) as u32 & 0x03ff_ffff)
}

/// Returns the thunk at `at` for a site at `site` (relocated), of at most [`THUNK_BYTES`].
///
/// In C code no register is known to be free: x16 and x30, which the call needs, are saved on the stack, which has no
/// red zone. In Go's code every register is free but those of the arguments, g and the return address, and the stack
/// has no room.
fn thunk(shape: Shape, site: u64, at: u64, doors: Doors) -> Vec<u8> {
    /// Index of the jump back among the instructions.
    const LAST: u64 = 8;
    let (before, door, after) = match shape {
        // mov x17, x30 ... mov x30, x17
        Shape::Go => (0xaa1e_03f1, doors.go, 0xaa11_03fe),
        // stp x16, x30, [sp, #-16]! ... ldp x16, x30, [sp], #16
        _ => (0xa9bf_7bf0, doors.c, 0xa8c1_7bf0),
    };
    let size = INSTRUCTION as u64;
    let instructions: [u32; LAST as usize + 2] = [
        before,
        CALL_DOOR[0],
        CALL_DOOR[1],
        FORWARD,
        // The hook returns here if it has made the call.
        after,
        FORWARD,
        after,
        SVC,
        // Where a jump reaches from the site to here, it also reaches back. A thunk that no jump points to gets an
        // instruction that traps.
        branch(at + LAST * size, site + size).unwrap_or(0),
        0, // aligns the literal
    ];
    let mut code: Vec<u8> = instructions.iter().flat_map(|i| i.to_le_bytes()).collect();
    code.extend(door.to_le_bytes());
    debug_assert!(code.len() <= THUNK_BYTES);
    code
}

/// Returns the thunk at `at` of a site at `site` (relocated), or the reason why there is none.
pub fn redirect(shape: &Shape, site: u64, at: u64, doors: Doors) -> Result<Thunk, String> {
    if let Shape::Arm(shape) = shape {
        return arm::redirect(*shape, site, at, doors);
    }
    /// Where the system call returns to: behind so many instructions of the thunk, and behind the site.
    const BEHIND: (u16, u16) = (8 * INSTRUCTION as u16, INSTRUCTION as u16);
    Ok(Thunk {
        code: thunk(*shape, site, at, doors),
        changes: changes(site, at).ok_or(OUT_OF_REACH)?,
        moved: vec![(BEHIND.1, BEHIND.0)],
        in_call: Some(BEHIND),
    })
}

/// Returns the changes that redirect a site at `from` to its thunk at `to`; `None` if a jump cannot reach.
fn changes(from: u64, to: u64) -> Option<Vec<Change>> {
    Some(vec![Change {
        address: from,
        original: SVC.to_le_bytes().to_vec(),
        replacement: branch(from, to)?.to_le_bytes().to_vec(),
    }])
}

/// Returns the bytes that must be in memory for a site to be redirected, each with its offset from the site.
pub fn expected(shape: &Shape) -> Vec<(i64, Vec<u8>)> {
    let bytes = match shape {
        Shape::Arm(shape) => arm::expected(*shape),
        _ => SVC.to_le_bytes().to_vec(),
    };
    vec![(0, bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(instructions: &[u32]) -> Vec<(u64, Shape)> {
        let code: Vec<u8> = instructions.iter().flat_map(|i| i.to_le_bytes()).collect();
        let mut sites = Vec::new();
        find(&code, 0x1000, &[], &mut sites);
        sites.iter().map(|site| (site.address, site.shape)).collect()
    }

    const NOP: u32 = 0xd503_201f;
    const MOV_X0_X1: u32 = 0xaa01_03e0;

    #[test]
    fn each_shape_is_found_and_lookalikes_are_not() {
        let mov_x8 = |nr: u32| 0xd280_0008 | nr << 5;
        assert_eq!(found(&[mov_x8(221), SVC]), [(0x1004, Shape::Constant(221))]);
        assert_eq!(found(&[mov_x8(281), MOV_X0_X1, SVC]), [(0x1008, Shape::Constant(281))]);
        assert_eq!(found(&[mov_x8(93), SVC]), [], "exit is not watched");
        assert_eq!(found(&[0x2a00_03e8, MOV_X0_X1, SVC]), [(0x1008, Shape::Glibc)]);
        assert_eq!(found(&[0xaa00_03e8, MOV_X0_X1, SVC]), [(0x1008, Shape::Musl)]);
        // mov x8, x1; mov x5, x7
        assert_eq!(
            found(&[0xaa01_03e8, AT_CANCELLATION, SVC]),
            [],
            "where threads are cancelled"
        );
        assert_eq!(found(&[0xf940_07e8, MOV_X0_X1, SVC, GO_CHECK]), [(0x1008, Shape::Go)]);
        assert_eq!(found(&[0xf940_07e8, MOV_X0_X1, SVC, NOP]), [], "not Go");
        assert_eq!(found(&[mov_x8(221), 0x1400_0002, SVC]), [], "a branch in between");
        assert_eq!(
            found(&[mov_x8(221), 0xf940_03e8, SVC]),
            [],
            "x8 is loaded with something else"
        );
        assert_eq!(found(&[SVC]), []);
    }

    #[test]
    fn a_thunk_leads_back_behind_its_site() {
        let doors = Doors { c: 0x7000, go: 0x8000 };
        for (site, at) in [(0x10_0000, 0x20_0000), (0x20_0000, 0x10_0000)] {
            let code = thunk(Shape::Constant(221), site, at, doors);
            let back = u32::from_le_bytes(code[32..36].try_into().unwrap());
            let distance = i64::from((back << 6) as i32 >> 6) * 4;
            assert_eq!((at + 32).wrapping_add_signed(distance), site + 4);
            assert_eq!(code[40..48], 0x7000u64.to_le_bytes());
        }
        assert_eq!(changes(0, 128 << 20), None);
    }
}
