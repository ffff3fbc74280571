//! Programs for i386 on an x86-64 kernel.

use fastpath_image::Isa;

use super::Registers;
use crate::abi::{Abi, Call, Hook};

/// The System V ABI for i386. The gadget enters the kernel by `int $0x80`: that works from any address and needs
/// nothing of the process, unlike `sysenter`, which returns into the kernel's own vDSO.
pub struct I386;

static HOOK: Option<Hook> = include!(concat!(env!("OUT_DIR"), "/hook_i386.rs"));

impl Abi for I386 {
    fn isa(&self) -> Isa {
        Isa::I386
    }

    fn word(&self) -> usize {
        4
    }

    /// arch/x86/entry/syscalls/syscall_32.tbl. mmap is mmap2, which counts the offset in pages.
    fn number(&self, call: Call) -> u64 {
        match call {
            Call::Close => 6,
            Call::Execve => 11,
            Call::Execveat => 358,
            Call::ExitGroup => 252,
            Call::Getpid => 20,
            Call::MemfdCreate => 356,
            Call::Mmap => 192,
            Call::Mprotect => 125,
            Call::Munmap => 91,
            Call::Prctl => 172,
            Call::Recvmsg => 372,
            Call::Socketpair => 360,
        }
    }

    fn gadget(&self) -> &'static [u8] {
        // int $0x80; mov $173 (rt_sigreturn), %eax; int $0x80
        &[0xcd, 0x80, 0xb8, 0xad, 0x00, 0x00, 0x00, 0xcd, 0x80]
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
        [r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp] = args.map(|argument| argument & 0xffff_ffff);
        Registers(r)
    }

    /// struct rt_sigframe_ia32 (arch/x86/include/asm/sigframe.h): the return address, the arguments of a handler, then
    /// struct ucontext_ia32 with struct sigcontext_32 (arch/x86/include/uapi/asm/sigcontext.h). No saved FPU state: at
    /// its first instruction a program has none.
    fn signal_frame(&self, registers: &Registers, mask: u64) -> Vec<u8> {
        /// pretcode, sig, pinfo, puc, and the siginfo of 128 bytes: none of it is read.
        const BEFORE_CONTEXT: usize = 4 * 4 + 128;
        let r = &registers.0;
        let context = [
            0,
            0, // uc_flags, uc_link
            0,
            2,
            0, // uc_stack: SS_DISABLE
            r.gs,
            r.fs,
            r.es,
            r.ds,
            r.rdi,
            r.rsi,
            r.rbp,
            r.rsp,
            r.rbx,
            r.rdx,
            r.rcx,
            r.rax,
            0,
            0, // trapno, err
            r.rip,
            r.cs,
            r.eflags,
            r.rsp,
            r.ss, // sp_at_signal before ss
            0,
            0,
            0, // fpstate, oldmask, cr2
            mask,
            mask >> 32,
        ];
        let mut frame = vec![0; BEFORE_CONTEXT];
        frame.extend(context.iter().flat_map(|word| (*word as u32).to_le_bytes()));
        frame
    }

    fn above_frame(&self) -> u64 {
        // The return address.
        4
    }

    fn hook(&self) -> Option<&'static Hook> {
        HOOK.as_ref()
    }

    fn sysinfo_thunk(&self, at: u64, door: u64, next: u64) -> Option<Vec<u8>> {
        /// Size of `call` or `jmp`, whose distance counts from its end.
        const BYTES: u64 = 5;
        let to = |opcode: u8, from: u64, target: u64| {
            let distance = target.wrapping_sub(from + BYTES) as u32;
            [&[opcode][..], &distance.to_le_bytes()].concat()
        };
        Some([to(0xe8, at, door), to(0xe9, at + BYTES, next)].concat())
    }

    fn counter_may_be_forbidden(&self) -> bool {
        true
    }
}
