//! Reports why a test was skipped.

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

/// Returns the name of a command, or `None`, and skips the test, if there is no such command.
pub fn tool(name: &str) -> Option<&str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join(name).is_file());
    if !found {
        skip(format_args!("no {name} on this machine"));
    }
    found.then_some(name)
}

/// Returns `None`, and skips the test, unless this is root.
pub fn needs_root() -> Option<()> {
    // SAFETY: geteuid takes nothing.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        skip("only root can do this");
    }
    root.then_some(())
}
