//! Reports why a test was skipped. Included by the tests of every crate.

// No crate uses all of it.
#![allow(dead_code)]

use std::cell::Cell;
use std::fmt::Display;
use std::io::Write;

thread_local! {
    static IS_SKIPPED: Cell<bool> = const { Cell::new(false) };
}

/// Records that the test which runs on this thread cannot do its work, or a part of it. It counts as one skipped test, for
/// the first reason.
pub fn skip(reason: impl Display) {
    if IS_SKIPPED.replace(true) {
        return;
    }
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

/// Records the same where the test cannot return, and ends it. `scripts/test` knows by the message that it has not failed.
pub fn give_up(reason: impl Display) -> ! {
    skip(reason);
    panic!("given up");
}

/// Returns whether this process is confined by a seccomp filter, as in a container.
pub fn has_seccomp_filter() -> bool {
    own_status("Seccomp") == Some(2)
}

/// Returns `None`, and skips the test, unless this is root with all its rights: not that of a container, which may make no
/// namespaces.
pub fn needs_root() -> Option<()> {
    const CAP_SYS_ADMIN: u32 = 21;
    let is_root = own_status("Uid") == Some(0);
    let capabilities = own_status("CapEff").unwrap_or(0);
    let is_confined = has_seccomp_filter() || capabilities & 1 << CAP_SYS_ADMIN == 0;
    match (is_root, is_confined) {
        (true, false) => return Some(()),
        (true, true) => skip("only root outside of a container can do this"),
        (false, _) => skip("only root can do this"),
    }
    None
}

/// Returns the first number of a line of /proc/self/status; capabilities are hexadecimal.
fn own_status(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(":"))?;
    let number = line.split_whitespace().next()?;
    u64::from_str_radix(number, if name.starts_with("Cap") { 16 } else { 10 }).ok()
}
