//! Registers of a thread on an AArch64 kernel.

use std::io::IoSliceMut;
use std::mem::{MaybeUninit, size_of};

use fastpath_image::Isa;
use nix::errno::Errno;
use nix::unistd::Pid;

use crate::error::{Error, Result, tried};
use crate::target::tracee::CallResult;

/// include/uapi/linux/elf.h: struct user_pt_regs, and the number of the system call, -1 outside any.
const NT_PRSTATUS: usize = 1;
const NT_ARM_SYSTEM_CALL: usize = 0x404;

/// Numbers of futex and restart_syscall, of either kind of program. A wait that a stop interrupted continues as restart_syscall, with
/// its registers unchanged. A 64-bit thread that makes a call of such a number instead only gets itself stopped.
pub const WAITS_ON_FUTEX: &[i64] = &[
    libc::SYS_futex,
    libc::SYS_restart_syscall,
    ARM_FUTEX,
    ARM_RESTART_SYSCALL,
];
const ARM_FUTEX: i64 = Isa::Arm.facts().calls.futex as i64;
/// arch/arm/tools/syscall.tbl
const ARM_RESTART_SYSCALL: i64 = 0;

/// What the kernel shows of a 32-bit thread: r0 to r15, and cpsr. The last word, orig_r0, is left to the kernel.
const WORDS_OF_32_BIT: usize = 18;
const CPSR: usize = 16;
/// r13 to r15.
const SP: usize = 13;
const PC: usize = 15;

/// General registers of a thread. Those of a 32-bit one are in the registers that have them in the CPU too (Arm ARM, D1.20.1).
///
/// At a stop for the entry or the exit of a system call, x7 (r12 of a 32-bit thread) reads as 0 or 1: the kernel uses it to report which, and
/// restores its own value when the thread goes on, whatever was written (arch/arm64/kernel/ptrace.c, report_syscall).
#[derive(Debug, Clone, Copy)]
pub struct Registers {
    pub(super) general: libc::user_regs_struct,
    pub(super) is_32_bit: bool,
    pub(super) system_call: i32,
    /// First argument of that call, if [`super::running`] has found it.
    pub(super) first: u64,
}

impl Registers {
    /// Reads those of a stopped thread.
    pub fn read(pid: Pid) -> Result<Registers> {
        let mut general = MaybeUninit::<libc::user_regs_struct>::zeroed();
        // SAFETY: registers are plain integers, all of which may be zero.
        let bytes = unsafe { as_bytes(general.assume_init_mut()) };
        let whole = bytes.len();
        let size = regset(pid, libc::PTRACE_GETREGSET, NT_PRSTATUS, bytes)?;
        let is_32_bit = size == 4 * WORDS_OF_32_BIT;
        if !is_32_bit && size != whole {
            return Err(Error::Unsupported(
                "the kernel shows its registers in an unknown form".into(),
            ));
        }
        let mut system_call = [0; 4];
        regset(pid, libc::PTRACE_GETREGSET, NT_ARM_SYSTEM_CALL, &mut system_call)?;
        // SAFETY: initialised above, by zeroed and by the kernel.
        let mut general = unsafe { general.assume_init() };
        if is_32_bit {
            let bytes = as_bytes(&mut general);
            let words: [u64; CPSR + 1] = std::array::from_fn(|i| {
                let word = &bytes[4 * i..4 * i + 4];
                u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
            });
            (general.pc, general.pstate, general.sp) = (words[PC], words[CPSR], 0);
            general.regs = std::array::from_fn(|i| if i < PC { words[i] } else { 0 });
        }
        Ok(Registers {
            general,
            is_32_bit,
            system_call: i32::from_ne_bytes(system_call),
            first: 0,
        })
    }

