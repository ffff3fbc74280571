//! Detects a step of CLOCK_REALTIME the moment it happens (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A timer that never expires, and is cancelled by every step.
pub(crate) struct StepWatch(OwnedFd);

impl StepWatch {
    /// Returns an armed timer.
    pub(crate) fn new() -> io::Result<StepWatch> {
        // SAFETY: timerfd_create accesses no memory.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_REALTIME, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and owned by nothing else.
        let watch = StepWatch(unsafe { OwnedFd::from_raw_fd(fd) });
        watch.arm()?;
        Ok(watch)
    }

    fn arm(&self) -> io::Result<()> {
        let never = libc::timespec {
            tv_sec: libc::time_t::MAX / 1_000_000_000,
            tv_nsec: 0,
        };
        let once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = libc::itimerspec {
            it_interval: once,
            it_value: never,
        };
        let flags = libc::TFD_TIMER_ABSTIME | libc::TFD_TIMER_CANCEL_ON_SET;
        // SAFETY: `spec` is a valid itimerspec; a null pointer means that the old value is not wanted.
        match unsafe { libc::timerfd_settime(self.0.as_raw_fd(), flags, &spec, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Consumes the cancellation (ECANCELED) and waits for the next. The caller calls it when the timer is readable.
    pub(crate) fn rearm(&mut self) {
        let mut expirations = 0u64;
        // SAFETY: reads eight bytes into a u64.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut expirations).cast(), 8) };
        // Without the timer, steps are noticed at the next refresh.
        let _ = self.arm();
    }
}

impl AsFd for StepWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
