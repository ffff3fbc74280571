//! Hears of a step of CLOCK_REALTIME the moment it happens (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A timer that never expires, and is cancelled by every step.
pub struct StepWatch(OwnedFd);

impl StepWatch {
    /// Arms one.
    pub fn new() -> io::Result<StepWatch> {
        // SAFETY: the result is a new descriptor.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_REALTIME, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made.
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
        // SAFETY: a valid itimerspec; no old value is wanted.
        match unsafe { libc::timerfd_settime(self.0.as_raw_fd(), flags, &spec, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// To be called when it is readable: consumes the cancellation (ECANCELED) and waits for the next.
    pub fn rearm(&mut self) {
        let mut expirations = 0u64;
        // SAFETY: reads eight bytes into a u64.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut expirations).cast(), 8) };
        // A timer that cannot be armed leaves steps to the next refresh.
        let _ = self.arm();
    }
}

impl AsFd for StepWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
