//! Tests whether this process can read a clock, before the first read, which might kill the process.

use crate::child::{self, End};
use crate::counter;
use crate::functions::{Functions, VdsoCall};
use fastpath_page::clocks::Clock;

/// Whether this process could read the counter from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterUse {
    /// It could.
    Allowed,
    /// Reading the counter was forbidden (PR_SET_TSC), which kills programs that read a clock by the vDSO. This process
    /// has allowed itself to read it.
    WasForbidden,
}

/// Restores the prohibition that [`make_clocks_readable`] lifted, so that a program that this process execs finds the
/// original state. Makes at most one system call.
pub fn forbid_counter_again() {
    if counter::was_forbidden() {
        counter::forbid();
    }
}

/// Makes sure that clocks can be read in this process. If reading the counter is forbidden, this process allows itself
/// to read it.
///
/// # Errors
/// A message with the reason why no clock can be read, and what to do.
pub fn make_clocks_readable() -> Result<CounterUse, String> {
    let counter = if counter::usable() {
        CounterUse::Allowed
    } else {
        counter::allow();
        CounterUse::WasForbidden
    };
    let clocks = [Clock::MONOTONIC, Clock::REALTIME];
    let read = || {
        let errno = |clock: &Clock| match Functions::libc().call(VdsoCall::ClockGettime(*clock)) {
            0 => None,
            _ => std::io::Error::last_os_error().raw_os_error(),
        };
        clocks.iter().find_map(errno).unwrap_or(0)
    };
    // SAFETY: a clock read is async-signal-safe and returns.
    let why = match unsafe { child::exit_of(read) } {
        // Without a child this cannot be tested. The clocks are assumed to be readable, as they nearly always are.
        None | Some(End::Finished | End::Reaped) => return Ok(counter),
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
