//! AArch64.

use std::mem::size_of;

use nix::Result;
use nix::errno::Errno;
use nix::unistd::Pid;

/// `svc #0`.
pub const SYSTEM_CALL: &[u8] = &[0x01, 0x00, 0x00, 0xd4];
/// Bytes below the stack pointer that the program may use: none (AAPCS64, 6.4.5).
pub const RED_ZONE: u64 = 0;

/// NT_PRSTATUS and NT_ARM_SYSTEM_CALL, include/uapi/linux/elf.h.
const NT_PRSTATUS: libc::c_int = 1;
const NT_ARM_SYSTEM_CALL: libc::c_int = 0x404;

pub type Registers = libc::user_regs_struct;

/// Returns the number, if it is one of this ABI.
pub fn number(nr: u64) -> Option<usize> {
    Some(nr as usize)
}

fn get<T>(guest: Pid, set: libc::c_int, value: &mut T) -> Result<()> {
    let mut vector = libc::iovec {
        iov_base: std::ptr::from_mut(value).cast(),
        iov_len: size_of::<T>(),
    };
    // SAFETY: `vector` points to a live `value` of this length, and the kernel stores at most iov_len bytes there.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_GETREGSET, guest.as_raw(), set, &mut vector) }).map(drop)
}

fn put<T>(guest: Pid, set: libc::c_int, value: &T) -> Result<()> {
    let vector = libc::iovec {
        iov_base: std::ptr::from_ref(value).cast_mut().cast(),
        iov_len: size_of::<T>(),
    };
    // SAFETY: `vector` points to a live `value` of this length, and the kernel reads at most iov_len bytes there.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_SETREGSET, guest.as_raw(), set, &vector) }).map(drop)
}

pub fn registers(guest: Pid) -> Result<Registers> {
    // SAFETY: the struct consists of integers, for which zero is a valid value.
    let mut registers = unsafe { std::mem::zeroed::<Registers>() };
    get(guest, NT_PRSTATUS, &mut registers)?;
    Ok(registers)
}

pub fn set_registers(guest: Pid, registers: &Registers) -> Result<()> {
    put(guest, NT_PRSTATUS, registers)
}

pub fn pc(registers: &Registers) -> u64 {
    registers.pc
}

pub fn stack_pointer(registers: &Registers) -> u64 {
    registers.sp
}

pub fn set_stack_pointer(registers: &mut Registers, address: u64) {
    registers.sp = address;
}

/// Returns the result of a finished system call.
pub fn result(registers: &Registers) -> i64 {
    registers.regs[0] as i64
}

/// Returns `registers`, changed to make a system call at an address.
pub fn calling(registers: &Registers, pc: u64, nr: usize, args: [u64; 6]) -> Registers {
    let mut calling = *registers;
    calling.pc = pc;
    calling.regs[8] = nr as u64;
    calling.regs[..6].copy_from_slice(&args);
    calling
}

/// Skips the system call at its entry, so that it returns `errno`.
pub fn refuse(guest: Pid, errno: Errno) -> Result<()> {
    put(guest, NT_ARM_SYSTEM_CALL, &-1i32)?;
    let mut registers = registers(guest)?;
    registers.regs[0] = -(errno as i64) as u64;
    set_registers(guest, &registers)
}
