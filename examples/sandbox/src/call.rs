//! A system call of the guest's, as it stops.

use syscalls::Sysno;

/// One system call that has not been made yet.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What is called; `None` for a number that nobody knows.
    pub sysno: Option<Sysno>,
    /// Its arguments.
    pub args: [u64; 6],
}

impl Call {
    /// The clock that the call asks for, as `fastpath_host::Trap` wants it: REALTIME for those that have no choice.
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
