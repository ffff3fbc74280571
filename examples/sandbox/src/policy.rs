//! The rules for the guest's system calls.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::unistd::Pid;
use syscalls::Sysno;

use crate::arguments::Arguments;
use crate::call::Call;
use crate::memory::Memory;
use crate::paths;

/// Calls that are always refused: they would bypass the sandbox, or change what a path means after the check.
const NEVER: &[Sysno] = &[
    Sysno::io_uring_setup,
    Sysno::chroot,
    Sysno::pivot_root,
    Sysno::mount,
    Sysno::move_mount,
    Sysno::setns,
    Sysno::ptrace,
];

/// The rules of one sandbox.
pub struct Policy {
    denied: Vec<Sysno>,
    read_only: Vec<PathBuf>,
    clocks_from_page: bool,
}

impl Policy {
    /// Makes the rules that the command line asks for.
    pub fn new(arguments: &Arguments) -> Result<Policy, String> {
        let real = |path: &PathBuf| {
            std::fs::canonicalize(path).map_err(|error| format!("--read-only {}: {error}", path.display()))
        };
        Ok(Policy {
            denied: arguments.deny.clone(),
            read_only: arguments.read_only.iter().map(real).collect::<Result<_, _>>()?,
            clocks_from_page: !arguments.no_vdso,
        })
    }

    /// Returns `None` if the call may be made, otherwise the error that it returns instead.
    pub fn refusal(&self, call: &Call, guest: Pid) -> Option<Errno> {
        let Some(sysno) = call.sysno else {
            return Some(Errno::ENOSYS);
        };
        if NEVER.contains(&sysno) || self.denied.contains(&sysno) {
            return Some(Errno::EPERM);
        }
        if self.clocks_from_page && parts_with_the_page(sysno, call, guest) {
            return Some(Errno::EPERM);
        }
        if self.read_only.is_empty() {
            return None;
        }
        match paths::changed_by(call, guest) {
            Ok(changed) => {
                let protected = |path: &PathBuf| self.read_only.iter().any(|prefix| path.starts_with(prefix));
                changed.iter().any(protected).then_some(Errno::EROFS)
            }
            Err(error) => Some(refusal_of(&error)),
        }
    }
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

/// Returns the error for a call whose arguments cannot be read: the kernel would have rejected the same pointer or
/// descriptor.
fn refusal_of(error: &io::Error) -> Errno {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENAMETOOLONG) => Errno::ENAMETOOLONG,
        Some(Errno::ENOENT) => Errno::EBADF,
        _ => Errno::EFAULT,
    }
}
