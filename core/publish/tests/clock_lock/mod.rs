//! The lock of the machine's clock, as in tests/programs/clock-lock.h: exclusive for a test that sets the clock, shared
//! for one that judges reads by a kernel that is not slewed. It lets tests of two checkouts run side by side.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// The lock, held until it is dropped.
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

/// Opens a lock file. Returns `None` without the right to open it: only root sets clocks.
fn open(path: &str) -> Option<File> {
    // SAFETY: geteuid accesses no memory and always succeeds.
    let root = unsafe { libc::geteuid() } == 0;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW).mode(0o600);
    if root {
        // Only a user that may write to it creates the file.
        options.write(true).create(true);
    }
    let file = options.open(path).ok()?;
    file.metadata().is_ok_and(|of| of.uid() == 0).then_some(file)
}

fn lock(operation: libc::c_int) -> ClockLock {
    // Tests pass the gate one after the other, so that one that waits to set the clock is not overtaken forever.
    let gate = open("/run/lock/fastpath-clock-gate");
    let lock = open("/run/lock/fastpath-clock");
    for file in [&gate, &lock].into_iter().flatten() {
        // SAFETY: flock of an open descriptor accesses no memory.
        while unsafe { libc::flock(file.as_raw_fd(), operation) } != 0
            && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
        {}
    }
    ClockLock { _lock: lock }
}
