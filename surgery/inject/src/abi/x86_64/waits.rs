//! Waits with a timeout that a stop ends with EINTR, and that the kernel makes again with the whole timeout.
//!
//! Nothing tells when a wait began. So the first stop notes its time in the upper half of the call's number, which the
//! kernel ignores (since Linux 5.14) and the call's result overwrites. The first stop after the timeout ends the wait as
//! the timeout does. A wait thus lasts at most the timeout and the time up to the next stop longer.

use std::time::Duration;

use super::Registers;

/// Bits of the time in milliseconds that are noted, above the number.
const TIME_BITS: u32 = 30;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// Where a call's timeout is.
enum Timeout {
    /// In a register, in milliseconds.
    Milliseconds(u64),
    /// At an address: a struct timespec.
    At(u64),
    /// At an address that is there: include/uapi/linux/io_uring.h, struct io_uring_getevents_arg.
    AtPointer(u64),
}

impl Registers {
    /// Returns where the timeout of the call is, and the call's result after it.
    fn timeout(&self) -> Option<(Timeout, i64)> {
        const IO_PGETEVENTS: i64 = 333;
        /// include/uapi/linux/io_uring.h
        const URING_EXT_ARG: u64 = 1 << 3;
        const URING_ABS_TIMER: u64 = 1 << 5;
        const URING_EXT_ARG_REG: u64 = 1 << 6;
        const URING_TIMED: u64 = URING_EXT_ARG | URING_ABS_TIMER | URING_EXT_ARG_REG;
        let r = &self.0;
        let again = -i64::from(libc::EAGAIN);
        Some(match self.call()? {
            libc::SYS_epoll_wait | libc::SYS_epoll_pwait => (Timeout::Milliseconds(r.r10), 0),
            libc::SYS_epoll_pwait2 => (Timeout::At(r.r10), 0),
            libc::SYS_semtimedop => (Timeout::At(r.r10), again),
            libc::SYS_rt_sigtimedwait => (Timeout::At(r.rdx), again),
            libc::SYS_io_getevents | IO_PGETEVENTS => (Timeout::At(r.r8), 0),
            libc::SYS_io_uring_enter if r.r10 & URING_TIMED == URING_EXT_ARG => {
                (Timeout::AtPointer(r.r8 + 16), -i64::from(libc::ETIME))
            }
            _ => return None,
        })
    }

    /// Ends a wait that will be made again, if its timeout has passed since its first stop; else notes the time `now` if
    /// this is the first. `read` reads a word of the thread's memory.
    pub fn bound_wait(&mut self, now: Duration, read: impl Fn(u64) -> Option<u64>) {
        let Some((timeout, result)) = self.timeout().filter(|_| may_be_noted()) else {
            return;
        };
        let at = |address: u64| {
            let address = Some(address).filter(|address| *address != 0)?;
            let (seconds, nanoseconds) = (read(address)?, read(address + 8)?);
            Some(Duration::from_secs(seconds).saturating_add(Duration::from_nanos(nanoseconds)))
        };
        let timeout = match timeout {
            Timeout::Milliseconds(timeout) => u64::try_from(timeout as i32).ok().map(Duration::from_millis),
            Timeout::At(address) => at(address),
            Timeout::AtPointer(address) => read(address).and_then(at),
        };
        let Some(timeout) = timeout.filter(|timeout| timeout.as_millis() < u128::from(TIME_MASK)) else {
            return;
        };
        let now = now.as_millis() as u64;
        match (self.0.orig_rax >> 32).checked_sub(1) {
            None => self.0.orig_rax |= ((now & TIME_MASK) + 1) << 32,
            Some(begun) if u128::from(now.wrapping_sub(begun) & TIME_MASK) >= timeout.as_millis() => {
                self.0.orig_rax &= u64::from(u32::MAX);
                self.0.rax = result as u64;
            }
            Some(_) => {}
        }
    }
}

/// Returns whether this kernel ignores the upper half of a call's number: arch/x86/entry/entry_64.S, `movslq`.
fn may_be_noted() -> bool {
    fastpath_os::kernel_version() >= (5, 14)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use nix::sys::ptrace::Options;

    use super::*;
    use crate::target::tracee::{Stop, Tracee, Until};

    #[test]
    fn a_wait_ends_with_the_first_stop_after_its_timeout() {
        if !may_be_noted() {
            return;
        }
        for (number, set, result) in [
            (libc::SYS_epoll_wait, 1500, 0),
            (libc::SYS_epoll_pwait2, 0x1000, 0),
            (libc::SYS_semtimedop, 0x1000, -i64::from(libc::EAGAIN)),
        ] {
            // SAFETY: registers are plain integers, for which all-zero bytes are valid.
            let mut wait = Registers(unsafe { std::mem::zeroed() });
            (wait.0.cs, wait.0.r10, wait.0.orig_rax) = (0x33, set, number as u64);
            let mut stop = |now_ms| {
                wait.0.rax = -i64::from(libc::EINTR) as u64;
                assert!(wait.undo_interruption());
                wait.bound_wait(Duration::from_millis(now_ms), |address| match address {
                    0x1000 => Some(1),
                    0x1008 => Some(500_000_000),
                    _ => None,
                });
                assert_eq!(wait.call(), Some(number));
                wait.0.rax as i64
            };
            // The noted time wraps in between.
            let begun = (1 << 30) - 100;
            assert_eq!([stop(begun), stop(begun + 1499)], [-514, -514]);
            assert_eq!(stop(begun + 1500), result);
            assert_eq!(stop(begun + 1501), -514, "the next wait");
        }
    }

    #[test]
    fn a_wait_without_a_timeout_goes_on() {
        // SAFETY: as above.
        let mut wait = Registers(unsafe { std::mem::zeroed() });
        (wait.0.cs, wait.0.r10, wait.0.orig_rax) = (0x33, u64::MAX, libc::SYS_epoll_wait as u64);
        wait.0.rax = -514i64 as u64;
        wait.bound_wait(Duration::from_secs(1), |_| None);
        assert_eq!(
            (wait.0.orig_rax, wait.0.rax as i64),
            (libc::SYS_epoll_wait as u64, -514)
        );
    }

    #[test]
    fn a_wait_that_is_stopped_again_and_again_ends() {
        if !may_be_noted() {
            return;
        }
        let (mut answer, answers) = std::io::pipe().unwrap();
        // SAFETY: the child makes system calls only.
        let child = match unsafe { libc::fork() } {
            0 => {
                let mut event = libc::epoll_event { events: 0, u64: 0 };
                // SAFETY: as above; the pointer is to a local.
                unsafe {
                    let result = libc::epoll_wait(libc::epoll_create1(0), &mut event, 1, 1000);
                    let result = result as u8;
                    libc::write(std::os::fd::AsRawFd::as_raw_fd(&answers), (&raw const result).cast(), 1);
                    libc::_exit(0)
                }
            }
            child => child,
        };
        let tracee = Tracee::seize(child, child, Options::empty()).unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) && tracee.interrupt().is_ok() {
            match tracee.event(true).unwrap() {
                None | Some(Stop::Exited) => break,
                Some(stop) => tracee.resume(Until::Event, stop.signal()).unwrap(),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it waits on");
        assert!(begun.elapsed() >= Duration::from_millis(990), "{:?}", begun.elapsed());
        drop(answers);
        let mut result = Vec::new();
        std::io::Read::read_to_end(&mut answer, &mut result).unwrap();
        assert_eq!(result, [0]);
    }
}
