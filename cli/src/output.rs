//! Where all that a person reads goes through.

use std::io::Write;

/// Says something on standard error, in one write. That it cannot be said is nobody's business any more.
pub fn note(message: impl std::fmt::Display) {
    let _ = std::io::stderr()
        .lock()
        .write_all(format!("fastpath: {message}\n").as_bytes());
}

/// Warns.
pub fn warn(message: impl std::fmt::Display) {
    note(format_args!("warning: {message}"));
}
