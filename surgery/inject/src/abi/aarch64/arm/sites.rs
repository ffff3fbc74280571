//! Finds system call instructions of 32-bit Arm code, and builds their thunks, in the state of that code.
//!
//! A jump has four bytes. In A32 code it replaces the `svc`, as on AArch64. In T32 code, whose `svc` has two bytes, it replaces
//! what moves the number into r7 right before:
//!
//! - `mov.w r7, #NR`, of four bytes: a wrapper for one call;
//! - `push {r7, lr}; mov r7, ip`, of two bytes each: `__libc_do_syscall`, by which glibc's compiled code makes most calls. There
//!   the call is made in its place, because a thread that is cancelled unwinds from it;
//! - `movs r7, #NR` or `mov r7, rN`, of two bytes, and the `svc`: in musl;
//! - glibc's `syscall()` loads its last arguments by four bytes in between.
//!
//! Go's assembly loads r7 from the stack, which has no room for the hook: it is left alone.
//!
//! Encodings: Arm Architecture Reference Manual, F3.1 (T32) and F4.1 (A32).

use fastpath_code::rescue::thunk::{Change, Thunk};
use fastpath_image::Isa;

use crate::target::sites::{Doors, MOST_CALLS, OUT_OF_REACH, Site, watched};

use super::super::shape::{ArmShape, Shape};

/// `svc #0`
const SVC: u32 = 0xef00_0000;
const SVC_T32: u16 = 0xdf00;
/// `mov r7, pc`
const MOV_R7_PC: u16 = 0x467f;
/// `nop`
const NOP: u16 = 0xbf00;
/// glibc's `syscall()`: `mov r7, r0; mov r0, r1; mov r1, r2; mov r2, r3; ldm.w ip, {r3, r4, r5, r6}`
const SYSCALL: [u16; 6] = [0x4607, 0x4608, 0x4611, 0x461a, 0xe89c, 0x0078];
/// glibc's `__libc_do_syscall`: `push {r7, lr}; mov r7, ip`
const DO_SYSCALL: [u16; 2] = [0xb580, 0x4667];
/// `ldm ip, {r2, r3, r4, r5, r6}`, before the `svc` of the calls at which a thread can be cancelled: the C library decides by the thread's
/// address whether it is in one.
const AT_CANCELLATION: u32 = 0xe89c_007c;
/// Number of instructions before an `svc`, of T32 code in units of two bytes, that are searched for its number.
const LOOK_BACK: usize = 32;

/// Finds the sites in `code`, whose address in the file is `address`.
pub fn find(code: &[u8], address: u64, _ends: &[u64], sites: &mut Vec<Site>) {
    let (halves, _) = code.as_chunks::<2>();
    let half = |index: usize| halves.get(index).map(|bytes| u16::from_le_bytes(*bytes));
    let word = |index: usize| Some(u32::from(half(index)?) | u32::from(half(index + 1)?) << 16);
    for index in 0..halves.len() {
        let (first, shape) = if half(index) == Some(SVC_T32) {
            match of_t32(|back| index.checked_sub(back).and_then(half).unwrap_or(0)) {
                Some(shape @ ArmShape::WithSvc(_)) => (index - 1, shape),
                Some(shape) => (index - 2, shape),
                None => continue,
            }
        } else if index % 2 == 0 && word(index) == Some(SVC) {
            let before = (1..=LOOK_BACK).map_while(|back| word(index.checked_sub(2 * back)?));
            if !makes_watched_call(before) {
                continue;
            }
            (index, ArmShape::A32)
        } else {
            continue;
        };
        if sites.len() == MOST_CALLS {
            return;
        }
        sites.push(Site {
            address: address + 2 * first as u64,
            shape: Shape::Arm(shape),
        });
    }
}

/// Returns whether the hook watches the call of this number.
fn is_watched(number: u32) -> bool {
    let calls = &Isa::Arm.facts().calls;
    let with_64_bits = [calls.clock_settime64, calls.clock_adjtime64];
    watched(Isa::Arm).contains(&number) || with_64_bits.contains(&Some(number))
}

/// Returns the shape of an `svc` of T32 code; `before` returns the two bytes so many instructions of two bytes before it.
fn of_t32(before: impl Fn(usize) -> u16) -> Option<ArmShape> {
    let constant = |back| constant([before(back + 1), before(back)]);
    let (first, second) = (before(2), before(1));
    let is_for_any = (1..=SYSCALL.len()).all(|back| before(back) == SYSCALL[SYSCALL.len() - back]);
    if is_for_any
        || [first, second] == DO_SYSCALL
        || constant(1).is_some_and(|(register, number)| register == 7 && is_watched(number))
    {
        return Some(ArmShape::Before([first, second]));
    }
    // movs r7, #imm8
    if second & 0xff00 == 0x2700 {
        return is_watched(u32::from(second & 0xff)).then_some(ArmShape::WithSvc(second));
    }
    // mov r7, rN, which may have a constant
    if second & 0xff87 != 0x4607 || second == MOV_R7_PC {
        return None;
    }
    let is_source = |(register, _): &(u16, u32)| *register == second >> 3 & 0xf;
    let known = (2..=LOOK_BACK).filter_map(constant).find(is_source);
    known
        .is_none_or(|(_, number)| is_watched(number))
        .then_some(ArmShape::WithSvc(second))
}

