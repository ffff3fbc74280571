//! Where a function of x86-64 returns to, by its code: for one without call frame information.

use std::collections::HashSet;

use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Mnemonic, OpKind, Register};

use crate::calls::x86_registers::writes;

/// Returns the number of bytes between the stack pointer at the beginning of `code` and the return address of its
/// function: what is popped on the way to a `ret`. `None` if `code` has no such way on which that is certain.
pub fn bytes_below_return_address(code: &[u8]) -> Option<usize> {
    let mut factory = InstructionInfoFactory::new();
    let mut seen = HashSet::new();
    let mut next = vec![(0, 0)];
    while let Some((at, popped)) = next.pop() {
        let Some(rest) = code.get(at as usize..).filter(|_| seen.insert(at)) else {
            continue;
        };
        let instruction = Decoder::with_ip(64, rest, at, DecoderOptions::NONE).decode();
        let is_sum = instruction.op0_kind() == OpKind::Register
            && instruction.op0_register() == Register::RSP
            && matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
        let is_call = matches!(
            instruction.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        );
        let popped: i64 = match instruction.mnemonic() {
            Mnemonic::Add if is_sum => popped + instruction.immediate(1) as i64,
            Mnemonic::Sub if is_sum => popped - instruction.immediate(1) as i64,
            Mnemonic::Push | Mnemonic::Pop if instruction.op0_register() != Register::RSP => {
                popped + i64::from(instruction.stack_pointer_increment())
            }
            Mnemonic::Ret => return usize::try_from(popped).ok(),
            _ if is_call || !writes(&instruction, &mut factory).any(|register| register == Register::RSP) => popped,
            _ => continue,
        };
        let (target, behind) = (instruction.near_branch_target(), instruction.next_ip());
        // The way behind a branch is tried first: that of a failed check ends in a call that does not return.
        match instruction.flow_control() {
            _ if instruction.is_invalid() => {}
            FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => next.push((behind, popped)),
            FlowControl::ConditionalBranch => next.extend([(target, popped), (behind, popped)]),
            FlowControl::UnconditionalBranch => next.push((target, popped)),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::bytes_below_return_address;

    #[test]
    fn what_an_epilogue_pops_is_below_the_return_address() {
        for (code, bytes) in [
            (&b"\xc3"[..], Some(0)),
            // test %eax, %eax; je 1f; syscall; 1: add $8, %rsp; pop %rbx; pop %rbp; ret
            (b"\x85\xc0\x74\x02\x0f\x05\x48\x83\xc4\x08\x5b\x5d\xc3", Some(24)),
            // push %rax; call; add $0x110, %rsp; ret
            (b"\x50\xe8\0\0\0\0\x48\x81\xc4\x10\x01\0\0\xc3", Some(0x108)),
            (b"\x48\x89\xec\xc3", None), // mov %rbp, %rsp; ret
            (b"\xeb\xfe", None),
            (b"\x48\x83\xec\x08\xc3", None), // sub $8, %rsp; ret
        ] {
            assert_eq!(bytes_below_return_address(code), bytes, "{code:02x?}");
        }
    }
}
