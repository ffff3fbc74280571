//! Arm, in the encoding of 16 and 32 bits: code is decoded forwards from each half word before a system call.
//!
//! glibc makes system calls from Thumb through a helper, because its compiler reserves r7: the number is in r12 there.

use fastpath_image::Isa;
use memchr::memmem;

use super::{CallKind, CodeSite, FoundCalls, Piece, call_of, half, majority, word};

/// Bytes before a system call in which to look for its number.
const BEFORE: usize = 64;
/// svc #0
const SVC: [u8; 2] = 0xdf00_u16.to_le_bytes();
/// mov r7, ip; svc #0
const HELPER: [u8; 4] = [0x67, 0x46, 0x00, 0xdf];

pub(super) fn find(piece: &Piece<'_>, address: u64, found: &mut FoundCalls) {
    let mut look = |at: usize, register: usize| {
        if found.is_affordable()
            && let Some(call) = number_before(piece.bytes, at, register).and_then(|number| call_of(Isa::Arm, number))
        {
            found.add(CodeSite {
                address: address.wrapping_add(at as u64),
                call,
                by: CallKind::SystemCall,
            });
        }
    };
    let is_aligned = |at: usize| address.wrapping_add(at as u64).is_multiple_of(2);
    for at in memmem::find_iter(piece.bytes, &SVC) {
        if piece.own.contains(&at) && is_aligned(at) {
            look(at, 7);
        }
    }
    // The helper starts some bytes before, where it saves the registers that it will use.
    let helpers: Vec<usize> = memmem::find_iter(piece.bytes, &HELPER)
        .filter(|at| is_aligned(*at))
        .take(4)
        .collect();
    if helpers.is_empty() {
        return;
    }
    for at in piece.own.clone().step_by(2).filter(|at| is_aligned(*at)) {
        if let Some(target) = call_target(piece.bytes, at)
            && helpers
                .iter()
                .any(|helper| (helper.saturating_sub(8)..=*helper).contains(&target))
        {
            look(at, 12);
        }
    }
}

/// Returns the target of a `bl` at `at`.
fn call_target(bytes: &[u8], at: usize) -> Option<usize> {
    let (first, second) = (u32::from(half(bytes, at)?), u32::from(half(bytes, at + 2)?));
    if first & 0xf800 != 0xf000 || second & 0xd000 != 0xd000 {
        return None;
    }
    let sign = first >> 10 & 1;
    let bit = |position: u32| !(second >> position ^ sign) & 1;
    let distance = bit(13) << 23 | bit(11) << 22 | (first & 0x3ff) << 12 | (second & 0x7ff) << 1;
    let distance = if sign == 1 {
        i64::from(distance) - (1 << 24)
    } else {
        i64::from(distance)
    };
    usize::try_from(at as i64 + 4 + distance).ok()
}

/// Returns the value of the register at `at`: that on which most of the decodings agree that arrive there, one from each
/// half word before.
fn number_before(bytes: &[u8], at: usize, register: usize) -> Option<u64> {
    let halves = at.min(BEFORE) / 2;
    let first = at - 2 * halves;
    let size = |index: usize| Some(if is_wide(half(bytes, first + 2 * index)?) { 2 } else { 1 });
    // Whether decoding from each half word arrives.
    let mut arrives = vec![false; halves + 1];
    arrives[halves] = true;
    for index in (0..halves).rev() {
        let next = index + size(index)?;
        arrives[index] = next <= halves && arrives[next];
    }
    let mut values = Vec::new();
    for start in (0..halves).filter(|index| arrives[*index]) {
        let mut registers = [None; 16];
        let mut index = start;
        while index < halves {
            step(bytes, first + 2 * index, &mut registers)?;
            index += size(index)?;
        }
        // A decoding that starts behind the load cannot determine the value.
        values.extend(registers[register]);
    }
    majority(values).map(u64::from)
}

fn is_wide(first: u16) -> bool {
    first >> 11 >= 0b11101
}

/// Steps over one instruction. Forgetting a register wrongly misses a call; keeping it wrongly invents one.
fn step(bytes: &[u8], at: usize, registers: &mut [Option<u32>; 16]) -> Option<()> {
    let first = half(bytes, at)?;
    let low = usize::from(first & 7);
    let middle = usize::from(first >> 8 & 7);
    let constant = u32::from(first & 0xff);
    if is_wide(first) {
        wide(bytes, at, u32::from(first), u32::from(half(bytes, at + 2)?), registers);
        return Some(());
    }
    match first >> 11 {
        0b00100 => registers[middle] = Some(constant),
        0b00101 => {}
        0b00110 => registers[middle] = registers[middle].map(|value| value.wrapping_add(constant)),
        0b00111 => registers[middle] = registers[middle].map(|value| value.wrapping_sub(constant)),
        0b01000 if first & 0xff00 == 0x4600 => {
            let target = low | usize::from(first >> 4 & 8);
            registers[target] = registers[usize::from(first >> 3 & 15)];
        }
        0b01000 if first & 0xff00 == 0x4700 => *registers = [None; 16],
        0b01000 if first & 0xff00 == 0x4400 => registers[low | usize::from(first >> 4 & 8)] = None,
        0b01001 => registers[middle] = literal(bytes, at, usize::from(first & 0xff) * 4),
        // Stores.
        0b01100 | 0b01110 | 0b10000 | 0b10010 | 0b11000 => {}
        0b01010 if first & 0xfe00 != 0x5600 => {}
        0b10011..=0b10101 => registers[middle] = None,
        // push writes none, pop those in its list; the rest is sp, hints and extensions.
        0b10110 | 0b10111 if first & 0xfe00 == 0xb400 => {}
        0b10110 | 0b10111 if first & 0xfe00 == 0xbc00 => forget(registers, first & 0xff),
        0b11001 => forget(registers, first & 0xff),
        // svc, or a conditional branch.
        0b11010 | 0b11011 if first & 0xff00 == 0xdf00 => registers[0] = None,
        0b11010 | 0b11011 => {}
        0b11100 => *registers = [None; 16],
        _ => registers[low] = None,
    }
    Some(())
}

