//! Programs for AArch64, and how its kernel shows them.

mod registers;
pub mod sites;

pub use registers::Registers;

use fastpath_image::Isa;

use super::{Abi, Call, Hook};

/// Returns the ABI of the program whose registers these are: a 32-bit program has none here.
pub fn of(_registers: &Registers) -> &'static dyn Abi {
    &AARCH64
}

/// Returns the ABI of programs for this instruction set, if it is served.
pub fn of_isa(isa: Isa) -> Option<&'static dyn Abi> {
    (isa == Isa::Aarch64).then_some(&AARCH64 as &dyn Abi)
}

/// The procedure call standard for AArch64, with 64-bit pointers.
struct Aarch64;

static AARCH64: Aarch64 = Aarch64;
static HOOK: Option<Hook> = include!(concat!(env!("OUT_DIR"), "/hook_aarch64.rs"));

impl Abi for Aarch64 {
    fn isa(&self) -> Isa {
        Isa::Aarch64
    }

    fn word(&self) -> usize {
        8
    }

    fn number(&self, call: Call) -> u64 {
        super::number_on_this_host(call)
    }

    fn gadget(&self) -> &'static [u8] {
        // svc #0; mov x8, #139 (rt_sigreturn); svc #0
        &[0x01, 0x00, 0x00, 0xd4, 0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4]
    }

    fn instruction(&self) -> usize {
        4
    }

    fn call_registers(&self, from: &Registers, pc: u64, sp: u64, number: u64, args: [u64; 6]) -> Registers {
        let mut to = *from;
        to.general.pc = pc;
        to.general.sp = sp;
        to.general.regs[8] = number;
        to.general.regs[..6].copy_from_slice(&args);
        to
    }

    /// struct rt_sigframe (arch/arm64/kernel/signal.c): 128 bytes of siginfo, struct ucontext with struct sigcontext
    /// (arch/arm64/include/uapi/asm/), and records, of which that of the FPU is required. It is all zeros, which is the
    /// FPU's state at a program's first instruction; so is that of wider registers (SVE), whose records may be left
    /// out.
    fn signal_frame(&self, registers: &Registers, mask: u64) -> Vec<u8> {
        const SIGINFO: usize = 128;
        /// Flags, link, stack (pointer, flags, size); the mask, and room for it to grow; up to a multiple of 16.
        const MASK: usize = SIGINFO + 8 + 8 + 24;
        const STACK_FLAGS: usize = SIGINFO + 8 + 8 + 8;
        const CONTEXT: usize = SIGINFO + 176;
        /// Fault address, x0 to x30, sp, pc, pstate; up to a multiple of 16.
        const RECORDS: usize = CONTEXT + 288;
        const SS_DISABLE: u64 = 2;
        const FPSIMD_MAGIC: u64 = 0x4650_8001;
        /// Magic and size, FPSR and FPCR, 32 registers of 16 bytes.
        const FPSIMD_BYTES: usize = 8 + 8 + 512;
        /// A record of size 0 ends them.
        const END: usize = 16;
        let mut frame = vec![0; RECORDS + FPSIMD_BYTES + END];
        let mut put = |at: usize, words: &[u64]| {
            for (index, word) in words.iter().enumerate() {
                frame[at + index * 8..][..8].copy_from_slice(&word.to_le_bytes());
            }
        };
        let r = &registers.general;
        put(STACK_FLAGS, &[SS_DISABLE]);
        put(MASK, &[mask]);
        put(CONTEXT + 8, &r.regs);
        put(CONTEXT + 8 + 31 * 8, &[r.sp, r.pc, r.pstate]);
        put(RECORDS, &[FPSIMD_MAGIC | (FPSIMD_BYTES as u64) << 32]);
        frame
    }

    fn above_frame(&self) -> u64 {
        0
    }

    fn hook(&self) -> Option<&'static Hook> {
        HOOK.as_ref()
    }

    fn sysinfo_thunk(&self, _at: u64, _door: u64, _next: u64) -> Option<Vec<u8>> {
        None
    }

    /// Since Linux 6.12.
    fn counter_may_be_forbidden(&self) -> bool {
        true
    }
}
