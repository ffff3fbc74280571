//! The system calls that change an answer.

use nix::unistd::Pid;
use syscalls::Sysno;

use crate::call::Call;
use crate::memory::Memory;

/// include/uapi/asm-generic/mman-common.h (Linux 6.13)
const MADV_GUARD_INSTALL: u64 = 102;

/// What a call is going to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A second thread.
    Threads,
    /// A child that uses this process's memory. It is returned at the end of a call that waits for the child.
    LendMemory { is_returned: bool },
    /// A table of descriptors that is not this process's alone, or not that of all its threads.
    ShareDescriptors,
    /// The namespaces by which ids are numbered, or the table of descriptors.
    Namespaces,
    /// User and group ids.
    Credentials,
    /// Process group and session.
    Group,
    /// Descriptors that are closed or replaced.
    Descriptors { first: u32, last: u32 },
    /// Memory that is unmapped or cannot be written any more.
    Memory,
    /// A descriptor that may be one on /dev/urandom.
    NewDescriptor,
}

impl Change {
    /// Returns the process whose answers a call of this one changes.
    pub fn target(call: &Call, process: Pid) -> Pid {
        match call.sysno {
            Some(Sysno::setpgid) if call.args[0] as i32 != 0 => Pid::from_raw(call.args[0] as i32),
            _ => process,
        }
    }

    /// Returns what a call changes, if it is an answer.
    pub fn from_call(call: &Call, memory: impl Fn() -> std::io::Result<Memory>) -> Option<Change> {
        let [first, second, third, fourth, ..] = call.args;
        Some(match call.sysno? {
            Sysno::clone => Change::by_clone(first)?,
            // Another thread can change the flags after this; that confuses this guest alone.
            Sysno::clone3 => Change::by_clone(memory().and_then(|memory| memory.word(first)).ok()?)?,
            #[cfg(target_arch = "x86_64")]
            Sysno::vfork => Change::LendMemory { is_returned: true },
            Sysno::unshare | Sysno::setns => Change::Namespaces,
            Sysno::setuid
            | Sysno::setgid
            | Sysno::setreuid
            | Sysno::setregid
            | Sysno::setresuid
            | Sysno::setresgid
            | Sysno::setfsuid
            | Sysno::setfsgid => Change::Credentials,
            Sysno::setsid | Sysno::setpgid => Change::Group,
            Sysno::close => Change::descriptors(first, first),
            #[cfg(target_arch = "x86_64")]
            Sysno::dup2 => Change::descriptors(second, second),
            Sysno::dup3 => Change::descriptors(second, second),
            Sysno::close_range if third & u64::from(libc::CLOSE_RANGE_UNSHARE) != 0 => Change::ShareDescriptors,
            Sysno::close_range => Change::descriptors(first, second),
            #[cfg(target_arch = "x86_64")]
            Sysno::open => Change::NewDescriptor,
            Sysno::openat | Sysno::openat2 => Change::NewDescriptor,
            Sysno::mmap if fourth & libc::MAP_FIXED as u64 == 0 => return None,
            Sysno::mmap
            | Sysno::munmap
            | Sysno::mremap
            | Sysno::mprotect
            | Sysno::pkey_mprotect
            | Sysno::brk
            | Sysno::shmat
            | Sysno::shmdt
            | Sysno::remap_file_pages => Change::Memory,
            Sysno::madvise if third == MADV_GUARD_INSTALL => Change::Memory,
            _ => return None,
        })
    }

    /// Descriptors are `unsigned int` to the kernel.
    fn descriptors(first: u64, last: u64) -> Change {
        Change::Descriptors {
            first: first as u32,
            last: last as u32,
        }
    }

    fn by_clone(flags: u64) -> Option<Change> {
        let has = |flag: i32| flags & flag as u64 != 0;
        if has(libc::CLONE_THREAD) {
            return Some(Change::Threads);
        }
        if has(libc::CLONE_VM) {
            let is_returned = has(libc::CLONE_VFORK) && !has(libc::CLONE_FILES);
            return Some(Change::LendMemory { is_returned });
        }
        has(libc::CLONE_FILES).then_some(Change::ShareDescriptors)
    }
}
