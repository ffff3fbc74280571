//! Registers of a thread on an x86-64 kernel.

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::error::{Result, tried};
use crate::target::tracee::CallResult;

/// General registers, of 64- and of 32-bit threads. PTRACE_GETREGS gives a 64-bit tracer this structure for both; the
/// regset of PTRACE_GETREGSET changes its layout with the thread's current code segment.
#[derive(Debug, Clone, Copy)]
pub struct Registers(pub(super) libc::user_regs_struct);

/// Numbers of futex and restart_syscall, those of 32-bit programs included, which the kernel shows by their own numbers.
/// A wait that a stop interrupted continues as restart_syscall, with its registers unchanged.
pub const WAITS_ON_FUTEX: &[i64] = &[libc::SYS_futex, libc::SYS_restart_syscall, 240, 0];

/// Code segment of 32-bit programs (arch/x86/include/asm/segment.h: __USER32_CS); 64-bit ones have 0x33.
const USER32_CS: u64 = 0x23;

impl Registers {
    /// Reads those of a stopped thread.
    pub fn read(pid: Pid) -> Result<Registers> {
        ptrace::getregs(pid).map(Registers).map_err(tried("PTRACE_GETREGS"))
    }

    /// Sets the thread's registers.
    pub fn apply(&self, pid: Pid) -> Result<()> {
        ptrace::setregs(pid, self.0).map_err(tried("PTRACE_SETREGS"))
    }

    /// Returns the program counter.
    pub fn pc(&self) -> u64 {
        self.0.rip
    }

    /// Returns the stack pointer.
    pub fn sp(&self) -> u64 {
        self.0.rsp
    }

    /// Changes the stack pointer.
    pub fn set_sp(&mut self, sp: u64) {
        self.0.rsp = sp;
    }

    /// Sets the result of an execve, which the kernel does only after its stop in it.
    pub fn end_exec(&mut self) {
        self.0.rax = 0;
    }

    /// Returns the number of the system call that the thread is in.
    pub fn system_call(&self) -> u64 {
        self.0.orig_rax
    }

    /// Returns the result of the system call that a 64-bit thread is leaving.
    pub fn call_result(&self) -> Option<CallResult> {
        /// Results from here up to -1 are errors (include/linux/err.h: MAX_ERRNO).
        const FIRST_ERROR: i64 = -4095;
        (!self.is_32_bit()).then_some(match self.0.rax as i64 {
            error @ FIRST_ERROR..0 => Err(Errno::from_raw(-error as i32)),
            _ => Ok(self.0.rax),
        })
    }

    /// Returns whether a stop interrupted a 64-bit thread's wait on the futex at `address`.
    pub fn repeats_wait_on_futex(&self, address: u64) -> bool {
        [libc::SYS_futex, libc::SYS_restart_syscall].contains(&(self.0.orig_rax as i64)) && self.0.rdi == address
    }

    /// Makes the wait on a futex, in which the thread was stopped, return as if it had been woken up. Returns whether
    /// the registers have changed.
    pub fn end_wait_on_futex(&mut self) -> bool {
        (self.0.rax, self.0.orig_rax) = (0, u64::MAX);
        true
    }

    /// Returns whether the thread runs 32-bit code.
    pub fn is_32_bit(&self) -> bool {
        self.0.cs == USER32_CS
    }
}
