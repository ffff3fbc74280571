//! Waits under seccomp filters.

use std::time::Duration;

/// Waits, in whole milliseconds. Does not wait under a filter that forbids it, where the standard library's sleep would
/// panic.
pub fn pause(duration: Duration) {
    let milliseconds = libc::c_int::try_from(duration.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: poll of no descriptors accesses no memory.
    unsafe { libc::poll(std::ptr::null_mut(), 0, milliseconds) };
}
