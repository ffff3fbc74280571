//! Programs for AArch64, and how its kernel shows them.

mod arm;
mod registers;
pub mod running;
mod shape;
pub mod sites;

pub use registers::{Registers, WAITS_ON_FUTEX};

use fastpath_image::Isa;

use super::{Abi, Hook};

/// Bytes of every instruction.
const INSTRUCTION: usize = 4;
/// `svc #0`
const SVC: u32 = 0xd400_0001;

/// Returns the ABI of the program whose registers these are.
pub fn for_registers(registers: &Registers) -> &'static dyn Abi {
    if registers.is_32_bit { &arm::ARM } else { &AARCH64 }
}

/// Returns the ABI of programs for this instruction set, if such a kernel starts them.
pub fn of_isa(isa: Isa) -> Option<&'static dyn Abi> {
    match isa {
        Isa::Aarch64 => Some(&AARCH64),
        Isa::Arm => Some(&arm::ARM),
        _ => None,
    }
}

/// Largest distance of a region from the vDSO: well within the reach of a jump, 128 MiB.
pub const REACH: u64 = 96 << 20;
/// End of the address space of programs that ask for no more, with 48 bits (Documentation/arch/arm64/memory.rst).
pub const CEILING: u64 = 1 << 48;

/// The procedure call standard for AArch64, with 64-bit pointers.
struct Aarch64;

/// The ABI of the host's own programs.
pub const NATIVE: &dyn Abi = &Aarch64;
/// Most tails from which the calls of one program are made: each reaches only the code near it.
pub const MOST_TAILS: usize = 64;

static AARCH64: Aarch64 = Aarch64;
static HOOK: Option<Hook> = include!(concat!(env!("OUT_DIR"), "/hook_aarch64.rs"));

impl Abi for Aarch64 {
    fn isa(&self) -> Isa {
        Isa::Aarch64
    }

    fn system_call(&self) -> &'static [u8] {
        // svc #0
        &[0x01, 0x00, 0x00, 0xd4]
    }

    fn call_registers(&self, from: &Registers, pc: u64, number: u64, args: [u64; 6]) -> Registers {
        let mut to = *from;
        // Outside any system call: nothing for the kernel to restart.
        to.system_call = -1;
        to.general.pc = pc;
        to.general.regs[8] = number;
        to.general.regs[..6].copy_from_slice(&args);
        to
    }

    fn reaches(&self, from: u64, to: u64) -> bool {
        sites::branch(from, to).is_some()
    }

    /// The jump back changes no register, if it reaches. Otherwise it changes x17: a program that has not run an instruction
    /// has nothing in it (AAPCS64: linkers' code may change it between any two functions). RET, unlike BR, needs no
    /// landing pad in guarded pages.
    fn trampoline(&self, program: &Registers, at: u64) -> Vec<u8> {
        const RESTORED: [usize; 7] = [0, 1, 2, 3, 4, 5, 8];
        const JUMP: usize = 17;
        /// `ldr x0, .` and `ret x0`
        const LDR: u32 = 0x5800_0000;
        const RET: u32 = 0xd65f_0000;
        let r = &program.continuing().general;
        let mut values = RESTORED.map(|register| (register, r.regs[register])).to_vec();
        let direct = sites::branch(at + (values.len() * INSTRUCTION) as u64, r.pc);
        let jump = direct.unwrap_or_else(|| {
            values.push((JUMP, r.pc));
            RET | (JUMP as u32) << 5
        });
        // The values are after the code, each of the size of two instructions; distances count in instructions.
        let loads = values.iter().enumerate().map(|(i, (register, _))| {
            let value_at = values.len() + 1 + 2 * i;
            LDR | ((value_at - i) as u32) << 5 | *register as u32
        });
        let code = loads.chain([jump]).flat_map(u32::to_le_bytes);
        let data = values.iter().flat_map(|(_, value)| value.to_le_bytes());
        code.chain(data).collect()
    }

    fn hook(&self) -> Option<&'static Hook> {
        HOOK.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_trampoline_restores_every_register_that_a_remote_call_changes() {
        let mut program = Registers::zeroed();
        program.general.pc = 0x5555_1000;
        for (value, register) in (0x1111_0000..).zip(&mut program.general.regs) {
            *register = value;
        }
        let registers = [0, 1, 2, 3, 4, 5, 8].map(|i| (i as u32, program.general.regs[i]));
        let far = [&registers[..], &[(17, program.general.pc)]].concat();
        // ret x17; b .+0x400
        for (at, expected, jump) in [
            (0, &far[..], 0xd65f_0220_u32),
            (program.general.pc - 0x41c, &registers, 0x1400_0100),
        ] {
            let code = AARCH64.trampoline(&program, at);
            let instruction = |i: usize| u32::from_le_bytes(code[4 * i..4 * i + 4].try_into().unwrap());
            let loaded: Vec<(u32, u64)> = (0..expected.len())
                .map(|i| {
                    assert_eq!(instruction(i) >> 24, 0x58, "ldr");
                    let at = 4 * (i + (instruction(i) >> 5 & 0x7_ffff) as usize);
                    let value = u64::from_le_bytes(code[at..at + 8].try_into().unwrap());
                    (instruction(i) & 0x1f, value)
                })
                .collect();
            assert_eq!((&loaded[..], instruction(loaded.len())), (expected, jump));
        }
    }
}
