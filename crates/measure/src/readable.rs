//! Whether this process can read a clock at all: asked before the first read, which might be its end.

use crate::child::{self, End};
use crate::clocks::Clock;
use crate::counter;
use crate::functions::{Call, Functions};

/// What was met on the way to a readable clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// Nothing.
    Nothing,
    /// Reading the counter was forbidden (PR_SET_TSC): programs that read a clock by the vDSO die of it here. This process has allowed
    /// itself to.
    CounterForbidden,
}

/// Takes back what [`make_clocks_readable`] allowed, for a program that this process becomes: it must find what it would have found.
/// Makes one system call, if any.
pub fn forbid_counter_again() {
    if counter::was_forbidden() {
        counter::forbid();
    }
}

/// Makes sure that clocks can be read in this process. Where the counter is forbidden, this process allows itself to read it.
///
/// # Errors
/// In words: why no clock can be read, and what to do.
pub fn make_clocks_readable() -> Result<Met, String> {
    let met = if counter::usable() {
        Met::Nothing
    } else {
        counter::allow();
        Met::CounterForbidden
    };
    let clocks = [Clock::MONOTONIC, Clock::REALTIME];
    let read = || {
        let errno = |clock: &Clock| match Functions::libc().call(Call::ClockGettime(*clock)) {
            0 => None,
            _ => std::io::Error::last_os_error().raw_os_error(),
        };
        clocks.iter().find_map(errno).unwrap_or(0)
    };
    // SAFETY: a clock read is async-signal-safe, and ends.
    let why = match unsafe { child::exit_of(read) } {
        // Without a child it cannot be found out, and is rarely so.
        None | Some(End::Finished | End::Reaped) => return Ok(met),
        Some(End::Exited(errno)) => format!(
            "is answered with an error: {}",
            std::io::Error::from_raw_os_error(errno)
        ),
        Some(end) => format!("is forbidden: a child process that tried {}", end.describe()),
    };
    Err(format!(
        "no clock can be read in this process: there is no vDSO that would answer, and the system call clock_gettime {why}. Programs \
         that are started here have no clock either; allow the call in the seccomp filter, or give them a vDSO"
    ))
}
