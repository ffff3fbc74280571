//! x86-64 and i386.
//!
//! Instructions have no fixed length, so code cannot be read backwards. But decoding from a wrong byte synchronizes
//! after a few instructions. Therefore code is decoded from each of the bytes before a system call, and the number
//! counts on which most of the decodings that arrive at the call agree.

use fastpath_image::Isa;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register,
};
use memchr::memmem;

use super::x86_registers::{Registers, writes};
use super::{CallKind, CodeSite, FoundCalls, Piece, TimeCall, call_of, majority};

/// Bytes before a system call in which to look for its number. Compilers put it within about ten.
const BEFORE: usize = 96;
/// Instructions behind the load of an address in which to look for its call.
const BEHIND: usize = 16;

/// i386's call through the pointer that the C library has copied from AT_SYSINFO: call *%gs:0x10.
const THROUGH_THREAD_BLOCK: &[u8] = &[0x65, 0xff, 0x15, 0x10, 0, 0, 0];

/// Instructions behind a read of the counter in which it may be scaled.
const SCALED_WITHIN: usize = 32;
/// rdtsc and rdtscp.
const COUNTER_READS: [&[u8]; 2] = [&[0x0f, 0x31], &[0x0f, 0x01, 0xf9]];

/// Returns where these bytes are in a piece.
fn own_of<'p>(piece: &'p Piece<'_>, needle: &'static [u8]) -> impl Iterator<Item = usize> + 'p {
    memmem::find_iter(piece.bytes, needle).filter(|at| piece.own.contains(at))
}

pub(super) fn find(isa: Isa, piece: &Piece<'_>, address: u64, found: &mut FoundCalls) {
    find_calls(isa, piece, address, found);
    for needle in COUNTER_READS {
        for at in own_of(piece, needle) {
            if found.is_affordable() && is_instruction(isa, piece.bytes, at) {
                let is_scaled = isa == Isa::X86_64 && is_scaled(piece.bytes, at + needle.len());
                found.add_counter_read(address.wrapping_add(at as u64), is_scaled);
            }
        }
    }
}

/// Returns whether most decodings of the bytes before `at` arrive there: the bytes are an instruction, not a part of one.
fn is_instruction(isa: Isa, bytes: &[u8], at: usize) -> bool {
    let first = at.saturating_sub(BEFORE);
    // For each byte, whether decoding from there arrives; `None`: it ends in invalid bytes.
    let mut arrives: Vec<Option<bool>> = vec![None; at - first];
    for start in (first..at).rev() {
        let instruction = decode(isa, bytes, start);
        let next = start + instruction.len();
        arrives[start - first] = match next.checked_sub(at) {
            _ if instruction.is_invalid() => None,
            Some(behind) => Some(behind == 0),
            None => arrives[next - first],
        };
    }
    at == first || majority(arrives.into_iter().flatten()) == Some(true)
}

/// Returns whether the counter in edx and eax is put together and then scaled on the straight line from `at`. A product
/// with a constant is a division, as of a seed: a counter's rate is known at run time only.
fn is_scaled(bytes: &[u8], mut at: usize) -> bool {
    const HALF: u64 = 32;
    let (mut is_shifted, mut is_whole, mut is_float) = (false, false, false);
    let mut constants: Vec<Register> = Vec::new();
    for _ in 0..SCALED_WITHIN {
        if at >= bytes.len() {
            return false;
        }
        let instruction = decode(Isa::X86_64, bytes, at);
        if instruction.is_invalid()
            || !matches!(
                instruction.flow_control(),
                FlowControl::Next | FlowControl::ConditionalBranch
            )
        {
            return false;
        }
        let is_64 = instruction.op0_kind() == OpKind::Register && instruction.op0_register().is_gpr64();
        match instruction.mnemonic() {
            Mnemonic::Shl if is_64 && instruction.op1_kind() == OpKind::Immediate8 => {
                is_shifted |= instruction.immediate(1) == HALF;
            }
            Mnemonic::Or | Mnemonic::Add | Mnemonic::Lea if is_64 => is_whole |= is_shifted,
            Mnemonic::Mul | Mnemonic::Mulx if is_whole => {
                let factors = [
                    Register::RAX,
                    Register::RDX,
                    instruction.op0_register(),
                    instruction.op2_register(),
                ];
                if !factors.iter().any(|factor| constants.contains(factor)) {
                    return true;
                }
            }
            Mnemonic::Cvtsi2sd | Mnemonic::Vcvtsi2sd => is_float |= is_whole,
            Mnemonic::Mulsd | Mnemonic::Vmulsd | Mnemonic::Divsd | Mnemonic::Vdivsd if is_float => return true,
            _ => {}
        }
        constants.retain(|register| *register != instruction.op0_register());
        if instruction.code() == Code::Mov_r64_imm64 {
            constants.push(instruction.op0_register());
        }
        at += instruction.len();
    }
    false
}

