//! The log: standard error, the system's log (syslog(3)), or both.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};

static TO_SYSTEM: AtomicBool = AtomicBool::new(false);
static TO_STDERR: AtomicBool = AtomicBool::new(true);

/// Logs to the system's log, too: a runtime shows the standard error of its plugins and hooks to no one.
pub fn to_system() {
    TO_SYSTEM.store(true, Ordering::Relaxed);
}

/// Logs to the system's log alone.
pub(crate) fn to_system_alone() {
    to_system();
    TO_STDERR.store(false, Ordering::Relaxed);
}

/// Logs why a container is not served.
pub fn stays(container: &str, why: &dyn std::fmt::Display) {
    say(&format!("{container} stays on the kernel's path: {why}"));
}

/// Logs a line. Its text may be a pod's.
pub fn say(line: &str) {
    let line = format!("fastpath-nri: {}", fastpath_os::printable(line));
    if TO_STDERR.load(Ordering::Relaxed) {
        use std::io::Write;
        // Standard error may be closed.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    if TO_SYSTEM.load(Ordering::Relaxed)
        && let Ok(line) = CString::new(line)
    {
        // SAFETY: both strings end with 0, and the format takes one string.
        unsafe { libc::syslog(libc::LOG_DAEMON | libc::LOG_NOTICE, c"%s".as_ptr(), line.as_ptr()) };
    }
}
