//! x86-64 and i386: a jump of five bytes. Displaced instructions are copied, with their operands in memory kept where they
//! are. Code that cannot be copied in its length (i386's calls, short branches) is moved by iced-x86's encoder, which keeps
//! the targets of branches; its tables take half a millisecond to make.

use fastpath_code::rescue::{self, copied, is_branch};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};

use super::{Displaced, EntryPoint, Offsets};

/// Size of `jmp rel32`.
pub const JUMP_BYTES: usize = 5;

/// Displaces the instructions that a jump at the function's start overwrites. `bits`: 64 or 32.
pub fn displace(entry: &EntryPoint<'_>, bits: u32, target: u64, thunk_at: u64) -> Result<Displaced, String> {
    let first = entry.address();
    let mut instructions = Vec::new();
    let mut length = 0;
    let mut decoder = Decoder::with_ip(bits, entry.bytes(), first, DecoderOptions::NONE);
    while length < JUMP_BYTES {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return Err("it is too short, or not understood".into());
        }
        length += instruction.len();
        // After an instruction that does not continue with the next one, another function may start.
        let is_last = length >= JUMP_BYTES;
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::ConditionalBranch => {}
            FlowControl::UnconditionalBranch if is_last => {}
            FlowControl::Call if is_last && bits == 32 => {}
            _ => return Err(format!("it branches in its first {JUMP_BYTES} bytes")),
        }
        instructions.push(instruction);
    }
    let displaced = first + 1..first + length as u64;
    let mut all = decoder.iter().chain(instructions.iter().copied());
    if all.any(|i| is_branch(&i) && displaced.contains(&i.near_branch_target())) {
        return Err("it branches back into its first instructions".into());
    }
    let next = first + length as u64;
    let copy = if bits == 64 {
        copy(entry, &instructions, thunk_at)
    } else {
        None
    };
    let (thunk, moved) = match copy {
        Some((mut thunk, moved)) => {
            if instructions.last().map(Instruction::flow_control) != Some(FlowControl::UnconditionalBranch) {
                thunk.extend(jump(64, thunk_at + length as u64, next)?);
            }
            (thunk, moved)
        }
        None => {
            let back = back_to(entry, &mut instructions, bits, next).map_err(|e| e.to_string())?;
            instructions.extend(back);
            let (thunk, mut moved) = encoded(bits, &instructions, thunk_at)?;
            // Not the jump back, which has no place there.
            moved.retain(|(from, _)| *from < length);
            (thunk, moved)
        }
    };
    Ok(Displaced {
        at: 0,
        jump: jump(bits, first, target)?,
        thunk,
        moved,
    })
}

/// Offset in a stub of its address, of eight bytes.
pub const STUB_ADDRESS_AT: usize = 9;

/// Returns the stub at `at` of a function for x86-64, which goes to `target`, or, where it was moved, into the function.
pub fn stub(entry: &EntryPoint<'_>, target: u64, at: u64) -> Result<Vec<u8>, String> {
    const TO_IMAGE: usize = 20;
    const TO_KERNEL: usize = TO_IMAGE + 6;
    // lea stub(%rip), %rax; movabs $at, %rcx; cmp %rcx, %rax
    let own = [0x48, 0x8d, 0x05, 0xf9, 0xff, 0xff, 0xff];
    let mut code = [&own[..], &[0x48, 0xb9], &at.to_le_bytes(), &[0x48, 0x39, 0xc8]].concat();
    code.extend(jump_if_equal(64, at + TO_IMAGE as u64, target)?);
    code.extend(displace(entry, 64, target, at + TO_KERNEL as u64)?.thunk);
    Ok(code)
}

