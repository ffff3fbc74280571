//! A system call of the guest, as it stops.

use syscalls::Sysno;

/// One system call that has not been made yet.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The call; `None` for an unknown number.
    pub sysno: Option<Sysno>,
    /// Its arguments.
    pub args: [u64; 6],
}

impl Call {
    /// Returns the clock that the call reads, as for `fastpath_publish::host::Trap`: REALTIME for calls without a choice.
    pub fn clock(&self) -> Option<i32> {
        match self.sysno? {
            Sysno::clock_gettime => Some(self.args[0] as i32),
            Sysno::gettimeofday => Some(libc::CLOCK_REALTIME),
            #[cfg(target_arch = "x86_64")]
            Sysno::time => Some(libc::CLOCK_REALTIME),
            Sysno::clock_getres | Sysno::getcpu => Some(-1),
            _ => None,
        }
    }
}