/// Returns the register and the value that an instruction of four bytes of T32 code loads: `movw`, or `mov.w`.
fn constant([first, second]: [u16; 2]) -> Option<(u16, u32)> {
    let immediate = u32::from(second & 0xff) | u32::from(second >> 12 & 7) << 8 | u32::from(first >> 10 & 1) << 11;
    let value = match first & 0xfbff {
        movw if movw & 0xfff0 == 0xf240 => immediate | u32::from(first & 0xf) << 12,
        0xf04f => expanded(immediate)?,
        _ => return None,
    };
    (second & 0x8000 == 0).then_some((second >> 8 & 0xf, value))
}

/// Returns the value of a modified immediate of T32 code, but for those whose bytes repeat.
fn expanded(immediate: u32) -> Option<u32> {
    match immediate >> 8 {
        0 => Some(immediate),
        1..4 => None,
        _ => Some((0x80 | immediate & 0x7f).rotate_right(immediate >> 7)),
    }
}

/// Returns whether an `svc` of A32 code makes a call that is watched, or any call, given the instructions before it, latest first.
fn makes_watched_call(latest_first: impl Iterator<Item = u32>) -> bool {
    for instruction in latest_first.take_while(|instruction| *instruction != AT_CANCELLATION) {
        // mov r7, #imm; movw r7, #imm16; mov r7, rN
        if instruction & 0xffff_f000 == 0xe3a0_7000 {
            return is_watched((instruction & 0xff).rotate_right(instruction >> 7 & 0x1e));
        }
        if instruction & 0xfff0_f000 == 0xe300_7000 {
            return is_watched(instruction >> 4 & 0xf000 | instruction & 0xfff);
        }
        if instruction & 0xffff_fff0 == 0xe1a0_7000 {
            return true;
        }
        // A branch, a call or an exception, or r7 changed in another way. Those that only read r7 in its place are treated the same.
        let is_branch = instruction & 0x0e00_0000 == 0x0a00_0000
            || instruction & 0x0fff_ffd0 == 0x012f_ff10
            || instruction & 0x0f00_0000 == 0x0f00_0000;
        let loads_r7 = instruction & 0x0e10_0080 == 0x0810_0080;
        if is_branch || loads_r7 || instruction >> 12 & 0xf == 7 {
            return false;
        }
    }
    false
}

/// Returns `b to` of A32 code at `from`; `None` if it cannot reach.
fn branch(from: u64, to: u64) -> Option<u32> {
    let distance = to.wrapping_sub(from + 8) as i64;
    let reached = (-(1 << 25)..1 << 25).contains(&distance);
    reached.then_some(0xea00_0000 | (distance >> 2) as u32 & 0xff_ffff)
}

/// Returns `b.w to` of T32 code at `from`; `None` if it cannot reach.
fn branch_t32(from: u64, to: u64) -> Option<[u16; 2]> {
    let distance = to.wrapping_sub(from + 4) as i64;
    let bits = |lowest: u32, count: u32| (distance >> lowest) as u16 & ((1 << count) - 1);
    let sign = bits(24, 1);
    let [j1, j2] = [23, 22].map(|bit| 1 ^ bits(bit, 1) ^ sign);
    let reached = (-(1 << 24)..1 << 24).contains(&distance);
    reached.then_some([
        0xf000 | sign << 10 | bits(12, 10),
        0x9000 | j1 << 13 | j2 << 11 | bits(1, 11),
    ])
}

