//! The calls that can be guarded.

use crate::clocks::Clock;
use crate::functions::{Call, Functions};
use std::fmt;
use std::hint::black_box;
use std::sync::OnceLock;

/// A call that programs make often enough to notice its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// `clock_gettime` of one clock.
    Clock(Clock),
    /// `getpid`: the cost of entering the kernel, and nothing else.
    Getpid,
    /// `getrandom` of 16 bytes, the size of a key or a UUID.
    Getrandom,
    /// A read of one byte of `/dev/urandom`.
    Urandom,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Clock(clock) => write!(f, "{}", Call::ClockGettime(*clock)),
            Subject::Getpid => f.write_str("getpid"),
            Subject::Getrandom => f.write_str("getrandom"),
            Subject::Urandom => f.write_str("read of /dev/urandom"),
        }
    }
}

impl Subject {
    /// Makes one call by libc, as programs do. Returns 0 or the errno.
    pub(super) fn call(self) -> i32 {
        let done = match self {
            Subject::Clock(clock) => Functions::libc().call(Call::ClockGettime(clock)) == 0,
            // SAFETY: getpid takes nothing and cannot fail.
            Subject::Getpid => 0 < unsafe { libc::getpid() },
            Subject::Getrandom => getrandom() == BYTES.len() as isize,
            Subject::Urandom => read_urandom() == 1,
        };
        if done {
            return 0;
        }
        let error = std::io::Error::last_os_error();
        error.raw_os_error().filter(|errno| *errno != 0).unwrap_or(libc::EIO)
    }

    /// Makes this number of calls.
    pub(super) fn repeat(self, calls: u32) {
        match self {
            Subject::Clock(clock) => Functions::libc().repeat(Call::ClockGettime(clock), calls),
            Subject::Getpid => (0..calls).for_each(|_| {
                // SAFETY: getpid accesses no memory.
                black_box(unsafe { libc::getpid() });
            }),
            Subject::Getrandom => (0..calls).for_each(|_| {
                black_box(getrandom());
            }),
            Subject::Urandom => (0..calls).for_each(|_| {
                black_box(read_urandom());
            }),
        }
    }

    /// Makes the system call that the call is compared with: that of the same clock, else one that does nothing.
    pub(super) fn repeat_syscall(self, calls: u32) {
        match self {
            Subject::Clock(clock) => Functions::syscalls().repeat(Call::ClockGettime(clock), calls),
            _ => repeat_getpid(calls),
        }
    }
}

/// Makes the cheapest system call.
pub(super) fn repeat_getpid(calls: u32) {
    for _ in 0..calls {
        // SAFETY: getpid takes nothing and cannot fail.
        black_box(unsafe { libc::syscall(libc::SYS_getpid) });
    }
}

const BYTES: [u8; 16] = [0; 16];

fn getrandom() -> isize {
    let mut bytes = BYTES;
    // SAFETY: it writes at most the array's length into it.
    let answer = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    black_box(&mut bytes);
    answer
}

fn read_urandom() -> isize {
    let mut byte = 0u8;
    // SAFETY: it writes one byte; a descriptor of -1 is answered with an error.
    let answer = unsafe { libc::read(urandom(), (&raw mut byte).cast(), 1) };
    black_box(&mut byte);
    answer
}

/// Returns a descriptor that is opened once and never closed; -1 if it cannot be opened, for which `read` returns
/// EBADF.
pub(super) fn urandom() -> i32 {
    static OPENED: OnceLock<i32> = OnceLock::new();
    *OPENED.get_or_init(|| {
        // SAFETY: opens a file by a constant name.
        unsafe { libc::open(c"/dev/urandom".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) }
    })
}
