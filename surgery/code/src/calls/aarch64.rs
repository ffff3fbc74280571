//! AArch64: instructions are aligned words, so code can be read backwards from `svc #0` to the write of x8.

use fastpath_image::Isa;

use super::{FoundCalls, Piece, find_words, word};

/// Largest number of instructions to look back, and forward.
const BEFORE: usize = 32;

pub(super) fn find(piece: &Piece<'_>, address: u64, found: &mut FoundCalls) {
    find_words(Isa::Aarch64, number_before, piece, address, found);
    let skipped = address.wrapping_neg() as usize % 4;
    for at in (skipped..piece.own.end).step_by(4).filter(|at| piece.own.contains(at)) {
        if word(piece.bytes, at).is_some_and(is_counter_read) {
            found.add_counter_read(address.wrapping_add(at as u64), is_scaled(piece.bytes, at + 4));
        }
    }
}

/// mrs of CNTVCT_EL0 or CNTVCTSS_EL0, to any register.
fn is_counter_read(instruction: u32) -> bool {
    matches!(instruction & !31, 0xd53b_e040 | 0xd53b_e0c0)
}

/// Returns whether something is scaled on the straight line from `at`: umulh; or ucvtf or scvtf of a whole register, and
/// then fmul or fdiv. umulh with a constant, whose last part is set by movk, is a division, as of a seed.
fn is_scaled(bytes: &[u8], at: usize) -> bool {
    let line = (at..).step_by(4).take(BEFORE).map_while(|at| word(bytes, at));
    let (mut is_float, mut constants) = (false, 0_u32);
    let mut line = line.take_while(|instruction| !is_way_out(*instruction));
    line.any(|instruction| {
        is_float |= instruction & 0xfffe_fc00 == 0x9e62_0000;
        let is_product = matches!(instruction & 0xffe0_fc00, 0x1e60_0800 | 0x1e60_1800);
        if instruction & 0xff80_0000 == 0xf280_0000 {
            constants |= 1 << (instruction & 31);
        }
        let factors = 1 << (instruction >> 5 & 31) | 1 << (instruction >> 16 & 31);
        let is_whole_product = instruction & 0xffe0_fc00 == 0x9bc0_7c00 && constants & factors == 0;
        is_whole_product || (is_float && is_product)
    })
}

/// Returns the value of x8 at `at`.
fn number_before(bytes: &[u8], at: usize) -> Option<u64> {
    let mut register = 8;
    for back in 1..=BEFORE {
        let instruction = word(bytes, at.checked_sub(4 * back)?)?;
        if is_way_out(instruction) {
            return None;
        }
        // movz of 32 or 64 bits, not shifted.
        if instruction & 0x7fe0_001f == 0x5280_0000 | register {
            return Some(u64::from(instruction >> 5 & 0xffff));
        }
        // mov from another register: orr with the zero register.
        if instruction & 0x7fe0_ffff == 0x2a00_03e0 | register {
            register = instruction >> 16 & 31;
        } else if may_write(instruction, register) {
            return None;
        }
    }
    None
}

/// Returns whether the instruction behind it is reached from elsewhere or with other registers: b, bl, br, blr, ret,
/// svc. A conditional branch continues.
fn is_way_out(instruction: u32) -> bool {
    instruction & 0x7c00_0000 == 0x1400_0000
        || instruction & 0xfe00_0000 == 0xd600_0000
        || instruction & 0xff00_0000 == 0xd400_0000
}

/// Returns whether it may write the register. A wrong `true` misses a call; a wrong `false` invents one.
fn may_write(instruction: u32, register: u32) -> bool {
    let is_access = instruction & 0x0a00_0000 == 0x0800_0000;
    let is_store = is_access && instruction & 0x00c0_0000 == 0;
    let is_pair = instruction & 0x3800_0000 == 0x2800_0000;
    // cmp, tst and similar write the zero register; branches and barriers write none.
    let is_branch = instruction & 0x1c00_0000 == 0x1400_0000;
    let first = !is_store && !is_branch && instruction & 31 == register;
    let second = is_pair && !is_store && instruction >> 10 & 31 == register;
    // Accesses with pre- or post-indexing change their base.
    let base = is_access && instruction >> 5 & 31 == register;
    first || second || base
}

#[cfg(test)]
mod tests {
    use super::super::{CallKind, TimeCall, sites_of};
    use super::*;

    fn found(code: &[u32]) -> Vec<(u64, TimeCall, CallKind)> {
        let bytes: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
        sites_of(Isa::Aarch64, &bytes)
    }

    #[test]
    fn a_number_is_followed_into_x8() {
        let site = |at| [(at, TimeCall::ClockGettime, CallKind::SystemCall)];
        assert_eq!(found(&[0xd280_0e28, 0xd400_0001]), site(4)); // mov x8, #113
        assert_eq!(found(&[0x5280_0e28, 0xaa01_03e0, 0xd400_0001]), site(8)); // mov w8, #113; mov x0, x1
        assert_eq!(found(&[0xd280_0e22, 0xaa02_03e8, 0xd400_0001]), site(8)); // mov x2, #113; mov x8, x2
    }

    #[test]
    fn a_read_of_the_counter_counts_with_whether_it_is_scaled() {
        let found = |code: &[u32]| {
            let bytes: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
            super::super::counter_reads_of(Isa::Aarch64, &bytes)
        };
        assert_eq!(found(&[0xd53b_e040, 0x9bc1_7c00, 0xd65f_03c0]), [(0, true)]); // mrs x0, cntvct_el0; umulh; ret
        // mrs x3, cntvctss_el0; ucvtf d0, x3; fmul d0, d0, d1
        assert_eq!(found(&[0xd53b_e0c3, 0x9e63_0060, 0x1e61_0800]), [(0, true)]);
        assert_eq!(found(&[0xd53b_e0c3, 0x9e63_0060]), [(0, false)]);
        assert_eq!(found(&[0xd53b_e040, 0xd65f_03c0, 0x9bc1_7c00]), [(0, false)]); // ret before it
        assert_eq!(found(&[0xd53b_e000]), []); // cntfrq_el0
        // movk x1, #0xaaab; umulh x0, x0, x1: a division
        assert_eq!(found(&[0xd53b_e040, 0xf295_5561, 0x9bc1_7c00]), [(0, false)]);
    }

    #[test]
    fn a_number_that_does_not_arrive_is_not_one() {
        assert_eq!(found(&[0xd280_0e28, 0xd280_15c8, 0xd400_0001]), []); // mov x8, #174
        assert_eq!(found(&[0xd280_0e28, 0xd65f_03c0, 0xd400_0001]), []); // ret
        assert_eq!(found(&[0xd280_0e28, 0x9400_0001, 0xd400_0001]), []); // bl
        assert_eq!(found(&[0xd280_0e28, 0xf940_0008, 0xd400_0001]), []); // ldr x8, [x0]
        assert_eq!(found(&[0xd280_0e21, 0xd400_0001]), []); // mov x1, #113
        assert_eq!(found(&[0xd280_0e28]), []);
    }
}
