//! Reports why a test was skipped. Included by the tests of every crate.

use std::fmt::Display;
use std::io::Write;

/// Records that the test which runs on this thread cannot do its work. The test must then return.
pub fn skip(reason: impl Display) {
    let thread = std::thread::current();
    let line = format!("{}: {reason}\n", thread.name().unwrap_or("a test"));
    eprint!("skipped: {line}");
    if let Some(path) = std::env::var_os("FASTPATH_SKIPS") {
        let file = std::fs::File::options().append(true).create(true).open(path);
        // A single write to a file that is open for appending is not mixed with other writes.
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("FASTPATH_SKIPS");
    }
}
