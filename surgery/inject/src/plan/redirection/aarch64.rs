//! AArch64: one instruction, a `B` to the image. It replaces the first instruction, or the one after the `BTI` or
//! `PACIASP` that indirect branches must land on where the kernel maps its vDSO guarded (PROT_BTI). `PACIASP` also
//! signs the return address, which the image would use as it is: so the stub, on the way to the image, removes the
//! signature, and the thunk, on the way to the kernel's function, signs again.
//!
//! Encodings: Arm Architecture Reference Manual, chapter C4.1.

use super::{Displaced, EntryPoint};

const WORD: usize = 4;
/// Register x30, for `ldr x30, .` and the like: values relative to an instruction's own address are rebuilt from a
/// literal.
const X30: u32 = 30;
const PACIASP: u32 = 0xd503_233f;
const PACIBSP: u32 = 0xd503_237f;

/// Displaces one instruction of the function.
pub fn displace(entry: &EntryPoint<'_>, target: u64, thunk_at: u64) -> Result<Displaced, String> {
    let words: Vec<u32> = entry
        .bytes()
        .chunks_exact(WORD)
        .map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]))
        .collect();
    let index = usize::from(words.first().is_some_and(|first| is_landing(*first)));
    let instruction = *words.get(index).ok_or("it is too short")?;
    let at = index * WORD;
    let from = entry.address() + at as u64;
    let behind = |words: usize| thunk_at + (words * WORD) as u64;
    let thunk = match words.first().and_then(|first| signature(*first)) {
        None => relocate(instruction, from, thunk_at)?,
        Some((sign, _)) => [vec![sign], relocate(instruction, from, behind(1))?].concat(),
    };
    let jump = branch(from, target);
    let reach = "the image is out of a branch's reach";
    let jump = jump.ok_or(reach)?;
    Ok(Displaced {
        at,
        jump: jump.to_le_bytes().to_vec(),
        thunk: thunk.iter().flat_map(|w| w.to_le_bytes()).collect(),
        // A single instruction is overwritten: a thread at it executes the jump.
        moved: Vec::new(),
    })
}

