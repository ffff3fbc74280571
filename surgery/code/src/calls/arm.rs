//! Arm, in the encoding of 32 bits: code is read backwards from `svc #0` to the write of r7.

use fastpath_image::Isa;

use super::{FoundCalls, Piece, find_words, word};

/// Largest number of instructions to look back.
const BEFORE: usize = 32;

pub(super) fn find(piece: &Piece<'_>, address: u64, found: &mut FoundCalls) {
    find_words(Isa::Arm, number_before, piece, address, found);
}

/// Returns the value of r7 at `at`.
fn number_before(bytes: &[u8], at: usize) -> Option<u64> {
    let mut register = 7;
    let mut added = 0;
    for back in 1..=BEFORE {
        let here = at.checked_sub(4 * back)?;
        let instruction = word(bytes, here)?;
        let target = register << 12;
        // Conditional instructions do not count.
        let is_always = instruction >> 28 == 0xe;
        let constant = if instruction & 0x0fff_f000 == 0x03a0_0000 | target {
            Some(modified(instruction))
        } else if instruction & 0x0ff0_f000 == 0x0300_0000 | target {
            Some(instruction >> 4 & 0xf000 | instruction & 0xfff)
        } else if instruction & 0x0f7f_f000 == 0x051f_0000 | target {
            literal(bytes, here, instruction)
        } else {
            None
        };
        if is_always && let Some(constant) = constant {
            return Some(u64::from(constant.wrapping_add(added)));
        }
        if is_always && instruction & 0x0fff_f000 == 0x0280_0000 | register << 16 | target {
            added = added.wrapping_add(modified(instruction));
        } else if is_always && instruction & 0x0fff_fff0 == 0x01a0_0000 | target {
            register = instruction & 15;
        } else if is_way_out(instruction, register) || may_write(instruction, register) {
            return None;
        }
    }
    None
}

/// Returns the constant of eight bits, rotated.
fn modified(instruction: u32) -> u32 {
    (instruction & 0xff).rotate_right(2 * (instruction >> 8 & 15))
}

/// Returns the value that ldr loads from a pool of constants near the code.
fn literal(bytes: &[u8], at: usize, instruction: u32) -> Option<u32> {
    let distance = (instruction & 0xfff) as usize;
    let base = at + 8;
    let from = if instruction & 1 << 23 != 0 {
        base + distance
    } else {
        base.checked_sub(distance)?
    };
    word(bytes, from)
}

/// Returns whether it is b, bx, svc, or writes the pc. A call keeps r4 to r11.
fn is_way_out(instruction: u32, register: u32) -> bool {
    let is_call = instruction & 0x0f00_0000 == 0x0b00_0000 || instruction & 0x0fff_fff0 == 0x012f_ff30;
    let is_branch = instruction & 0x0f00_0000 == 0x0a00_0000 || instruction & 0x0fff_fff0 == 0x012f_ff10;
    let writes_pc = instruction & 0x0c00_f000 == 0x0000_f000 && instruction & 0x0190_0000 != 0x0110_0000
        || instruction & 0x0e10_8000 == 0x0810_8000
        || instruction & 0x0c10_f000 == 0x0410_f000;
    let is_always = instruction >> 28 == 0xe;
    let is_system_call = instruction & 0x0f00_0000 == 0x0f00_0000;
    is_system_call || is_call && !(4..=11).contains(&register) || is_always && (is_branch || writes_pc)
}

/// Returns whether it may write the register. A wrong `true` misses a call; a wrong `false` invents one.
fn may_write(instruction: u32, register: u32) -> bool {
    let (first, second) = (instruction >> 16 & 15, instruction >> 12 & 15);
    match instruction >> 25 & 7 {
        // Data processing, multiplications, half words. A comparison writes no register.
        0 | 1 => {
            let is_comparison = instruction & 0x0190_0000 == 0x0110_0000;
            !is_comparison && (second == register || instruction & 0x0e00_0090 == 0x0000_0090 && first == register)
        }
        // Load or store of a word or a byte.
        2 | 3 => instruction & 1 << 20 != 0 && second == register || first == register,
        // Load or store of several registers.
        4 => instruction & 1 << 20 != 0 && instruction & 1 << register != 0 || first == register,
        // Branches.
        5 => false,
        // Coprocessors.
        _ => second == register || first == register,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{TimeCall, calls_of};
    use super::*;

    fn found(code: &[u32]) -> Vec<(u64, TimeCall)> {
        calls_of(Isa::Arm, code.iter().map(|word| word.to_le_bytes()))
    }

    #[test]
    fn a_number_is_followed_into_r7() {
        assert_eq!(found(&[0xe300_7107, 0xef00_0000]), [(4, TimeCall::ClockGettime)]); // movw r7, #263
        assert_eq!(
            found(&[0xe3a0_704e, 0xe1a0_0001, 0xef00_0000]),
            [(8, TimeCall::Gettimeofday)]
        ); // mov r7, #78
        assert_eq!(
            found(&[0xe3a0_7c01, 0xe287_7007, 0xef00_0000]),
            [(8, TimeCall::ClockGettime)]
        ); // mov #256; add #7
        // ldr r7, [pc, #4]; svc; bx lr; nop; .word 403
        assert_eq!(
            found(&[0xe59f_7004, 0xef00_0000, 0xe12f_ff1e, 403]),
            [(4, TimeCall::ClockGettime64)]
        );
        assert_eq!(
            found(&[0xe300_3107, 0xe1a0_7003, 0xef00_0000]),
            [(8, TimeCall::ClockGettime)]
        ); // movw r3; mov r7, r3
    }

    #[test]
    fn a_number_that_does_not_arrive_is_not_one() {
        assert_eq!(found(&[0xe300_7107, 0xe3a0_7001, 0xef00_0000]), []); // mov r7, #1
        assert_eq!(found(&[0xe300_7107, 0xe12f_ff1e, 0xef00_0000]), []); // bx lr
        assert_eq!(found(&[0xe300_7107, 0xe8bd_8080, 0xef00_0000]), []); // pop {r7, pc}
        assert_eq!(found(&[0xe300_7107, 0xe593_7000, 0xef00_0000]), []); // ldr r7, [r3]
        assert_eq!(found(&[0x0300_7107, 0xef00_0000]), []); // only if equal
        assert_eq!(found(&[0xe300_3107, 0xef00_0000]), []);
    }
}