    /// Sets the thread's registers.
    pub fn apply(&self, pid: Pid) -> Result<()> {
        let mut general = self.general;
        if !self.is_32_bit {
            return regset(pid, libc::PTRACE_SETREGSET, NT_PRSTATUS, as_bytes(&mut general)).map(drop);
        }
        let words = general.regs[..PC].iter().chain([&general.pc, &general.pstate]);
        let mut bytes: Vec<u8> = words.flat_map(|word| (*word as u32).to_ne_bytes()).collect();
        regset(pid, libc::PTRACE_SETREGSET, NT_PRSTATUS, &mut bytes).map(drop)
    }

    /// Returns the program counter.
    pub fn pc(&self) -> u64 {
        self.general.pc
    }

    /// Returns the stack pointer.
    pub fn sp(&self) -> u64 {
        match self.is_32_bit {
            true => self.general.regs[SP],
            false => self.general.sp,
        }
    }

    /// Changes the stack pointer.
    pub fn set_sp(&mut self, sp: u64) {
        match self.is_32_bit {
            true => self.general.regs[SP] = sp,
            false => self.general.sp = sp,
        }
    }

    /// Returns the number of the system call that the thread is in.
    pub fn system_call(&self) -> u64 {
        self.system_call as u64
    }

    /// Changes the number of the system call that the thread is entering.
    pub(super) fn set_system_call(&mut self, tid: i32, number: i32) -> Result<()> {
        self.system_call = number;
        let mut bytes = number.to_ne_bytes();
        regset(
            Pid::from_raw(tid),
            libc::PTRACE_SETREGSET,
            NT_ARM_SYSTEM_CALL,
            &mut bytes,
        )
        .map(drop)
    }

    /// Makes the wait on a futex, in which the thread was stopped, return as if it had been woken up. Returns whether
    /// the registers have changed: never, because ptrace does not show here whether the kernel will make the call again.
    pub fn end_wait_on_futex(&mut self) -> bool {
        false
    }

    /// Returns whether a stop interrupted the thread's wait on the futex at `address`. By then the kernel has moved the
    /// program counter back to the instruction, and shows no system call (arch/arm64/kernel/signal.c, do_signal).
    pub fn repeats_wait_on_futex(&self, address: u64) -> bool {
        let (register, number) = match self.is_32_bit {
            true => (7, ARM_FUTEX),
            false => (8, libc::SYS_futex),
        };
        let regs = &self.general.regs;
        self.system_call == -1 && regs[register] == number as u64 && regs[0] == address
    }

    /// Changes nothing: the first register is the result of an execve and 0 for the new program.
    pub fn end_exec(&mut self) {}

    /// Returns nothing: every AArch64 kernel has PTRACE_GET_SYSCALL_INFO if it states the kind of a syscall-stop.
    pub fn call_result(&self) -> Option<CallResult> {
        None
    }

    /// Returns registers that are all zero.
    #[cfg(test)]
    pub fn zeroed() -> Registers {
        Registers {
            // SAFETY: registers are plain integers, for which all-zero bytes are valid.
            general: unsafe { std::mem::zeroed() },
            is_32_bit: false,
            system_call: -1,
            first: 0,
        }
    }
}

fn as_bytes(registers: &mut libc::user_regs_struct) -> &mut [u8] {
    let size = size_of::<libc::user_regs_struct>();
    // SAFETY: 34 words without padding, borrowed as long as the bytes are.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(registers).cast(), size) }
}

/// Reads or writes a regset (ptrace(2)); returns its size in bytes.
fn regset(pid: Pid, request: libc::c_uint, which: usize, bytes: &mut [u8]) -> Result<usize> {
    let mut iov = IoSliceMut::new(bytes);
    // SAFETY: IoSliceMut has the layout of a struct iovec; the kernel stays within it and stores the length.
    let r = unsafe { libc::ptrace(request, pid.as_raw(), which, &raw mut iov) };
    if r < 0 {
        return Err(tried("ptrace(REGSET)")(Errno::last()));
    }
    Ok(iov.len())
}
