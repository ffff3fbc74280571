//! The requests of ptrace(2) that nix lacks.

use std::mem::{size_of, zeroed};

use nix::Result;
use nix::errno::Errno;
use nix::unistd::Pid;

/// Position of the guest relative to a system call.
pub enum SystemCall {
    /// About to make it.
    Entry { audit_arch: u32, nr: u64, args: [u64; 6] },
    /// Returned from it.
    Exit { pc: u64, result: i64 },
    /// In no system call.
    None,
}

/// Returns what stopped the guest, in the same form on every instruction set (Linux 5.3).
pub fn system_call(guest: Pid) -> Result<SystemCall> {
    // SAFETY: the struct and its union consist of integers, for which zero is a valid value.
    let mut info: libc::ptrace_syscall_info = unsafe { zeroed() };
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: `info` has room for the `size` bytes that the kernel stores at most.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, guest.as_raw(), size, &mut info) })?;
    Ok(match info.op {
        libc::PTRACE_SYSCALL_INFO_ENTRY => {
            // SAFETY: `op` says which member of the union is valid.
            let entry = unsafe { info.u.entry };
            SystemCall::Entry {
                audit_arch: info.arch,
                nr: entry.nr,
                args: entry.args,
            }
        }
        libc::PTRACE_SYSCALL_INFO_EXIT => SystemCall::Exit {
            pc: info.instruction_pointer,
            // SAFETY: `op` says which member of the union is valid.
            result: unsafe { info.u.exit }.sval,
        },
        _ => SystemCall::None,
    })
}

/// What a guest's wait reports. Signals are numbers: the C library's own (32 and above) have no names.
pub enum Wait {
    /// It has ended with this status.
    Exited(Pid, u8),
    /// A signal has killed it.
    Signaled(Pid, i32),
    /// It has stopped at a system call.
    SystemCall(Pid),
    /// A signal is to be delivered.
    Stopped(Pid, i32),
    /// A stop of ptrace(2), with its signal and its event (PTRACE_EVENT_*).
    Event(Pid, i32, i32),
}

/// Waits for a guest, or for any.
pub fn wait(guest: Option<Pid>) -> Result<Wait> {
    let mut status = 0;
    let which = guest.map_or(-1, Pid::as_raw);
    // SAFETY: `status` is valid for the write.
    let pid = Errno::result(unsafe { libc::waitpid(which, &mut status, libc::__WALL) })?;
    let pid = Pid::from_raw(pid);
    if libc::WIFEXITED(status) {
        return Ok(Wait::Exited(pid, libc::WEXITSTATUS(status) as u8));
    }
    if libc::WIFSIGNALED(status) {
        return Ok(Wait::Signaled(pid, libc::WTERMSIG(status)));
    }
    /// With PTRACE_O_TRACESYSGOOD.
    const SYSTEM_CALL: i32 = libc::SIGTRAP | 0x80;
    Ok(match (status >> 16, libc::WSTOPSIG(status)) {
        (0, SYSTEM_CALL) => Wait::SystemCall(pid),
        (0, signal) => Wait::Stopped(pid, signal),
        (event, signal) => Wait::Event(pid, signal, event),
    })
}

/// Resumes the guest until its next system call, and delivers a signal; 0: none.
pub fn resume(guest: Pid, signal: i32) -> Result<()> {
    // SAFETY: the request takes no pointers.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, guest.as_raw(), 0, libc::c_long::from(signal)) })
        .map(drop)
}

/// Keeps a guest stopped that job control has stopped, until SIGCONT.
pub fn listen(guest: Pid) -> Result<()> {
    // SAFETY: the request takes no pointers.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_LISTEN, guest.as_raw(), 0, 0) }).map(drop)
}

/// Returns the signals that the guest has blocked.
pub fn signal_mask(guest: Pid) -> Result<u64> {
    let mut mask = 0u64;
    // SAFETY: `mask` has room for the eight bytes of the kernel's sigset_t.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_GETSIGMASK, guest.as_raw(), size_of::<u64>(), &mut mask) })?;
    Ok(mask)
}

/// Blocks exactly these signals.
pub fn set_signal_mask(guest: Pid, mask: u64) -> Result<()> {
    // SAFETY: `mask` has the eight bytes of the kernel's sigset_t.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_SETSIGMASK, guest.as_raw(), size_of::<u64>(), &mask) }).map(drop)
}