fn find_calls(isa: Isa, piece: &Piece<'_>, address: u64, found: &mut FoundCalls) {
    let own_of = |needle| own_of(piece, needle);
    let mut look = |at: usize, numbers: Isa| {
        if found.is_affordable()
            && let Some(call) = number_at(isa, piece.bytes, at).and_then(|number| call_of(numbers, number))
        {
            found.add(CodeSite {
                address: address.wrapping_add(at as u64),
                call,
                by: CallKind::SystemCall,
            });
        }
    };
    // int $0x80 takes i386 numbers in every program.
    own_of(Isa::I386.facts().system_call).for_each(|at| look(at, Isa::I386));
    if isa == Isa::I386 {
        own_of(&[0x0f, 0x34]).for_each(|at| look(at, Isa::I386));
        own_of(THROUGH_THREAD_BLOCK).for_each(|at| look(at, Isa::I386));
        return;
    }
    own_of(Isa::X86_64.facts().system_call).for_each(|at| look(at, Isa::X86_64));
    for at in own_of(&[0x60, 0xff]) {
        if let Some(call) = at.checked_sub(2).and_then(|at| vsyscall_at(piece.bytes, at))
            && found.is_affordable()
        {
            found.add(CodeSite {
                address: address.wrapping_add(at as u64 - 2),
                call,
                by: CallKind::Vsyscall,
            });
        }
    }
}

fn decode(isa: Isa, bytes: &[u8], at: usize) -> Instruction {
    decoder(isa, &bytes[at..]).decode()
}

fn decoder(isa: Isa, bytes: &[u8]) -> Decoder<'_> {
    let bits = if isa == Isa::X86_64 { 64 } else { 32 };
    Decoder::new(bits, bytes, DecoderOptions::NONE)
}

/// Returns the value of eax where the instruction at `at` is reached, if the code before it determines one.
fn number_at(isa: Isa, bytes: &[u8], at: usize) -> Option<u64> {
    let first = at.saturating_sub(BEFORE);
    if is_another(isa, &bytes[first..at]) {
        return None;
    }
    // For each byte, the instruction there if decoding from there arrives.
    let mut lines: Vec<Option<Instruction>> = vec![None; at - first];
    let mut decoder = decoder(isa, &bytes[first..at]);
    for start in (first..at).rev() {
        decoder.set_position(start - first).ok()?;
        let instruction = decoder.decode();
        let next = start + instruction.len();
        let arrives = next == at || (next < at && lines[next - first].is_some());
        if !instruction.is_invalid() && arrives {
            lines[start - first] = Some(instruction);
        }
    }
    let is_load = |instruction: &Instruction| {
        (0..instruction.op_count()).any(|operand| {
            matches!(
                instruction.op_kind(operand),
                OpKind::Immediate8
                    | OpKind::Immediate32
                    | OpKind::Immediate64
                    | OpKind::Immediate8to32
                    | OpKind::Immediate8to64
                    | OpKind::Immediate32to64
            ) && is_near_a_number(isa, instruction.immediate(operand))
        })
    };
    // The last load of a constant that could be the number. A decoding that starts behind it cannot know the number and
    // does not vote.
    let last = (0..lines.len())
        .rev()
        .find(|start| lines[*start].as_ref().is_some_and(is_load))?;
    let mut factory = InstructionInfoFactory::new();
    let mut values = Vec::new();
    for start in (0..=last).filter(|start| lines[*start].is_some()) {
        let mut registers = Registers::default();
        let mut position = start;
        while let Some(instruction) = lines.get(position).and_then(|line| line.as_ref()) {
            registers.step(instruction, &mut factory);
            position += instruction.len();
        }
        let value = registers.value(Register::RAX).map(|value| value & 0xffff_ffff);
        // mov $0xe4, %al, after the rest of the register was cleared.
        if start == last && value.is_none() {
            continue;
        }
        values.push(value);
    }
    majority(values).flatten()
}

