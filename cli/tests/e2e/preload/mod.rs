//! The guarantees of libfastpath-preload.so.

mod confined;
mod daemon;
mod programs;
mod server;
mod unanswered;
mod untouched;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use crate::common::processes::TIMEOUT;
use crate::common::{Outcome, finish, make, wait_until};
use server::Server;

/// The library, which is built now if that was not done.
fn library() -> &'static str {
    static LIBRARY: OnceLock<String> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("preload");
        make("surgery/preload", &directory);
        directory
            .join("libfastpath-preload.so")
            .to_str()
            .expect("UTF-8")
            .to_owned()
    })
}

fn permit(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}

/// `command`, started with the library and this socket.
fn preloaded_at(socket: &Path, command: &[impl AsRef<str>]) -> Command {
    let mut words = command.iter().map(AsRef::as_ref);
    let mut preloaded = Command::new(words.next().expect("a program"));
    preloaded
        .args(words)
        .env("LD_PRELOAD", library())
        .env("FASTPATH_SOCKET", socket)
        .env("FASTPATH_PRELOAD_CLOCKS", "all")
        .env("FASTPATH_PRELOAD_TIMEOUT_MS", TIMEOUT.as_millis().to_string());
    preloaded
}

fn preloaded(server: &Server, command: &[impl AsRef<str>]) -> Command {
    preloaded_at(&server.socket(), command)
}

/// The same, with the library's report.
fn verbose(server: &Server, command: &[impl AsRef<str>]) -> Command {
    let mut verbose = preloaded(server, command);
    verbose.env("FASTPATH_PRELOAD_VERBOSE", "1");
    verbose
}

const SERVED: &str = "libfastpath-preload: served\n";

/// Returns the one line with the reason for which a program is not served; the program has run nevertheless.
#[track_caller]
fn reason(command: Command) -> String {
    reason_in(finish(command))
}

#[track_caller]
fn reason_in(outcome: Outcome) -> String {
    let outcome = outcome.expect_success();
    let prefix = "libfastpath-preload: not served: ";
    let reason = outcome
        .err
        .strip_prefix(prefix)
        .unwrap_or_else(|| panic!("{outcome:#?}"));
    assert_eq!(reason.lines().count(), 1, "{outcome:#?}");
    reason.trim_end().to_owned()
}

/// The state that a program inherits: lines of `tests/programs/state.c` except its PID and the environment.
#[track_caller]
fn inherited(outcome: &Outcome) -> Vec<String> {
    assert!(outcome.out.lines().count() > 50, "{outcome:#?}");
    let is_fixed = |line: &&str| {
        !["pid ", "environment ", "fd 1 ", "fd 2 "]
            .iter()
            .any(|p| line.starts_with(p))
    };
    outcome.out.lines().filter(is_fixed).map(str::to_owned).collect()
}

/// Returns whether the kernel's own vDSO reads clocks without system calls here.
fn kernel_is_fast() -> bool {
    let name = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    ["tsc", "kvm-clock", "arch_sys_counter"].contains(&name.unwrap_or_default().trim())
}
