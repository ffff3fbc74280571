//! Where the functions of a vDSO have the id of the clock that they read: on x86-64, after each instruction.

use std::collections::HashMap;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

use crate::calls::x86_registers::writes;

/// Instructions that are decoded: many times those of a vDSO.
const MOST_INSTRUCTIONS: usize = 1 << 16;

/// The places that have the id when an instruction is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Bit n: the register that instructions encode as n.
    registers: u32,
    /// A copy on the stack: its offset from rsp.
    slot: Option<i64>,
}

impl Places {
    /// At the entry of clock_gettime: its first argument.
    pub const ARGUMENT: Places = Places::new(1 << 7, None);
    /// In gettimeofday and time, which read REALTIME: no register has its id.
    pub const REALTIME: Places = Places::new(1 << 16, None);
    /// Registers that a function may change, by the ABI, and those that a system call changes.
    const CHANGED_BY_CALL: u32 = 0b1111_1100_0111;
    const CHANGED_BY_SYSTEM_CALL: u32 = 1 << 0 | 1 << 1 | 1 << 11;
    const RSP: u32 = 1 << 4;

    const fn new(registers: u32, slot: Option<i64>) -> Places {
        Places { registers, slot }
    }

    /// Returns whether the clock is REALTIME, whatever the registers are.
    pub fn is_realtime(self) -> bool {
        self.registers & Places::REALTIME.registers != 0
    }

    /// Returns the registers that have the id, as instructions encode them: 0 is rax, 7 is rdi, 15 is r15.
    pub fn registers(self) -> impl Iterator<Item = usize> {
        (0..16).filter(move |register| self.registers >> register & 1 != 0)
    }

    /// Returns the offset from rsp of a copy on the stack.
    pub fn slot(self) -> Option<i64> {
        self.slot
    }

    /// Returns the places of both.
    fn common(self, other: Places) -> Places {
        let slot = self.slot.filter(|_| self.slot == other.slot);
        Places::new(self.registers & other.registers, slot)
    }

    /// Returns the places after an instruction, in the code that follows it.
    fn after(self, instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Places {
        let bit = |register: Register| match register.is_gpr32() || register.is_gpr64() {
            true => 1 << register.number(),
            false => 0,
        };
        let changed = match instruction.flow_control() {
            _ if instruction.mnemonic() == Mnemonic::Syscall => Places::CHANGED_BY_SYSTEM_CALL,
            FlowControl::Call | FlowControl::IndirectCall => Places::CHANGED_BY_CALL,
            _ => writes(instruction, factory).fold(0, |changed, register| changed | bit(register)),
        };
        let (to, from) = (instruction.op0_register(), instruction.op1_register());
        let is_memory = |operand| instruction.op_kind(operand) == OpKind::Memory;
        let is_on_stack = instruction.memory_base() == Register::RSP && instruction.memory_index() == Register::None;
        let offset = Some(instruction.memory_displacement64() as i64).filter(|_| is_on_stack);
        let has_id = self.registers & bit(from) != 0;
        let gains_id = match instruction.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movsxd if is_memory(1) => offset.is_some() && offset == self.slot,
            Mnemonic::Mov | Mnemonic::Movsxd => has_id,
            // REALTIME's id is 0.
            Mnemonic::Xor => to == from && self.is_realtime(),
            _ => false,
        };
        let stored = match (offset, self.slot) {
            (Some(_), _) if is_memory(0) && instruction.mnemonic() == Mnemonic::Mov && has_id => offset,
            (Some(offset), Some(slot)) if is_memory(0) && offset.abs_diff(slot) < 16 => {
                // Another value, beside it or over it.
                let end = offset + instruction.memory_size().size() as i64;
                Some(slot).filter(|slot| end <= *slot || slot + 4 <= offset)
            }
            _ => self.slot,
        };
        Places {
            registers: self.registers & !changed | if gains_id { bit(to) } else { 0 },
            slot: stored.filter(|_| changed & Places::RSP == 0),
        }
    }
}

