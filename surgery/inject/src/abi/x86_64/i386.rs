//! Programs for i386 on an x86-64 kernel.

use fastpath_image::Isa;

use super::Registers;
use crate::abi::{Abi, Hook};

/// The System V ABI for i386. Remote calls enter the kernel by `int $0x80`: that works from any address and needs
/// nothing of the process, unlike `sysenter`, which returns into the kernel's own vDSO.
pub struct I386;

/// Opcodes of branches by a distance of 32 bits, which reaches every address.
const CALL: u8 = 0xe8;
const JMP: u8 = 0xe9;
const BRANCH_BYTES: usize = 5;

/// Returns a branch at `at` to `to`; its distance counts from its end.
fn branch(opcode: u8, at: u64, to: u64) -> [u8; BRANCH_BYTES] {
    let [a, b, c, d] = (to.wrapping_sub(at + BRANCH_BYTES as u64) as u32).to_le_bytes();
    [opcode, a, b, c, d]
}

static HOOK: Option<Hook> = include!(concat!(env!("OUT_DIR"), "/hook_i386.rs"));

impl Abi for I386 {
    fn isa(&self) -> Isa {
        Isa::I386
    }

    fn system_call(&self) -> &'static [u8] {
        // int $0x80
        &[0xcd, 0x80]
    }

    fn call_registers(&self, from: &Registers, pc: u64, number: u64, args: [u64; 6]) -> Registers {
        let mut r = from.0;
        r.rip = pc;
        // Outside any system call: nothing for the kernel to restart.
        r.orig_rax = u64::MAX;
        r.rax = number;
        [r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp] = args.map(|argument| argument & 0xffff_ffff);
        Registers(r)
    }

    fn trampoline(&self, program: &Registers, at: u64) -> Vec<u8> {
        let to = &program.0;
        let mut code = Vec::new();
        // mov
        for (opcode, value) in [
            (0xb8, to.rax),
            (0xbb, to.rbx),
            (0xb9, to.rcx),
            (0xba, to.rdx),
            (0xbe, to.rsi),
            (0xbf, to.rdi),
            (0xbd, to.rbp),
        ] {
            code.push(opcode);
            code.extend((value as u32).to_le_bytes());
        }
        code.extend(branch(JMP, at + code.len() as u64, to.rip));
        code
    }

    fn hook(&self) -> Option<&'static Hook> {
        HOOK.as_ref()
    }

    fn sysinfo_thunk(&self, at: u64, door: u64, next: u64) -> Option<Vec<u8>> {
        Some([branch(CALL, at, door), branch(JMP, at + BRANCH_BYTES as u64, next)].concat())
    }
}