/// Returns whether this code ends with the load of another call's number, as it does before most calls. It is decoded only
/// once: by its end, that has fallen into step.
fn is_another(isa: Isa, code: &[u8]) -> bool {
    let mut decoder = decoder(isa, code);
    let mut last = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut last);
    }
    last.code() == Code::Mov_r32_imm32
        && last.op0_register() == Register::EAX
        && !is_near_a_number(isa, last.immediate(1))
}

/// Returns whether a constant is the number of one of the calls, or becomes one by an addition.
fn is_near_a_number(isa: Isa, value: u64) -> bool {
    let value = value & 0xffff_ffff;
    let is_one = |isa, value| call_of(isa, value).is_some();
    is_one(Isa::I386, value) || (isa == Isa::X86_64 && is_one(Isa::X86_64, value & !0x4000_0000))
        // mov $0xe4, %al
        || is_one(Isa::X86_64, value & 0xff)
}

/// The entries of the vsyscall page, as the second lowest bytes of their addresses.
const VSYSCALLS: [(u8, TimeCall); 3] = [
    (0x00, TimeCall::Gettimeofday),
    (0x04, TimeCall::Time),
    (0x08, TimeCall::Getcpu),
];

/// Returns the vsyscall whose address is the constant at `at`, if it is loaded into a register and then called.
fn vsyscall_at(bytes: &[u8], at: usize) -> Option<TimeCall> {
    let (low, call) = VSYSCALLS.into_iter().find(|(low, _)| bytes[at + 1] == *low)?;
    let target = 0xffff_ffff_ff60_0000 | u64::from(low) << 8;
    // REX.W c7 /0 imm32, or REX.W b8+r imm64.
    [3, 2]
        .into_iter()
        .filter_map(|back| at.checked_sub(back))
        .find_map(|start| {
            let load = decode(Isa::X86_64, bytes, start);
            if load.mnemonic() != Mnemonic::Mov
                || load.op0_kind() != OpKind::Register
                || load.op1_kind() == OpKind::Register
            {
                return None;
            }
            let is_constant = matches!(load.op1_kind(), OpKind::Immediate32to64 | OpKind::Immediate64);
            (is_constant && load.immediate(1) == target && is_called(bytes, start + load.len(), load.op0_register()))
                .then_some(call)
        })
}