/// Returns the thunk at `at` of a site at `site` (relocated), and the jump to it; `None` if a jump cannot reach. The hook returns
/// four bytes further on if it has made the call.
fn thunk(shape: ArmShape, site: u64, at: u64, door: u64) -> Option<(Vec<u8>, Vec<u8>)> {
    /// Offset of the literal.
    const LITERAL: usize = 36;
    let bytes = |halves: &[u16]| halves.iter().flat_map(|half| half.to_le_bytes()).collect::<Vec<u8>>();
    let (mut code, jump) = match shape {
        ArmShape::A32 => {
            let words = [
                0xe92d_5000, // push {ip, lr}
                0xe59f_c018, // ldr ip, the literal
                0xe12f_ff3c, // blx ip
                0xea00_0001, // b by three instructions
                0xe8bd_5000, // pop {ip, lr}
                branch(at + 20, site + 4)?,
                0xe8bd_5000,
                SVC,
                branch(at + 32, site + 4)?,
            ];
            let code: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
            (code, branch(site, at)?.to_le_bytes().to_vec())
        }
        ArmShape::Before(_) | ArmShape::WithSvc(_) => {
            let (displaced, behind) = match shape {
                ArmShape::WithSvc(instruction) => ([instruction, NOP], site + 4),
                ArmShape::Before(instruction) => (instruction, site + 6),
                ArmShape::A32 => return None,
            };
            let (call, next) = match shape {
                ArmShape::WithSvc(_) => (SVC_T32, behind),
                _ => (NOP, site + 4),
            };
            let [push, pop] = [[0xe92d, 0x5000], [0xe8bd, 0x5000]]; // {ip, lr}
            let parts: [&[u16]; 10] = [
                &displaced,
                &push,
                &[0xf8df, 0xc018], // ldr.w ip, the literal
                &[0x47e0],         // blx ip
                &branch_t32(0, 12)?,
                &pop,
                &branch_t32(at + 22, behind)?,
                &pop,
                &[call],
                &branch_t32(at + 32, next)?,
            ];
            (bytes(&parts.concat()), bytes(&branch_t32(site, at)?))
        }
    };
    debug_assert_eq!(code.len(), LITERAL);
    code.extend((door as u32).to_le_bytes());
    Some((code, jump))
}

/// Returns the thunk at `at` of a site at `site` (relocated), or the reason why there is none.
pub fn redirect(shape: ArmShape, site: u64, at: u64, doors: Doors) -> Result<Thunk, String> {
    let (code, replacement) = thunk(shape, site, at, doors.c).ok_or(OUT_OF_REACH)?;
    let mut original = expected(shape);
    original.truncate(replacement.len());
    Ok(Thunk {
        code,
        changes: vec![Change {
            address: site,
            original,
            replacement,
        }],
        moved: Vec::new(),
        in_call: None,
    })
}

