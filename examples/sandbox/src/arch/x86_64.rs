//! x86-64.

use nix::Result;
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

/// Bit in the number of a call of the x32 ABI, which shares the number of the architecture (asm/unistd.h).
const X32_BIT: u64 = 0x4000_0000;
/// `syscall`.
pub const SYSTEM_CALL: &[u8] = &[0x0f, 0x05];
/// Bytes below the stack pointer that the program may use (System V ABI for x86-64, 3.2.2).
pub const RED_ZONE: u64 = 128;

pub type Registers = libc::user_regs_struct;

/// Returns the number, if it is one of this ABI.
pub fn number(nr: u64) -> Option<usize> {
    (nr & X32_BIT == 0).then_some(nr as usize)
}

pub fn registers(guest: Pid) -> Result<Registers> {
    ptrace::getregs(guest)
}

pub fn set_registers(guest: Pid, registers: &Registers) -> Result<()> {
    ptrace::setregs(guest, *registers)
}

pub fn pc(registers: &Registers) -> u64 {
    registers.rip
}

pub fn stack_pointer(registers: &Registers) -> u64 {
    registers.rsp
}

pub fn set_stack_pointer(registers: &mut Registers, address: u64) {
    registers.rsp = address;
}

/// Returns the result of a finished system call.
pub fn result(registers: &Registers) -> i64 {
    registers.rax as i64
}

/// Returns `registers`, changed to make a system call at an address.
pub fn calling(registers: &Registers, pc: u64, nr: usize, args: [u64; 6]) -> Registers {
    let mut calling = *registers;
    calling.rip = pc;
    calling.rax = nr as u64;
    [
        calling.rdi,
        calling.rsi,
        calling.rdx,
        calling.r10,
        calling.r8,
        calling.r9,
    ] = args;
    // Not in a system call, so the kernel restarts none.
    calling.orig_rax = u64::MAX;
    calling
}

/// Skips the system call at its entry, so that it returns `errno`.
pub fn refuse(guest: Pid, errno: Errno) -> Result<()> {
    let mut registers = registers(guest)?;
    registers.orig_rax = u64::MAX;
    registers.rax = -(errno as i64) as u64;
    set_registers(guest, &registers)
}