/// Returns whether the address that is in `register` at `at` is called on the straight line from there.
fn is_called(bytes: &[u8], mut at: usize, register: Register) -> bool {
    let mut factory = InstructionInfoFactory::new();
    for _ in 0..BEHIND {
        if at >= bytes.len() {
            return false;
        }
        let instruction = decode(Isa::X86_64, bytes, at);
        match instruction.flow_control() {
            FlowControl::IndirectCall | FlowControl::IndirectBranch => {
                return instruction.op0_kind() == OpKind::Register && instruction.op0_register() == register;
            }
            FlowControl::Next | FlowControl::ConditionalBranch => {}
            _ => return false,
        }
        if instruction.is_invalid()
            || writes(&instruction, &mut factory).any(|written| written == register.full_register())
        {
            return false;
        }
        at += instruction.len();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::sites_of;
    use super::*;

    #[test]
    fn a_number_is_followed_into_the_register_of_a_system_call() {
        let found = |code: &[u8]| sites_of(Isa::X86_64, code).first().map(|(_, call, _)| *call);
        for (code, call) in [
            (&b"\xb8\xe4\0\0\0\x0f\x05\xc3"[..], TimeCall::ClockGettime),
            (b"\x48\xc7\xc0\xe4\0\0\0\x0f\x05", TimeCall::ClockGettime),
            (b"\x6a\x60\x58\x31\xf6\x0f\x05", TimeCall::Gettimeofday),
            (b"\x31\xc0\xb0\xc9\x0f\x05", TimeCall::Time),
            (b"\xbb\xe4\0\0\0\x89\xd8\x0f\x05", TimeCall::ClockGettime),
            (
                b"\xb8\xe4\0\0\0\x48\x89\xe6\xbf\x01\0\0\0\x0f\x05",
                TimeCall::ClockGettime,
            ),
            (b"\xb8\x09\x01\0\0\xcd\x80", TimeCall::ClockGettime),
        ] {
            assert_eq!(found(code), Some(call), "{code:02x?}");
        }
    }

    #[test]
    fn a_number_that_does_not_arrive_is_not_one() {
        for code in [
            &b"\xb8\xe4\0\0\0\xb8\x27\0\0\0\x0f\x05"[..], // overwritten
            b"\xb8\xe4\0\0\0\xe8\0\0\0\0\x0f\x05",        // a call
            b"\xb8\xe4\0\0\0\xc3\x0f\x05",                // a return
            b"\xbf\xe4\0\0\0\xb8\x27\0\0\0\x0f\x05",      // another register
            b"\xbf\xe4\0\0\0\x0f\x05",
            b"\xb8\xe4\0\0\0\x8b\x07\x0f\x05", // loaded from memory
            b"\x0f\x05",
        ] {
            assert_eq!(sites_of(Isa::X86_64, code), [], "{code:02x?}");
        }
    }

    #[test]
    fn a_read_of_the_counter_counts_with_whether_it_is_scaled() {
        const TOGETHER: &[u8] = b"\x48\xc1\xe2\x20\x48\x09\xd0"; // shl $32, %rdx; or %rdx, %rax
        let found = |code: &[&[u8]]| super::super::counter_reads_of(Isa::X86_64, &code.concat());
        let nops = &[0x90; 40][..];
        assert_eq!(found(&[nops, b"\x0f\x31", TOGETHER, b"\x48\xf7\xe1\xc3"]), [(40, true)]); // mul %rcx
        // cvtsi2sd %rax, %xmm0; mulsd %xmm1, %xmm0
        let (float, product) = (b"\xf2\x48\x0f\x2a\xc0", b"\xf2\x0f\x59\xc1\xc3");
        let in_float = |end| found(&[nops, b"\x0f\x01\xf9", TOGETHER, float, end]);
        assert_eq!(in_float(product), [(40, true)]);
        assert_eq!(in_float(b"\xc3"), [(40, false)]); // a number of cycles
        assert_eq!(found(&[nops, b"\x0f\x31", TOGETHER, b"\xc3"]), [(40, false)]);
        assert_eq!(found(&[nops, b"\x0f\x31\xf7\xe1\xc3"]), [(40, false)]); // the low half, as a seed
        // All of it modulo 1009: movabs $0x81e722c258cd00c3, %rcx; mul %rcx.
        let modulo = b"\x48\xb9\xc3\x00\xcd\x58\xc2\x22\xe7\x81\x48\xf7\xe1\xc3";
        assert_eq!(found(&[nops, b"\x0f\x31", TOGETHER, modulo]), [(40, false)]);
        // Part of a constant: mov $0x12310f00, %eax.
        assert_eq!(found(&[nops, b"\xb8\x00\x0f\x31\x12\xc3"]), []);
        assert_eq!(
            super::super::counter_reads_of(Isa::I386, &[nops, b"\x0f\x31\xc3"].concat()),
            [(40, false)]
        );
    }

    #[test]
    fn i386_has_three_ways() {
        for way in [&b"\xcd\x80"[..], b"\x0f\x34", THROUGH_THREAD_BLOCK] {
            let code = [b"\xb8\x93\x01\0\0", way].concat();
            assert_eq!(
                sites_of(Isa::I386, &code),
                [(5, TimeCall::ClockGettime64, CallKind::SystemCall)]
            );
        }
    }

    #[test]
    fn an_address_in_the_vsyscall_page_counts_where_it_is_called() {
        let found = |code: &[u8]| sites_of(Isa::X86_64, code).first().map(|(_, call, by)| (*call, *by));
        let load = b"\x48\xc7\xc0\x00\x04\x60\xff";
        assert_eq!(
            found(&[load, &b"\x31\xff\xff\xd0"[..]].concat()),
            Some((TimeCall::Time, CallKind::Vsyscall))
        );
        assert_eq!(
            found(b"\x48\xb8\x00\x00\x60\xff\xff\xff\xff\xff\xff\xd0"),
            Some((TimeCall::Gettimeofday, CallKind::Vsyscall))
        );
        // Only compared, as in tools that look for the page.
        assert_eq!(found(&[load, &b"\x48\x39\xc7\xc3"[..]].concat()), None);
    }
}
