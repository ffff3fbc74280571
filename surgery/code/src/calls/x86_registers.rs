//! The values that x86 instructions leave in registers.

use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind,
    Register,
};

pub(crate) fn writes<'a>(
    instruction: &Instruction,
    factory: &'a mut InstructionInfoFactory,
) -> impl Iterator<Item = Register> + 'a {
    factory
        .info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE)
        .used_registers()
        .iter()
        .filter(|used| {
            matches!(
                used.access(),
                OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite | OpAccess::ReadCondWrite
            )
        })
        .map(|used| used.register().full_register())
}

/// The known values of the general registers on a straight line of code.
#[derive(Default)]
pub(super) struct Registers {
    values: [Option<u64>; 16],
    pushed: Vec<Option<u64>>,
}

fn index(register: Register) -> Option<usize> {
    register
        .is_gpr()
        .then(|| register.full_register() as usize - Register::RAX as usize)
}

impl Registers {
    pub(super) fn value(&self, register: Register) -> Option<u64> {
        index(register).and_then(|index| self.values[index])
    }

    fn set(&mut self, register: Register, value: Option<u64>) {
        if let Some(index) = index(register) {
            let mask = if register.is_gpr32() { 0xffff_ffff } else { u64::MAX };
            self.values[index] = value.map(|value| value & mask);
        }
    }

    /// Returns the value of a register or of a constant.
    fn operand(&self, instruction: &Instruction, operand: u32) -> Option<u64> {
        match instruction.op_kind(operand) {
            OpKind::Register
                if instruction.op_register(operand).is_gpr32() || instruction.op_register(operand).is_gpr64() =>
            {
                self.value(instruction.op_register(operand))
            }
            OpKind::Immediate8
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64 => Some(instruction.immediate(operand)),
            _ => None,
        }
    }

    /// Steps over one instruction.
    pub(super) fn step(&mut self, instruction: &Instruction, factory: &mut InstructionInfoFactory) {
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::Interrupt => {}
            FlowControl::Call | FlowControl::IndirectCall if instruction.mnemonic() != Mnemonic::Syscall => {
                // Registers that a function may change, by the ABI.
                for index in [0, 1, 2, 6, 7, 8, 9, 10, 11] {
                    self.values[index] = None;
                }
                return;
            }
            FlowControl::Call | FlowControl::IndirectCall => {}
            // The next instruction is reached from elsewhere.
            _ => *self = Registers::default(),
        }
        let target = instruction.op0_register();
        let is_whole = instruction.op0_kind() == OpKind::Register && (target.is_gpr32() || target.is_gpr64());
        let result = match instruction.mnemonic() {
            Mnemonic::Push => {
                self.pushed.push(self.operand(instruction, 0));
                return;
            }
            Mnemonic::Pop if is_whole => self.pushed.pop().flatten(),
            Mnemonic::Mov if is_whole => self.operand(instruction, 1),
            Mnemonic::Mov if instruction.code() == Code::Mov_r8_imm8 && is_low_byte(target) => self
                .value(target)
                .map(|value| value & !0xff | instruction.immediate(1) & 0xff),
            Mnemonic::Xor | Mnemonic::Sub
                if is_whole && instruction.op1_kind() == OpKind::Register && instruction.op1_register() == target =>
            {
                Some(0)
            }
            Mnemonic::Add if is_whole => add(self.operand(instruction, 0), self.operand(instruction, 1)),
            Mnemonic::Or if is_whole => self
                .operand(instruction, 0)
                .zip(self.operand(instruction, 1))
                .map(|(a, b)| a | b),
            Mnemonic::Lea
                if is_whole
                    && instruction.memory_index() == Register::None
                    && !instruction.is_ip_rel_memory_operand() =>
            {
                add(
                    self.value(instruction.memory_base()),
                    Some(instruction.memory_displacement64()),
                )
            }
            _ => {
                let written: Vec<Register> = writes(instruction, factory).collect();
                for register in written {
                    self.set(register, None);
                }
                return;
            }
        };
        self.set(target, result);
    }
}

fn add(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.zip(b).map(|(a, b)| a.wrapping_add(b))
}

fn is_low_byte(register: Register) -> bool {
    register.is_gpr8() && !matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)
}
