//! Reasons to skip a test.

#[path = "../../../../tests/skip.rs"]
mod record;

pub use record::{give_up, has_seccomp_filter, needs_root, skip};

/// Returns `None`, and skips the test, unless this is root where perf events can be found, as in no chroot without /sys.
pub fn needs_perf_events() -> Option<()> {
    needs_root()?;
    let is_there = std::path::Path::new("/sys/bus/event_source").exists();
    if !is_there {
        skip("no /sys is mounted here");
    }
    is_there.then_some(())
}

/// Skips a test that needs a namespace, for the reason that none can be made here.
pub fn skip_namespaces() {
    if needs_root().is_some() {
        skip("this kernel, or a chroot, makes no such namespace");
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
