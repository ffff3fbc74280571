//! Programs for 32-bit Arm on an AArch64 kernel.

pub mod sites;

use fastpath_image::Isa;

use super::Registers;
use crate::abi::{Abi, Hook};

/// The procedure call standard for the Arm architecture, as the EABI of Linux has it. Remote calls are made in T32 state, whose
/// instructions need no alignment but to two bytes, as a program's entry point in that state may have.
pub struct Arm;

pub static ARM: Arm = Arm;

/// cpsr, bit 5: the instructions are T32.
const T32: u64 = 1 << 5;

static HOOK: Option<Hook> = include!(concat!(env!("OUT_DIR"), "/hook_arm.rs"));

impl Abi for Arm {
    fn isa(&self) -> Isa {
        Isa::Arm
    }

    /// A jump in T32 state reaches 16 MiB, and its first instructions would have to be decoded. Signal frames return by another page
    /// than the vDSO.
    fn redirects_vdso(&self) -> bool {
        false
    }

    fn system_call(&self) -> &'static [u8] {
        // svc #0, T32
        &[0x00, 0xdf]
    }

    fn call_registers(&self, from: &Registers, pc: u64, number: u64, args: [u64; 6]) -> Registers {
        let mut to = *from;
        to.general.pc = pc;
        to.general.pstate |= T32;
        to.general.regs[7] = number;
        to.general.regs[..6].copy_from_slice(&args.map(|argument| argument & 0xffff_ffff));
        to
    }

    /// A load of the pc needs no register, and changes to the state of the address's lowest bit.
    fn trampoline(&self, program: &Registers, at: u64) -> Vec<u8> {
        const RESTORED: [usize; 7] = [0, 1, 2, 3, 4, 5, 7];
        /// `ldr r0, [pc, #0]`, and `ldr.w pc, [pc, #0]` in two halves. The pc is that of the instruction, two instructions on,
        /// without its lowest two bits.
        const LDR: u16 = 0x4800;
        const LDR_PC: [u16; 2] = [0xf8df, 0xf000];
        const CODE_BYTES: u64 = 2 * (RESTORED.len() + LDR_PC.len()) as u64;
        let r = &program.general;
        let values_at = (at + CODE_BYTES).next_multiple_of(4);
        let distance = |index: usize| {
            let pc = at + 2 * index as u64 + 4 & !3;
            (values_at + 4 * index as u64 - pc) as u16
        };
        let loads = RESTORED.iter().enumerate();
        let mut code: Vec<u16> = loads
            .map(|(i, register)| LDR | (*register as u16) << 8 | distance(i) / 4)
            .collect();
        code.extend([LDR_PC[0], LDR_PC[1] | distance(RESTORED.len())]);
        let mut code: Vec<u8> = code.into_iter().flat_map(u16::to_le_bytes).collect();
        code.resize((values_at - at) as usize, 0);
        let state = u64::from(r.pstate & T32 != 0);
        let values = RESTORED.map(|register| r.regs[register]);
        let values = values.into_iter().chain([r.pc | state]);
        code.extend(values.flat_map(|value| (value as u32).to_le_bytes()));
        code
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
        (program.is_32_bit, program.general.pc) = (true, 0x1_0400);
        for (value, register) in (0x1111_0000..).zip(&mut program.general.regs) {
            *register = value;
        }
        // The code begins after `svc`, at an address that ends in 2; the entry point is A32, then T32.
        for (at, state) in [(0x7002, 0), (0x7002, T32), (0x7000, T32)] {
            program.general.pstate = 0x10 | state;
            let code = ARM.trampoline(&program, at);
            let half = |i: usize| u16::from_le_bytes(code[2 * i..2 * i + 2].try_into().unwrap());
            let word = |i: usize, distance: u16| {
                let at = ((at + 2 * i as u64 + 4 & !3) + u64::from(distance) - at) as usize;
                u64::from(u32::from_le_bytes(code[at..at + 4].try_into().unwrap()))
            };
            for (i, register) in [0, 1, 2, 3, 4, 5, 7].into_iter().enumerate() {
                assert_eq!(half(i) >> 8, 0x48 | register as u16, "ldr");
                assert_eq!(word(i, (half(i) & 0xff) * 4), program.general.regs[register]);
            }
            assert_eq!((half(7), half(8) >> 12), (0xf8df, 0xf), "ldr.w pc");
            assert_eq!(word(7, half(8) & 0xfff), 0x1_0400 | state >> 5);
        }
        let called = ARM.call_registers(&program, 0x7000, 192, [u64::MAX; 6]);
        assert_eq!(
            called.general.regs[..8],
            [
                0xffff_ffff,
                0xffff_ffff,
                0xffff_ffff,
                0xffff_ffff,
                0xffff_ffff,
                0xffff_ffff,
                0x1111_0006,
                192
            ]
        );
    }
}
