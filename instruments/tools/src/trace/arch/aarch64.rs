//! AArch64.

use super::{RegisterOffsets, StoppedThread};
use crate::trace::clock_ids::GeneralRegisters;
use fastpath_image::Isa;
use fastpath_os::bpf::asm::*;
use framehop::aarch64::UnwindRegsAarch64;
pub(crate) use framehop::aarch64::{CacheAarch64 as Cache, UnwinderAarch64 as NativeUnwinder};
use nix::sys::ptrace;
use nix::unistd::Pid;

// arch/arm64/include/asm/ptrace.h: x0 to x30, sp, pc, pstate
pub(crate) const REGISTERS: RegisterOffsets = RegisterOffsets {
    size: 272,
    ip: 256,
    sp: 248,
    frame: 232,
    argument: 0,
    compat_argument: 0,
};
pub(crate) const PSTATE: i16 = 264;
/// Set in pstate of 32-bit programs.
pub(crate) const PSR_MODE32_BIT: i32 = 0x10;
pub(crate) const FOREIGN_BIT: u32 = 0;
pub(crate) const COMPAT: Isa = Isa::Arm;

/// Branches to `native` or `compat` by the registers, which are at an offset in the stack frame, as are 8 bytes of scratch
/// memory.
pub(crate) fn branch_on_abi(asm: &mut Assembler, registers: i16, _scratch: i16) {
    asm.load(Width::Double, R1, FP, registers + PSTATE);
    asm.and(R1, PSR_MODE32_BIT);
    asm.if_is_not(R1, 0, "compat");
}

impl StoppedThread {
    /// Reads the registers of a thread in a seccomp stop.
    pub(crate) fn read(thread: Pid) -> Option<StoppedThread> {
        let registers = ptrace::getregset::<ptrace::regset::NT_PRSTATUS>(thread).ok()?;
        Some(StoppedThread {
            number: registers.regs[8],
            is_compat: registers.pstate & PSR_MODE32_BIT as u64 != 0,
            is_vsyscall: false,
            argument: registers.regs[0],
            ip: registers.pc,
            sp: registers.sp,
            frame: registers.regs[29],
        })
    }
}

/// The user's registers in a sample (`enum perf_event_arm_regs` of the kernel's uapi): x29, sp, pc.
pub(crate) const SAMPLED: u64 = 1 << 29 | 1 << 31 | 1 << 32;

/// Returns x29, sp and pc of the registers in a sample.
pub(crate) fn split(registers: &[u64]) -> Option<([u64; 3], Option<GeneralRegisters>)> {
    Some((registers.try_into().ok()?, None))
}

/// Returns the registers from which a stack is unwound. Without a link register, a leaf's caller is missing, but the caller's
/// caller is found.
pub(crate) fn unwound_from(_ip: u64, sp: u64, frame: u64) -> UnwindRegsAarch64 {
    UnwindRegsAarch64::new(0, sp, frame)
}
