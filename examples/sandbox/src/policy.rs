//! The rules for the guest's system calls.

use nix::errno::Errno;
use nix::unistd::Pid;
use syscalls::Sysno;

use crate::call::Call;
use crate::memory::Memory;

/// Calls that are always refused: they would bypass the sandbox.
const NEVER: &[Sysno] = &[Sysno::io_uring_setup, Sysno::setns, Sysno::ptrace];

/// Returns `None` if the call may be made, otherwise the error that it returns instead.
pub fn refusal(call: &Call, guest: Pid, has_clocks_from_page: bool) -> Option<Errno> {
    let Some(sysno) = call.sysno else {
        return Some(Errno::ENOSYS);
    };
    let is_refused = NEVER.contains(&sysno) || has_clocks_from_page && parts_with_the_page(sysno, call, guest);
    is_refused.then_some(Errno::EPERM)
}

/// Returns whether the page would be wrong for the guest or unreadable after the call: its clocks are not the host's
/// any more, or the counter is forbidden. clone3 with CLONE_NEWTIME is refused by its flags, which the guest passes by
/// pointer.
fn parts_with_the_page(sysno: Sysno, call: &Call, guest: Pid) -> bool {
    const CLONE_NEWTIME: u64 = 0x80;
    match sysno {
        Sysno::prctl => call.args[0] == libc::PR_SET_TSC as u64,
        Sysno::unshare => call.args[0] & CLONE_NEWTIME != 0,
        Sysno::clone3 => Memory::open(guest)
            .and_then(|memory| memory.word(call.args[0]))
            .is_ok_and(|flags| flags & CLONE_NEWTIME != 0),
        _ => false,
    }
}