/// Returns where the id is when each instruction is reached that follows from the entries, of which the places are
/// stated; none, if that is too much code. `code` returns the bytes from an address on; code that it does not know is left
/// out.
pub fn clock_id_places<'c>(entries: &[(u64, Places)], code: impl Fn(u64) -> Option<&'c [u8]>) -> HashMap<u64, Places> {
    let mut known: HashMap<u64, Places> = entries.iter().copied().collect();
    let mut next: Vec<u64> = known.keys().copied().collect();
    let mut factory = InstructionInfoFactory::new();
    for _ in 0..MOST_INSTRUCTIONS {
        let Some(address) = next.pop() else { break };
        let Some(bytes) = code(address) else { continue };
        let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        let before = known[&address];
        let after = before.after(&instruction, &mut factory);
        let (target, behind) = (instruction.near_branch_target(), instruction.next_ip());
        let (target, behind) = match instruction.flow_control() {
            _ if instruction.is_invalid() => continue,
            FlowControl::Next | FlowControl::IndirectCall => (None, Some((behind, after))),
            FlowControl::Call if instruction.mnemonic() == Mnemonic::Syscall => (None, Some((behind, after))),
            FlowControl::Call => (
                Some((target, Places::new(before.registers, None))),
                Some((behind, after)),
            ),
            FlowControl::ConditionalBranch => (Some((target, after)), Some((behind, after))),
            FlowControl::UnconditionalBranch => (Some((target, after)), None),
            _ => continue,
        };
        for (address, places) in target.into_iter().chain(behind) {
            // Code that is reached on several ways has the id where all have it. An entry has it by its contract.
            let places = match known.get(&address) {
                Some(other) if entries.iter().any(|(entry, _)| *entry == address) => *other,
                Some(other) => other.common(places),
                None => places,
            };
            if known.insert(address, places) != Some(places) {
                next.push(address);
            }
        }
    }
    if !next.is_empty() {
        known.clear();
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_followed_through_copies_branches_and_calls() {
        // clock_gettime: mov %edi, %ecx; test %ecx, %ecx; je 1f; movslq %edi, %r8; xor %edi, %edi; 1: call helper;
        // syscall; ret. helper: mov (%rdi), %rdi; ret. time: xor %edx, %edx; jmp 1b.
        let code =
            b"\x89\xf9\x85\xc9\x74\x05\x4c\x63\xc7\x31\xff\xe8\x03\0\0\0\x0f\x05\xc3\x48\x8b\x3f\xc3\x31\xd2\xeb\xf0";
        let at = |address: u64| code.get(address as usize..);
        let registers = |entries: &[(u64, Places)]| {
            let places = clock_id_places(entries, at);
            move |address: u64| {
                let at = places.get(&address).expect("it is reached");
                (at.is_realtime(), at.registers().collect::<Vec<_>>())
            }
        };
        let alone = registers(&[(0, Places::ARGUMENT)]);
        assert_eq!(alone(0), (false, vec![7]));
        assert_eq!(alone(2), (false, vec![1, 7]));
        assert_eq!(alone(9), (false, vec![1, 7, 8]));
        assert_eq!(alone(11), (false, vec![1])); // edi is cleared on one of two ways
        assert_eq!(alone(19), (false, vec![1])); // the helper
        assert_eq!(alone(16), (false, vec![])); // behind its call
        let both = registers(&[(0, Places::ARGUMENT), (23, Places::REALTIME)]);
        assert_eq!(both(25), (true, vec![2]));
        assert_eq!(both(11), (false, vec![])); // ways of two functions
        assert_eq!(both(0), (false, vec![7]));
    }

    #[test]
    fn an_id_on_the_stack_outlives_a_call_but_no_other_store_over_it() {
        // mov %rsi, (%rsp); mov %edi, 0xc(%rsp); call helper; mov 0xc(%rsp), %edi; mov %rax, 0x8(%rsp); ret. helper: ret.
        let code = b"\x48\x89\x34\x24\x89\x7c\x24\x0c\xe8\x0a\0\0\0\x8b\x7c\x24\x0c\x48\x89\x44\x24\x08\xc3\xc3";
        let places = clock_id_places(&[(0, Places::ARGUMENT)], |at| code.get(at as usize..));
        let at = |address: u64| {
            let at = places.get(&address).expect("it is reached");
            (at.slot(), at.registers().collect::<Vec<_>>())
        };
        assert_eq!(at(4), (None, vec![7]));
        assert_eq!(at(8), (Some(12), vec![7]));
        assert_eq!(at(23), (None, vec![7])); // the helper has a stack pointer of its own
        assert_eq!(at(13), (Some(12), vec![]));
        assert_eq!(at(17), (Some(12), vec![7]));
        assert_eq!(at(22), (None, vec![7]));
    }
}