/// Returns the bytes that must be in memory for a site to be redirected.
pub fn expected(shape: ArmShape) -> Vec<u8> {
    let bytes = |halves: &[u16]| halves.iter().flat_map(|half| half.to_le_bytes()).collect();
    match shape {
        ArmShape::A32 => SVC.to_le_bytes().to_vec(),
        ArmShape::Before([first, second]) => bytes(&[first, second, SVC_T32]),
        ArmShape::WithSvc(instruction) => bytes(&[instruction, SVC_T32]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(halves: &[u16]) -> Vec<(u64, Shape)> {
        let code: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
        let mut sites = Vec::new();
        find(&code, 0x1000, &[], &mut sites);
        sites.iter().map(|site| (site.address, site.shape)).collect()
    }

    fn found_in_a32(words: &[u32]) -> Vec<(u64, Shape)> {
        let halves = words.iter().flat_map(|word| [*word as u16, (*word >> 16) as u16]);
        found(&halves.collect::<Vec<u16>>())
    }

    #[test]
    fn each_shape_is_found_and_lookalikes_are_not() {
        let before = |instruction| Shape::Arm(ArmShape::Before(instruction));
        let with_svc = |instruction| Shape::Arm(ArmShape::WithSvc(instruction));
        // push {r7}; mov.w r7, #11: Debian 12's execve, and unshare, by movw
        let execve = [0xf04f, 0x070b];
        assert_eq!(
            found(&[&[0xb480][..], &execve, &[SVC_T32]].concat()),
            [(0x1002, before(execve))]
        );
        assert_eq!(found(&[0xf240, 0x1751, SVC_T32]), [(0x1000, before([0xf240, 0x1751]))]);
        // mov.w r7, #404, which is a rotated byte: clock_settime64
        assert_eq!(found(&[0xf44f, 0x77ca, SVC_T32]), [(0x1000, before([0xf44f, 0x77ca]))]);
        assert_eq!(
            found(&[&SYSCALL[..], &[SVC_T32]].concat()),
            [(0x1008, before([0xe89c, 0x0078]))]
        );
        assert_eq!(
            found(&[DO_SYSCALL[0], DO_SYSCALL[1], SVC_T32]),
            [(0x1000, before(DO_SYSCALL))]
        );
        // mov r7, r6; movs r7, #11
        assert_eq!(found(&[0x4637, SVC_T32]), [(0x1000, with_svc(0x4637))]);
        assert_eq!(found(&[0x270b, SVC_T32]), [(0x1000, with_svc(0x270b))]);
        // movw r3, #337, or #292; mov r2, r7; mov r7, r3: musl's unshare
        let (unshare, other) = (
            [0xf240, 0x1351, 0x463a, 0x461f, SVC_T32],
            [0xf240, 0x1324, 0x463a, 0x461f, SVC_T32],
        );
        assert_eq!(found(&unshare), [(0x1006, with_svc(0x461f))]);
        assert_eq!(found(&other), [], "another constant");
        assert_eq!(found(&[0xf04f, 0x0704, SVC_T32]), [], "write is not watched");
        assert_eq!(found(&[0x2704, SVC_T32]), []);
        assert_eq!(found(&[0x460b, SVC_T32]), [], "not r7");
        assert_eq!(found(&[SVC_T32]), []);

        let a32 = Shape::Arm(ArmShape::A32);
        let (execve, mov_r0_r1) = (0xe3a0_700b, 0xe1a0_0001);
        assert_eq!(found_in_a32(&[execve, mov_r0_r1, SVC]), [(0x1008, a32)]);
        assert_eq!(found_in_a32(&[0xe300_7151, SVC]), [(0x1004, a32)], "movw r7, #337");
        assert_eq!(found_in_a32(&[0xe3a0_7f65, SVC]), [(0x1004, a32)], "mov r7, #404");
        assert_eq!(
            found_in_a32(&[0xe1a0_7000, mov_r0_r1, SVC]),
            [(0x1008, a32)],
            "mov r7, r0"
        );
        let cancelled = [0xe1a0_7001, 0xe1a0_0002, 0xe1a0_1003, AT_CANCELLATION, SVC];
        assert_eq!(found_in_a32(&cancelled), [], "where threads are cancelled");
        assert_eq!(found_in_a32(&[0xe3a0_7004, SVC]), [], "write is not watched");
        assert_eq!(found_in_a32(&[execve, 0xeb00_0001, SVC]), [], "a call in between");
        assert_eq!(
            found_in_a32(&[execve, 0xe59d_7004, SVC]),
            [],
            "r7 is loaded with something else: Go"
        );
    }

    /// Returns where `b.w` at `from` goes.
    fn target(code: &[u8], index: usize, from: u64) -> u64 {
        let half = |at: usize| u32::from(u16::from_le_bytes(code[at..at + 2].try_into().unwrap()));
        let (first, second) = (half(index), half(index + 2));
        assert_eq!((first >> 11, second >> 14, second >> 12 & 1), (0x1e, 2, 1));
        let sign = first >> 10 & 1;
        let [i1, i2] = [second >> 13, second >> 11].map(|bit| 1 ^ bit & 1 ^ sign);
        let distance = sign << 24 | i1 << 23 | i2 << 22 | (first & 0x3ff) << 12 | (second & 0x7ff) << 1;
        (from + index as u64 + 4).wrapping_add_signed(i64::from((distance << 7) as i32 >> 7))
    }

    #[test]
    fn a_thunk_leads_back_behind_its_site() {
        for (site, at) in [(0x10_0002, 0x20_0000), (0x80_0002, 0x10_0040), (0x10_0002, 0xf0_0000)] {
            let (code, jump) = thunk(ArmShape::Before([0xf04f, 0x070b]), site, at, 0x7000).unwrap();
            assert_eq!(target(&jump, 0, site), at);
            assert_eq!(target(&code, 14, at), at + 26, "the call was not made");
            assert_eq!((target(&code, 22, at), target(&code, 32, at)), (site + 6, site + 4));
            let (code, _) = thunk(ArmShape::WithSvc(0x4667), site, at, 0x7000).unwrap();
            assert_eq!((target(&code, 22, at), target(&code, 32, at)), (site + 4, site + 4));
            assert_eq!(code[30..32], SVC_T32.to_le_bytes());
            // ldr.w ip, [pc, #24], where the pc is 12
            assert_eq!(
                (&code[8..12], &code[36..]),
                (&[0xdf, 0xf8, 0x18, 0xc0][..], &[0, 0x70, 0, 0][..])
            );

            let site = site & !3;
            let (code, jump) = thunk(ArmShape::A32, site, at, 0x7000).unwrap();
            let target = |bytes: &[u8], from: u64| {
                let word = u32::from_le_bytes(bytes.try_into().unwrap());
                (from + 8).wrapping_add_signed(i64::from((word << 8) as i32 >> 6))
            };
            assert_eq!(target(&jump, site), at);
            assert_eq!(target(&code[12..16], at + 12), at + 24);
            assert_eq!([20, 32].map(|i| target(&code[i..i + 4], at + i as u64)), [site + 4; 2]);
        }
        assert_eq!(thunk(ArmShape::WithSvc(0x4667), 0, 17 << 20, 0), None);
        assert_eq!(thunk(ArmShape::A32, 0, 33 << 20, 0), None);
    }
}