/// Returns the same for i386. Code that calls another function to learn its address cannot be moved along: the system call.
pub fn stub_of_32_bits(entry: &EntryPoint<'_>, function: &str, target: u64, at: u64) -> Result<Vec<u8>, String> {
    const TO_IMAGE: usize = 11;
    const TO_KERNEL: usize = TO_IMAGE + 6;
    // call 1f; 1: pop %eax; cmp $1b, %eax
    let own = (at as u32 + 5).to_le_bytes();
    let mut code = [&[0xe8, 0, 0, 0, 0, 0x58, 0x3d][..], &own].concat();
    code.extend(jump_if_equal(32, at + TO_IMAGE as u64, target)?);
    let displaced = displace(entry, 32, target, at + TO_KERNEL as u64)?;
    let mut decoder = Decoder::with_ip(32, entry.bytes(), entry.address(), DecoderOptions::NONE);
    let first = decoder
        .iter()
        .take_while(|i| i.ip() < entry.address() + JUMP_BYTES as u64);
    if !first.into_iter().any(|i| i.flow_control() == FlowControl::Call) {
        code.extend(displaced.thunk);
        return Ok(code);
    }
    let number = fastpath_image::Isa::I386
        .facts()
        .calls
        .named(function)
        .ok_or("it has no system call")?;
    // Each function that is redirected has two arguments.
    // push %ebx; mov $number, %eax; mov 8(%esp), %ebx; mov 12(%esp), %ecx; int $0x80; pop %ebx; ret
    code.extend([0x53, 0xb8]);
    code.extend(number.to_le_bytes());
    code.extend([0x8b, 0x5c, 0x24, 8, 0x8b, 0x4c, 0x24, 12, 0xcd, 0x80, 0x5b, 0xc3]);
    Ok(code)
}

/// Returns `je to`, at `from`.
fn jump_if_equal(bits: u32, from: u64, to: u64) -> Result<Vec<u8>, String> {
    // One byte longer than `jmp`.
    let jump = jump(bits, from + 1, to)?;
    Ok([&[0x0f, 0x84], &jump[1..]].concat())
}

/// Returns what continues at `next`, after the displaced instructions.
///
/// i386's compilers begin functions with a call to a function that returns the address to which it returns
/// (`__x86.get_pc_thunk`). As the last of the displaced instructions, such a call becomes a move of that address. Any
/// other call becomes a push of its own return address and a jump; a return that no call precedes costs two
/// mispredictions, its own and its caller's: 20 ns.
fn back_to(
    entry: &EntryPoint<'_>,
    instructions: &mut Vec<Instruction>,
    bits: u32,
    next: u64,
) -> Result<Option<Instruction>, iced_x86::IcedError> {
    let jump = if bits == 64 {
        Code::Jmp_rel32_64
    } else {
        Code::Jmp_rel32_32
    };
    let last = instructions.last().map(|last| (last.flow_control(), *last));
    let to = match last {
        Some((FlowControl::UnconditionalBranch, _)) => return Ok(None),
        Some((FlowControl::Call, call)) => {
            let callee = call.near_branch_target();
            let (mut in_its_place, to) = match returned_address_in(entry, callee) {
                Some(register) => (Instruction::with2(Code::Mov_r32_imm32, register, next as u32)?, next),
                None => (Instruction::with1(Code::Pushd_imm32, next as u32)?, callee),
            };
            in_its_place.set_ip(call.ip());
            instructions.pop();
            instructions.push(in_its_place);
            to
        }
        _ => next,
    };
    Instruction::with_branch(jump, to).map(Some)
}

/// Returns the register in which the i386 function at `address` returns its return address, if it does nothing else:
/// `mov (%esp), %register; ret`.
fn returned_address_in(entry: &EntryPoint<'_>, address: u64) -> Option<Register> {
    let code = entry.code.get(address.checked_sub(entry.base)? as usize..)?;
    let mut decoder = Decoder::with_ip(32, code, address, DecoderOptions::NONE);
    let (load, ret) = (decoder.decode(), decoder.decode());
    let is_load = load.code() == Code::Mov_r32_rm32
        && load.op1_kind() == OpKind::Memory
        && load.memory_base() == Register::ESP
        && load.memory_index() == Register::None
        && load.memory_displacement64() == 0
        && !load.has_segment_prefix();
    let register = load.op0_register();
    (is_load && register != Register::ESP && ret.code() == Code::Retnd).then_some(register)
}

