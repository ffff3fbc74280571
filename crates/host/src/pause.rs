//! Waiting where a seccomp filter may stand.

use std::time::Duration;

/// Waits, in whole milliseconds. Under a filter that forbids it, it does not; the standard library's sleep would panic.
pub fn pause(duration: Duration) {
    let milliseconds = libc::c_int::try_from(duration.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: poll of no descriptors only waits.
    unsafe { libc::poll(std::ptr::null_mut(), 0, milliseconds) };
}
