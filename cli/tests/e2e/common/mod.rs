//! Starts programs, examines processes, and reports why a test was skipped.

pub mod chromium;
pub mod clock_calls;
pub mod command;
pub mod processes;
pub mod programs;
pub mod skip;
pub mod terminal;
pub mod torture;

pub use command::{
    NOBODY, Outcome, Running, SERVED, SERVED_WITHOUT_VDSO, comes_to, fastpath, finish, served, served_without_vdso,
    start, unprivileged,
};
pub use processes::{Pid, wait_until};
pub use programs::{go_program, helper_program, install, install_script, make, program, program_32};
pub use skip::{has_seccomp_filter, needs_perf_events, needs_root, skip, skip_namespaces, tool};

/// Defines tests by a check and the arguments of each: `tests! { check: name("argument"); }`.
macro_rules! tests {
    ($check:ident: $($name:ident($($argument:expr),*);)*) => {
        $(#[test] fn $name() { $check($($argument),*); })*
    };
}
pub(crate) use tests;
