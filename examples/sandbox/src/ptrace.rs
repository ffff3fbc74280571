//! The requests of ptrace(2) that nix has no word for.

use std::mem::{size_of, zeroed};

use nix::Result;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

/// Where in a system call the guest stands.
pub enum SystemCall {
    /// It is about to be made.
    Entry { audit_arch: u32, nr: u64, args: [u64; 6] },
    /// It has returned.
    Exit { pc: u64 },
    /// In none.
    None,
}

/// What stopped the guest, in the same words on every instruction set (Linux 5.3).
pub fn system_call(guest: Pid) -> Result<SystemCall> {
    // SAFETY: integers in a union, for which zero is a value.
    let mut info: libc::ptrace_syscall_info = unsafe { zeroed() };
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel stores at most `size` bytes.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, guest.as_raw(), size, &mut info) })?;
    Ok(match info.op {
        libc::PTRACE_SYSCALL_INFO_ENTRY => {
            // SAFETY: `op` says which member of the union is there.
            let entry = unsafe { info.u.entry };
            SystemCall::Entry {
                audit_arch: info.arch,
                nr: entry.nr,
                args: entry.args,
            }
        }
        libc::PTRACE_SYSCALL_INFO_EXIT => SystemCall::Exit {
            pc: info.instruction_pointer,
        },
        _ => SystemCall::None,
    })
}

/// Lets the guest run to its next system call, handing it a signal.
pub fn resume(guest: Pid, signal: Option<Signal>) -> Result<()> {
    nix::sys::ptrace::syscall(guest, signal)
}

/// Leaves a guest stopped that job control has stopped, until SIGCONT.
pub fn listen(guest: Pid) -> Result<()> {
    // SAFETY: no pointers are involved.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_LISTEN, guest.as_raw(), 0, 0) }).map(drop)
}

/// The signals that the guest has blocked.
pub fn signal_mask(guest: Pid) -> Result<u64> {
    let mut mask = 0u64;
    // SAFETY: the kernel stores the eight bytes of its sigset_t.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_GETSIGMASK, guest.as_raw(), size_of::<u64>(), &mut mask) })?;
    Ok(mask)
}

/// Blocks these and no others.
pub fn set_signal_mask(guest: Pid, mask: u64) -> Result<()> {
    // SAFETY: the kernel reads the eight bytes of its sigset_t.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_SETSIGMASK, guest.as_raw(), size_of::<u64>(), &mask) }).map(drop)
}
