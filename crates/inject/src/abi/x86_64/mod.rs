//! Programs for x86-64, and how an x86-64 kernel shows its programs.

mod i386;
mod registers;
pub mod running;
pub mod sites;

pub use registers::Registers;

use fastpath_image::Isa;

use super::{Abi, Call, Hook};

/// Returns the ABI of the program whose registers these are.
pub fn of(registers: &Registers) -> &'static dyn Abi {
    if registers.is_32_bit() { &i386::I386 } else { &X86_64 }
}

/// Returns the ABI of programs for this instruction set, if such a kernel starts them.
pub fn of_isa(isa: Isa) -> Option<&'static dyn Abi> {
    match isa {
        Isa::X86_64 => Some(&X86_64),
        Isa::I386 => Some(&i386::I386),
        _ => None,
    }
}

/// The System V ABI for x86-64, with 64-bit pointers.
struct X86_64;

static HOOK: Option<Hook> = include!(concat!(env!("OUT_DIR"), "/hook_x86_64.rs"));

impl Abi for X86_64 {
    fn isa(&self) -> Isa {
        Isa::X86_64
    }

    fn word(&self) -> usize {
        8
    }

    fn number(&self, call: Call) -> u64 {
        super::number_on_this_host(call)
    }

    fn gadget(&self) -> &'static [u8] {
        // syscall; mov $15 (rt_sigreturn), %eax; syscall
        &[0x0f, 0x05, 0xb8, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05]
    }

    fn instruction(&self) -> usize {
        2
    }

    fn call_registers(&self, from: &Registers, pc: u64, sp: u64, number: u64, args: [u64; 6]) -> Registers {
        let mut r = from.0;
        r.rip = pc;
        r.rsp = sp;
        // Outside any system call: nothing for the kernel to restart.
        r.orig_rax = u64::MAX;
        r.rax = number;
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = args;
        Registers(r)
    }

    /// struct rt_sigframe: the return address, then struct ucontext (include/uapi/asm-generic/ucontext.h) with struct
    /// sigcontext_64 (arch/x86/include/uapi/asm/sigcontext.h). No saved FPU state: at its first instruction a program
    /// has none.
    fn signal_frame(&self, registers: &Registers, mask: u64) -> Vec<u8> {
        /// arch/x86/include/uapi/asm/ucontext.h: UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS
        const UC_FLAGS: u64 = 2 | 4;
        let r = &registers.0;
        let segments = (r.cs & 0xffff) | (r.ss & 0xffff) << 48;
        let words = [
            0, // return address, popped already
            UC_FLAGS, 0, // uc_link
            0, 2, 0, // uc_stack: SS_DISABLE
            r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx,
            r.rsp, r.rip, r.eflags, segments, 0, 0, 0, 0, // err, trapno, oldmask, cr2
            0, // fpstate
            0, 0, 0, 0, 0, 0, 0, 0, // reserved
            mask,
        ];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn above_frame(&self) -> u64 {
        // The return address.
        8
    }

    fn hook(&self) -> Option<&'static Hook> {
        HOOK.as_ref()
    }

    fn sysinfo_thunk(&self, _at: u64, _door: u64, _next: u64) -> Option<Vec<u8>> {
        None
    }

    fn counter_may_be_forbidden(&self) -> bool {
        true
    }
}
