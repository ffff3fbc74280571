//! x86-64.

use super::{RegisterOffsets, StoppedThread};
use crate::trace::clock_ids::GeneralRegisters;
use fastpath_image::Isa;
use fastpath_os::bpf::asm::*;
use fastpath_os::bpf::helper;
use framehop::x86_64::UnwindRegsX86_64;
pub(crate) use framehop::x86_64::{CacheX86_64 as Cache, UnwinderX86_64 as NativeUnwinder};
use nix::sys::ptrace;
use nix::unistd::Pid;

// arch/x86/include/asm/ptrace.h
pub(crate) const REGISTERS: RegisterOffsets = RegisterOffsets {
    size: 168,
    ip: 128,
    sp: 152,
    frame: 32,
    argument: 112,
    compat_argument: 40,
};
/// RCX: SYSCALL leaves the return address there, `int $0x80` does not.
pub(crate) const CX: i16 = 88;
pub(crate) const CS: i16 = 136;
/// The code segment of 32-bit programs.
pub(crate) const USER32_CS: i32 = 0x23;
/// Set in the numbers of x32 programs.
pub(crate) const FOREIGN_BIT: u32 = 0x4000_0000;
pub(crate) const COMPAT: Isa = Isa::I386;

/// Branches to `native` or `compat` by the registers, which are at an offset in the stack frame, as are 8 bytes of scratch
/// memory. The number alone is not sufficient: one program may use both.
pub(crate) fn branch_on_abi(asm: &mut Assembler, registers: i16, scratch: i16) {
    const INT_0X80: i32 = 0x80cd;
    asm.load(Width::Double, R1, FP, registers + CS);
    asm.if_is(R1, USER32_CS, "compat");
    // 64-bit code may use `int $0x80`. SYSCALL leaves the return address in RCX (except with FRED), so the instruction
    // seldom has to be read.
    asm.load(Width::Double, R1, FP, registers + CX);
    asm.if_equal(R1, R6, "native");
    asm.address(R1, scratch);
    asm.set(R2, 2);
    asm.mov(R3, R6);
    asm.add(R3, -2);
    asm.call(helper::PROBE_READ_USER);
    asm.if_is_not(R0, 0, "native");
    asm.load(Width::Half, R1, FP, scratch);
    asm.if_is(R1, INT_0X80, "compat");
}

impl StoppedThread {
    /// Reads the registers of a thread in a seccomp stop.
    pub(crate) fn read(thread: Pid) -> Option<StoppedThread> {
        const VSYSCALL_PAGE: u64 = 0xffff_ffff_ff60_0000;
        let registers = ptrace::getregs(thread).ok()?;
        let is_vsyscall = registers.rip & !0xfff == VSYSCALL_PAGE;
        let (ip, sp) = if is_vsyscall {
            // State after the return to the caller of the vsyscall page, whose "functions" push nothing.
            (
                ptrace::read(thread, registers.rsp as *mut _).ok()? as u64,
                registers.rsp + 8,
            )
        } else {
            (registers.rip, registers.rsp)
        };
        let is_32_bit_code = registers.cs == USER32_CS as u64;
        let is_compat = is_32_bit_code
            || !is_vsyscall && {
                // 64-bit code may use `int $0x80`.
                let word = ptrace::read(thread, (registers.rip - 2) as *mut _).unwrap_or(0);
                word & 0xffff == 0x80cd
            };
        Some(StoppedThread {
            number: registers.orig_rax & !u64::from(if is_compat { 0 } else { FOREIGN_BIT }),
            is_compat,
            is_vsyscall,
            argument: if is_compat { registers.rbx } else { registers.rdi },
            ip,
            sp,
            frame: registers.rbp,
        })
    }
}

/// The user's registers in a sample (`enum perf_event_x86_regs` of the kernel's uapi): ax, bx, cx, dx, si, di, bp, sp, ip;
/// r8 to r15.
pub(crate) const SAMPLED: u64 = 0xff_01ff;

/// Returns bp, sp and ip of the registers in a sample, and all general registers.
pub(crate) fn split(registers: &[u64]) -> Option<([u64; 3], Option<GeneralRegisters>)> {
    let &[ax, bx, cx, dx, si, di, bp, sp, ip, r8, r9, r10, r11, r12, r13, r14, r15] = registers else {
        return None;
    };
    let general = [ax, cx, dx, bx, sp, bp, si, di, r8, r9, r10, r11, r12, r13, r14, r15];
    Some(([bp, sp, ip], Some(general)))
}

/// Returns the registers from which a stack is unwound.
pub(crate) fn unwound_from(ip: u64, sp: u64, frame: u64) -> UnwindRegsX86_64 {
    UnwindRegsX86_64::new(ip, sp, frame)
}
