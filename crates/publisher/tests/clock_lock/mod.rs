//! The lock of the machine's clock, as tests/programs/clock-lock.h has it: exclusive for a test that sets the clock, shared for one that
//! judges reads by a kernel that is not slewed. So tests of two checkouts can run beside each other.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// Held until it is dropped.
pub struct ClockLock {
    _lock: Option<File>,
}

#[allow(dead_code)] // a test uses one of the two
impl ClockLock {
    pub fn exclusive() -> ClockLock {
        lock(libc::LOCK_EX)
    }

    pub fn shared() -> ClockLock {
        lock(libc::LOCK_SH)
    }
}

/// Only root sets clocks: without the right to open the lock there is none.
fn open(path: &str) -> Option<File> {
    // SAFETY: geteuid takes nothing.
    let root = unsafe { libc::geteuid() } == 0;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW).mode(0o600);
    if root {
        // A file is created by those only who may write to it.
        options.write(true).create(true);
    }
    let file = options.open(path).ok()?;
    file.metadata().is_ok_and(|of| of.uid() == 0).then_some(file)
}

fn lock(operation: libc::c_int) -> ClockLock {
    // The gate is passed by one after the other, so that a test which waits to set the clock is not overtaken forever.
    let gate = open("/run/lock/fastpath-clock-gate");
    let lock = open("/run/lock/fastpath-clock");
    for file in [&gate, &lock].into_iter().flatten() {
        // SAFETY: an open descriptor.
        while unsafe { libc::flock(file.as_raw_fd(), operation) } != 0
            && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
        {}
    }
    ClockLock { _lock: lock }
}