/// Returns a copy at `at` of these successive instructions for x86-64 of a vDSO, and the offsets of all but the first one,
/// before and there. `None`: they cannot be copied in their length.
fn copy(entry: &EntryPoint<'_>, instructions: &[Instruction], at: u64) -> Option<(Vec<u8>, Offsets)> {
    let first = instructions.first()?.ip();
    let offset = first.checked_sub(entry.base)? as usize;
    let length = instructions.iter().map(Instruction::len).sum::<usize>();
    let code = copied(entry.code.get(offset..offset + length)?, first, at, |target| target).ok()?;
    let offsets = instructions[1..].iter().map(|i| (i.ip() - first) as usize);
    Some((code, offsets.map(|offset| (offset, offset)).collect()))
}

/// Returns a copy at `at` of a whole function for x86-64 of a vDSO, and the offsets of its instructions in the function and
/// in the copy.
pub fn copy_function(
    entry: &EntryPoint<'_>,
    instructions: &[Instruction],
    at: u64,
) -> Result<(Vec<u8>, Offsets), String> {
    let ends = |i: &Instruction| matches!(i.flow_control(), FlowControl::Return | FlowControl::UnconditionalBranch);
    let mut is_behind_end = false;
    for instruction in instructions {
        let is_known = match instruction.flow_control() {
            FlowControl::Next
            | FlowControl::ConditionalBranch
            | FlowControl::UnconditionalBranch
            | FlowControl::Call
            | FlowControl::Return => !instruction.is_invalid(),
            // Compilers write `int3` behind the end of a block, against speculation. Elsewhere it is a breakpoint.
            FlowControl::Interrupt => {
                let is_reached = |i: &Instruction| is_branch(i) && i.near_branch_target() == instruction.ip();
                instruction.code() == Code::Int3 && is_behind_end && !instructions.iter().any(is_reached)
            }
            _ => false,
        };
        if !is_known {
            return Err(format!("its instruction at {:#x} is not understood", instruction.ip()));
        }
        is_behind_end = ends(instruction) || is_behind_end && instruction.code() == Code::Int3;
    }
    if !is_behind_end {
        return Err("another function follows it".into());
    }
    copy(entry, instructions, at).map_or_else(|| encoded(64, instructions, at), Ok)
}

/// Returns these instructions at `at`, and the offsets of all but the first one, before and there.
fn encoded(bits: u32, instructions: &[Instruction], at: u64) -> Result<(Vec<u8>, Offsets), String> {
    let first = instructions.first().map_or(0, Instruction::ip);
    let (code, offsets) = rescue::encoded(bits, instructions, at)?;
    let before = instructions.iter().map(|i| i.ip().wrapping_sub(first) as usize);
    Ok((code, before.zip(offsets).skip(1).collect()))
}