/// Returns the stub at `at` of a function, which goes to `target`, or, where it was moved, into the function. An instruction that
/// is relative to its own address cannot be moved along: the system call.
pub fn stub(entry: &EntryPoint<'_>, function: &str, target: u64, at: u64) -> Result<Vec<u8>, String> {
    let word = |index: usize| {
        let bytes = entry.bytes().get(index * WORD..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let signed = word(0).and_then(signature);
    let index = usize::from(word(0).is_some_and(is_landing));
    let instruction = word(index).ok_or("it is too short")?;
    let from = entry.address() + (index * WORD) as u64;
    let authenticate = signed.map(|(_, authenticate)| authenticate);
    // adr x16, .; movz and movk x17; cmp x16, x17
    let mut words = vec![0x1000_0010];
    for part in 0..4 {
        let opcode = if part == 0 { 0xd280_0011 } else { 0xf280_0011 };
        words.push(opcode | part << 21 | ((at >> (16 * part)) as u32 & 0xffff) << 5);
    }
    words.push(0xeb11_021f);
    // b.ne behind the branch to the image
    words.push(0x5400_0001 | (2 + authenticate.iter().len() as u32) << 5);
    words.extend(authenticate);
    let here = |words: &[u32]| at + (words.len() * WORD) as u64;
    words.push(branch(here(&words), target).ok_or("the image is out of a branch's reach")?);
    let moved = relocate(instruction, from, here(&words))?;
    // Longer code has a literal.
    if moved.len() <= 3 {
        words.extend(moved);
    } else {
        let number = fastpath_image::Isa::Aarch64
            .facts()
            .calls
            .named(function)
            .ok_or("it has no system call")?;
        words.extend(authenticate);
        // mov x8, #number; svc #0; ret
        words.extend([0xd280_0008 | number << 5, 0xd400_0001, 0xd65f_03c0]);
    }
    Ok(words.into_iter().flat_map(u32::to_le_bytes).collect())
}

/// Returns whether an indirect branch may land on this: `BTI c`, `BTI jc`, `PACIASP`, `PACIBSP`.
fn is_landing(instruction: u32) -> bool {
    matches!(instruction, 0xd503_245f | 0xd503_24df) || signature(instruction).is_some()
}

/// Returns the instructions that sign the return address and that remove the signature: `PACIASP`, `AUTIASP`;
/// `PACIBSP`, `AUTIBSP`.
fn signature(instruction: u32) -> Option<(u32, u32)> {
    match instruction {
        PACIASP => Some((PACIASP, 0xd503_23bf)),
        PACIBSP => Some((PACIBSP, 0xd503_23ff)),
        _ => None,
    }
}

/// Returns the code of `b to`, at `from`.
pub fn jump(from: u64, to: u64) -> Result<Vec<u8>, String> {
    let jump = branch(from, to).ok_or("the image is out of a branch's reach")?;
    Ok(jump.to_le_bytes().to_vec())
}

/// Returns `b to`, at `from`.
fn branch(from: u64, to: u64) -> Option<u32> {
    let distance = to.wrapping_sub(from) as i64;
    // 26 bits of words.
    let reached = (-(1 << 27)..1 << 27).contains(&distance) && distance % WORD as i64 == 0;
    reached.then_some(0x1400_0000 | (distance >> 2) as u32 & 0x3ff_ffff)
}

/// Returns code at `at` that does the same as `instruction`, which was at `from`, and continues after it.
fn relocate(instruction: u32, from: u64, at: u64) -> Result<Vec<u32>, String> {
    let out_of_reach = || "a branch of its first instruction is out of reach".to_owned();
    let back = |words: usize| branch(at + (words * WORD) as u64, from + WORD as u64).ok_or_else(out_of_reach);
    let signed = |value: u32, bits: u32| i64::from(((value << (32 - bits)) as i32) >> (32 - bits));
    let register = instruction & 31;
    // The literal follows the jump back: ldr, [more], b, [padding], literal of 8 bytes.
    let load = |register: u32, words: u32| 0x5800_0000 | words << 5 | register;
    let literal = |value: u64| [value as u32, (value >> 32) as u32];

    if instruction & 0x1f00_0000 == 0x1000_0000 {
        // ADR, ADRP
        let immediate = signed((instruction >> 5 & 0x7_ffff) << 2 | instruction >> 29 & 3, 21);
        let value = if instruction >> 31 == 0 {
            from.wrapping_add(immediate as u64)
        } else {
            (from & !0xfff).wrapping_add((immediate << 12) as u64)
        };
        let [low, high] = literal(value);
        return Ok(vec![load(register, 2), back(1)?, low, high]);
    }
    if instruction & 0x3b00_0000 == 0x1800_0000 {
        // LDR (literal): 32 bits, 64 bits, LDRSW; not of the vector registers, nor PRFM.
        let address = from.wrapping_add((signed(instruction >> 5 & 0x7_ffff, 19) << 2) as u64);
        let by_register = match (instruction >> 30, instruction >> 26 & 1) {
            (0, 0) => 0xb940_0000, // ldr w, [x]
            (1, 0) => 0xf940_0000, // ldr x, [x]
            (2, 0) => 0xb980_0000, // ldrsw x, [x]
            _ => return Err("its first instruction loads what cannot be loaded from elsewhere".into()),
        };
        let [low, high] = literal(address);
        let second = by_register | register << 5 | register;
        return Ok(vec![load(register, 4), second, back(2)?, 0, low, high]);
    }
    if instruction & 0xfc00_0000 == 0x1400_0000 || instruction & 0xfc00_0000 == 0x9400_0000 {
        // B, BL
        let to = from.wrapping_add((signed(instruction & 0x3ff_ffff, 26) << 2) as u64);
        if instruction >> 31 == 0 {
            return Ok(vec![branch(at, to).ok_or_else(out_of_reach)?]);
        }
        let go = branch(at + WORD as u64, to).ok_or_else(out_of_reach)?;
        let [low, high] = literal(from + WORD as u64);
        return Ok(vec![load(X30, 2), go, low, high]);
    }
    let wide = instruction & 0xff00_0000 == 0x5400_0000 || instruction & 0x7e00_0000 == 0x3400_0000;
    let narrow = instruction & 0x7e00_0000 == 0x3600_0000;
    if wide || narrow {
        // B.cond, BC.cond, CBZ, CBNZ (19 bits); TBZ, TBNZ (14 bits): skips the jump back, to a branch to the target.
        let (bits, mask) = if wide { (19, 0x7_ffff) } else { (14, 0x3fff) };
        let to = from.wrapping_add((signed(instruction >> 5 & mask, bits) << 2) as u64);
        let over = instruction & !(mask << 5) | 2 << 5;
        let there = branch(at + 2 * WORD as u64, to).ok_or_else(out_of_reach)?;
        return Ok(vec![over, back(1)?, there]);
    }
    Ok(vec![instruction, back(1)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: u64 = 0xffff_8000_1000;
    const AT: u64 = FROM - 0x7000;

    fn b(from: u64, to: u64) -> u32 {
        branch(from, to).unwrap()
    }

    #[test]
    fn an_instruction_that_works_anywhere_is_copied() {
        let stp = 0xa9be_7bfd; // stp x29, x30, [sp, #-32]!
        assert_eq!(relocate(stp, FROM, AT).unwrap(), [stp, b(AT + 4, FROM + 4)]);
    }

    #[test]
    fn an_address_relative_to_the_instruction_becomes_a_literal() {
        // adr x3, +8; adrp x3, -0x5000
        let [adr, adrp] = [0x1000_0043, 0xf0ff_ffc3];
        let wanted = |value: u64| [0x5800_0043, b(AT + 4, FROM + 4), value as u32, (value >> 32) as u32];
        assert_eq!(relocate(adr, FROM, AT).unwrap(), wanted(FROM + 8));
        assert_eq!(relocate(adrp, FROM, AT).unwrap(), wanted(FROM - 0x5000));
    }

    #[test]
    fn a_load_from_beside_the_code_loads_from_there_still() {
        let data = FROM - 4;
        for (literal, plain) in [
            (0x18ff_ffe5, 0xb940_00a5),
            (0x58ff_ffe5, 0xf940_00a5),
            (0x98ff_ffe5, 0xb980_00a5),
        ] {
            let wanted = [
                0x5800_0085,
                plain,
                b(AT + 8, FROM + 4),
                0,
                data as u32,
                (data >> 32) as u32,
            ];
            assert_eq!(relocate(literal, FROM, AT).unwrap(), wanted);
        }
        // ldr q5, .-4; prfm pldl1keep, .-4
        for other in [0x9cff_ffe5, 0xd8ff_ffe0] {
            assert!(relocate(other, FROM, AT).is_err());
        }
    }

    #[test]
    fn branches_go_where_they_went_and_calls_return_where_they_did() {
        // b +8; bl +8
        assert_eq!(relocate(0x1400_0002, FROM, AT).unwrap(), [b(AT, FROM + 8)]);
        let back = FROM + 4;
        let wanted = [0x5800_005e, b(AT + 4, FROM + 8), back as u32, (back >> 32) as u32];
        assert_eq!(relocate(0x9400_0002, FROM, AT).unwrap(), wanted);
        // b.hi +16; cbz x1, +16; cbnz w1, -8; tbz w0, #3, +16; tbnz x0, #33, -4
        for (there, over, to) in [
            (0x5400_0088, 0x5400_0048, FROM + 16),
            (0xb400_0081, 0xb400_0041, FROM + 16),
            (0x35ff_ffc1, 0x3500_0041, FROM - 8),
            (0x3618_0080, 0x3618_0040, FROM + 16),
            (0xb70f_ffe0, 0xb708_0040, FROM - 4),
        ] {
            let wanted = [over, b(AT + 4, FROM + 4), b(AT + 8, to)];
            assert_eq!(relocate(there, FROM, AT).unwrap(), wanted, "{there:#x}");
        }
    }

    #[test]
    fn an_indirect_branch_still_lands_on_bti() {
        let code: Vec<u8> = [0xd503_245f_u32, 0xa9be_7bfd, 0xd65f_03c0]
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        let entry = EntryPoint {
            code: &code,
            base: FROM,
            offset: 0,
            size: code.len(),
        };
        let displaced = displace(&entry, FROM - 0x6000, AT).unwrap();
        assert_eq!(displaced.at, 4);
        assert_eq!(displaced.jump, b(FROM + 4, FROM - 0x6000).to_le_bytes());
        assert_eq!(displaced.thunk[..4], 0xa9be_7bfd_u32.to_le_bytes());
        assert_eq!(displaced.thunk[4..], b(AT + 4, FROM + 8).to_le_bytes());
    }

    #[test]
    fn the_kernels_function_alone_gets_a_signed_return_address() {
        let stp = 0xa9be_7bfd; // stp x29, x30, [sp, #-32]!
        for (sign, authenticate) in [(0xd503_233f_u32, 0xd503_23bf_u32), (0xd503_237f, 0xd503_23ff)] {
            let code: Vec<u8> = [sign, stp, authenticate, 0xd65f_03c0]
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .collect();
            let entry = EntryPoint {
                code: &code,
                base: FROM,
                offset: 0,
                size: code.len(),
            };
            let (stub, image) = (FROM + 0x800, FROM - 0x6000);
            let displaced = displace(&entry, stub, AT).unwrap();
            assert_eq!(displaced.at, 4, "what indirect branches land on stays");
            let back = [sign, stp, b(AT + 8, FROM + 8)];
            assert_eq!(displaced.thunk, back.map(u32::to_le_bytes).concat());
            assert_eq!(displaced.jump, b(FROM + 4, stub).to_le_bytes());
            // A moved stub goes on in the function, with the signature.
            let ends = [authenticate, b(stub + 32, image), stp, b(stub + 40, FROM + 8)];
            let words = super::stub(&entry, "clock_gettime", image, stub).unwrap();
            assert_eq!(words[28..], ends.map(u32::to_le_bytes).concat());
        }
    }

    #[test]
    fn a_moved_stub_whose_instruction_is_relative_makes_the_system_call() {
        // adrp x3, -0x5000
        let entry = EntryPoint {
            code: &0xf0ff_ffc3_u32.to_le_bytes(),
            base: FROM,
            offset: 0,
            size: 4,
        };
        let words = stub(&entry, "clock_gettime", FROM - 0x6000, FROM + 0x800).unwrap();
        // adr x16, .; movz and movk x17; cmp x16, x17; b.ne +8
        let address = [0x1000_0010, 0xd283_0011, 0xf2b0_0011, 0xf2df_fff1, 0xf2e0_0011];
        assert_eq!(words[..20], address.map(u32::to_le_bytes).concat());
        let ends = [0xeb11_021f, 0x5400_0041, b(FROM + 0x800 + 28, FROM - 0x6000)];
        assert_eq!(words[20..32], ends.map(u32::to_le_bytes).concat());
        // mov x8, #113; svc #0; ret
        assert_eq!(
            words[32..],
            [0xd280_0e28_u32, 0xd400_0001, 0xd65f_03c0]
                .map(u32::to_le_bytes)
                .concat()
        );
    }

    #[test]
    fn an_image_beyond_128_mib_is_refused() {
        assert_eq!(branch(FROM, FROM + (1 << 27)), None);
        assert!(branch(FROM, FROM + (1 << 27) - 4).is_some());
        assert!(branch(FROM, FROM - (1 << 27)).is_some());
    }
}