fn forget(registers: &mut [Option<u32>; 16], list: u16) {
    for (index, register) in registers.iter_mut().enumerate() {
        if list >> index & 1 != 0 {
            *register = None;
        }
    }
}

fn wide(bytes: &[u8], at: usize, first: u32, second: u32, registers: &mut [Option<u32>; 16]) {
    let target = (second >> 8 & 15) as usize;
    let other = (second >> 12 & 15) as usize;
    let constant = first << 1 & 0x800 | second >> 4 & 0x700 | second & 0xff;
    if first & 0xfbf0 == 0xf240 && second & 0x8000 == 0 {
        registers[target] = Some((first & 15) << 12 | constant);
    } else if first & 0xfbef == 0xf04f && second & 0x8000 == 0 {
        registers[target] = Some(modified(constant));
    } else if first == 0xf8df {
        registers[other] = literal(bytes, at, (second & 0xfff) as usize);
    } else if first & 0xf800 == 0xf000 && second & 0xd000 == 0xd000 {
        // A call keeps r4 to r11.
        for index in [0, 1, 2, 3, 12, 14] {
            registers[index] = None;
        }
    } else if first & 0xf800 == 0xf000 && second & 0xd000 == 0x9000 {
        *registers = [None; 16];
    } else {
        registers[target] = None;
        registers[other] = None;
        let is_load_of_many = first & 0xfe50 == 0xe810;
        if is_load_of_many {
            forget(registers, second as u16);
        }
    }
}

/// Returns the constant of eight bits, spread or rotated.
fn modified(constant: u32) -> u32 {
    let byte = constant & 0xff;
    match constant >> 8 {
        0 => byte,
        1 => byte << 16 | byte,
        2 => byte << 24 | byte << 8,
        3 => byte << 24 | byte << 16 | byte << 8 | byte,
        _ => (0x80 | constant & 0x7f).rotate_right(constant >> 7),
    }
}

/// Returns the value that ldr loads from a pool of constants behind the code. The piece's offsets have the alignment of
/// the code, because pieces begin at whole pages or at the beginning of a segment.
fn literal(bytes: &[u8], at: usize, distance: usize) -> Option<u32> {
    word(bytes, ((at + 4) & !3) + distance)
}

#[cfg(test)]
mod tests {
    use super::super::{TimeCall, calls_of};
    use super::*;

    fn found(code: &[u16]) -> Vec<(u64, TimeCall)> {
        calls_of(Isa::Arm, code.iter().map(|half| half.to_le_bytes()))
    }

    #[test]
    fn a_number_is_followed_into_r7() {
        assert_eq!(found(&[0xf240, 0x1707, 0xdf00]), [(4, TimeCall::ClockGettime)]); // movw r7, #263
        assert_eq!(found(&[0x274e, 0x4608, 0xdf00]), [(4, TimeCall::Gettimeofday)]); // movs r7, #78; mov r0, r1
        assert_eq!(found(&[0x27ff, 0x3708, 0xdf00]), [(4, TimeCall::ClockGettime)]); // movs r7, #255; adds r7, #8
        assert_eq!(found(&[0x4f00, 0xdf00, 403, 0]), [(2, TimeCall::ClockGettime64)]); // ldr r7, [pc]
    }

    #[test]
    fn a_number_that_does_not_arrive_is_not_one() {
        assert_eq!(found(&[0xf240, 0x1707, 0x2701, 0xdf00]), []); // movs r7, #1
        assert_eq!(found(&[0xf240, 0x1707, 0x4770, 0xdf00]), []); // bx lr
        assert_eq!(found(&[0xf240, 0x1707, 0xbd80, 0xdf00]), []); // pop {r7, pc}
        assert_eq!(found(&[0xf240, 0x1607, 0xdf00]), []); // movw r6
    }

    #[test]
    fn a_number_is_followed_through_glibcs_helper() {
        // movw ip, #263; bl helper; bx lr; helper: push {r7, lr}; mov r7, ip; svc #0; pop {r7, pc}
        let code = [0xf240, 0x1c07, 0xf000, 0xf801, 0x4770, 0xb580, 0x4667, 0xdf00, 0xbd80];
        assert_eq!(found(&code), [(4, TimeCall::ClockGettime)]);
        let another = [0xf240, 0x1c09, 0xf000, 0xf801, 0x4770, 0xb580, 0x4667, 0xdf00, 0xbd80];
        assert_eq!(found(&another), []);
    }
}