pub fn jump(bits: u32, from: u64, to: u64) -> Result<Vec<u8>, String> {
    let distance = to.wrapping_sub(from + JUMP_BYTES as u64);
    let reached = bits == 32 || i32::try_from(distance as i64).is_ok();
    if !reached {
        return Err("the image is out of a jump's reach".into());
    }
    Ok([&[0xe9][..], &(distance as u32).to_le_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x7fff_0000_0000;
    const TARGET: u64 = BASE - 0x10_0000;
    const THUNK: u64 = BASE - 0x8000;

    fn displaced(code: &[u8]) -> Result<Displaced, String> {
        let entry = EntryPoint {
            code,
            base: BASE,
            offset: 0,
            size: code.len(),
        };
        displace(&entry, 64, TARGET, THUNK)
    }

    /// Returns the instructions of a thunk of a 32-bit function with this code at `base`, the start of the vDSO.
    fn thunk_of_32_bit(code: &[u8], base: u64) -> Vec<Instruction> {
        let entry = EntryPoint {
            code,
            base,
            offset: 0,
            size: code.len(),
        };
        let thunk = displace(&entry, 32, base - 0x10_0000, base - 0x8000).unwrap().thunk;
        Decoder::with_ip(32, &thunk, base - 0x8000, DecoderOptions::NONE)
            .iter()
            .collect()
    }

    /// Returns the target of the thunk's last instruction, a jump.
    fn returns_to(thunk: &[u8]) -> u64 {
        let mut decoder = Decoder::with_ip(64, thunk, THUNK, DecoderOptions::NONE);
        let last = decoder.iter().last().unwrap();
        assert_eq!(last.flow_control(), FlowControl::UnconditionalBranch);
        last.near_branch_target()
    }

    #[test]
    fn the_jump_leads_to_the_image_and_the_thunk_behind_what_was_displaced() {
        // push %rbp; mov %rsp, %rbp; push %r14; push %rbx; ret
        let push = [0x55, 0x48, 0x89, 0xe5, 0x41, 0x56, 0x53, 0xc3];
        // endbr64; push %rbp; mov %rsp, %rbp; ret
        let endbr64 = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0xc3];
        for (code, length, moved) in [(&push[..], 6, &[(1, 1), (4, 4)][..]), (&endbr64, 5, &[(4, 4)])] {
            let displaced = displaced(code).unwrap();
            let mut decoder = Decoder::with_ip(64, &displaced.jump, BASE, DecoderOptions::NONE);
            assert_eq!(decoder.decode().near_branch_target(), TARGET);
            assert_eq!(displaced.jump.len(), 5);
            assert_eq!(displaced.thunk[..length], code[..length]);
            assert_eq!(returns_to(&displaced.thunk), BASE + length as u64);
            assert_eq!(displaced.moved, moved);
        }
    }

    #[test]
    fn a_call_as_the_last_instruction_returns_to_the_function_itself_on_i386() {
        // call +0x11c1; add $0xfffffd27, %eax: Linux 6.18's __vdso_gettimeofday. With `push %ebp` before the call:
        // older ones.
        let call_and_add = [0xe8, 0xc1, 0x11, 0, 0, 0x05, 0x27, 0xfd, 0xff, 0xff];
        let pushed_before = [&[0x55][..], &call_and_add].concat();
        for (code, before) in [(&call_and_add[..], 0), (&pushed_before, 1)] {
            let base = 0xf7f0_b700;
            let thunk = thunk_of_32_bit(code, base);
            let next = base + before as u64 + 5;
            let [push, jump] = thunk[before..] else {
                panic!("{thunk:?}")
            };
            assert_eq!((push.code(), push.immediate32()), (Code::Pushd_imm32, next as u32));
            assert_eq!(jump.flow_control(), FlowControl::UnconditionalBranch);
            assert_eq!(jump.near_branch_target(), next + 0x11c1);
        }
    }

    #[test]
    fn i386_code_that_calls_to_learn_its_address_is_given_the_address() {
        // call get_pc_thunk; add $0xfffffd27, %eax; ret; and behind it `mov (%esp), %REGISTER; ret`.
        let function = [0xe8, 6, 0, 0, 0, 0x05, 0x27, 0xfd, 0xff, 0xff, 0xc3];
        let base = 0xf7f0_b700;
        let (get_eax, get_ebx) = (&[0x8b, 0x04, 0x24, 0xc3][..], &[0x8b, 0x1c, 0x24, 0xc3][..]);
        for (get_pc, register) in [(get_eax, Register::EAX), (get_ebx, Register::EBX)] {
            let thunk = thunk_of_32_bit(&[&function[..], get_pc].concat(), base);
            let [load, jump] = thunk[..] else { panic!("{thunk:?}") };
            assert_eq!((load.code(), load.op0_register()), (Code::Mov_r32_imm32, register));
            assert_eq!(u64::from(load.immediate32()), base + 5);
            assert_eq!(jump.near_branch_target(), base + 5);
        }
        // Another register than ESP, an offset, a segment, more than one instruction, a return that pops arguments.
        for other in [
            &[0x8b, 0x03, 0xc3, 0x90][..],
            &[0x8b, 0x44, 0x24, 0x04, 0xc3],
            &[0x65, 0x8b, 0x04, 0x24, 0xc3],
            &[0x8b, 0x04, 0x24, 0x40, 0xc3],
            &[0x8b, 0x04, 0x24, 0xc2, 4, 0],
            &[0x8b, 0x24, 0x24, 0xc3],
            &[0x03, 0x04, 0x24, 0xc3],
        ] {
            let thunk = thunk_of_32_bit(&[&function[..], other].concat(), base);
            assert_eq!(thunk[0].code(), Code::Pushd_imm32, "{other:x?}");
            assert_eq!(
                thunk[1].near_branch_target(),
                base + function.len() as u64,
                "{other:x?}"
            );
        }
    }

    #[test]
    fn an_operand_relative_to_the_instruction_keeps_its_place() {
        // push %rbp; lea -0x6818(%rip), %r10: Linux 6.18's __vdso_gettimeofday; cmpl $5, 0x100(%rip); ret
        let lea = [0x55, 0x4c, 0x8d, 0x15, 0xe8, 0x97, 0xff, 0xff, 0xc3];
        let compare = [0x83, 0x3d, 0, 1, 0, 0, 5, 0xc3];
        for (code, length) in [(&lea[..], 8), (&compare[..], 7)] {
            let displaced = displaced(code).unwrap();
            let address = |code: &[u8], at| {
                let mut decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
                let found = decoder.iter().find(|i| i.is_ip_rel_memory_operand()).unwrap();
                (found.code(), found.ip_rel_memory_address())
            };
            assert_eq!(address(&displaced.thunk, THUNK), address(code, BASE));
            assert_eq!(displaced.thunk.len(), length + 5);
            assert_eq!(returns_to(&displaced.thunk), BASE + length as u64);
        }
    }

    #[test]
    fn a_branch_out_of_the_displaced_instructions_keeps_its_target() {
        // cmp $1, %edi; ja +0x20; nop; ret
        let displaced = displaced(&[0x83, 0xff, 0x01, 0x77, 0x20, 0x90, 0xc3]).unwrap();
        let mut decoder = Decoder::with_ip(64, &displaced.thunk, THUNK, DecoderOptions::NONE);
        let instructions: Vec<Instruction> = decoder.iter().collect();
        assert_eq!(instructions[1].near_branch_target(), BASE + 5 + 0x20);
        assert_eq!(returns_to(&displaced.thunk), BASE + 5);
    }

    #[test]
    fn a_branch_into_displaced_code_is_refused_and_one_to_its_start_is_not() {
        // push %rbp; mov %rsp, %rbp; push %r14; jmp
        let into = [0x55, 0x48, 0x89, 0xe5, 0x41, 0x56, 0xeb, 0xf9]; // to the mov
        assert!(displaced(&into).is_err_and(|why| why.contains("branches back")));
        let to_start = [0x55, 0x48, 0x89, 0xe5, 0x41, 0x56, 0xeb, 0xf8];
        assert!(displaced(&to_start).is_ok());
        let conditional = [0x55, 0x48, 0x89, 0xe5, 0x41, 0x56, 0x74, 0xfc, 0xc3]; // to the push %r14
        assert!(displaced(&conditional).is_err_and(|why| why.contains("branches back")));
    }

    #[test]
    fn a_function_that_is_too_short_or_calls_at_once_is_refused() {
        assert!(displaced(&[0x31, 0xc0, 0xc3, 0x90, 0x90]).is_err_and(|why| why.contains("branches")));
        assert!(displaced(&[0x31, 0xc0, 0x90]).is_err_and(|why| why.contains("too short")));
        assert!(displaced(&[0xe8, 0, 0, 0, 0, 0xc3]).is_err_and(|why| why.contains("branches")));
        assert!(displaced(&[0x06; 8]).is_err_and(|why| why.contains("not understood")));
    }

    #[test]
    fn an_image_beyond_2_gib_is_refused() {
        let code = [0x4c, 0x8d, 0x15, 0xea, 0x94, 0xff, 0xff, 0xc3];
        let entry = EntryPoint {
            code: &code,
            base: BASE,
            offset: 0,
            size: code.len(),
        };
        let refused = displace(&entry, 64, BASE - (1 << 32), THUNK);
        assert!(refused.is_err_and(|why| why.contains("reach")));
        // Nor may the thunk be where it cannot reach the function's data.
        let refused = displace(&entry, 64, TARGET, BASE - (1 << 32));
        assert!(refused.is_err_and(|why| why.contains("cannot be moved")));
    }
}
