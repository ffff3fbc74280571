//! For hosts on which running processes cannot be attached.

use crate::args;
use crate::output::note;

/// Exit status for a program of a kind that cannot be attached.
const OTHER_PROGRAMS: i32 = 9;

/// Refuses: this ISA's threads cannot be attached.
pub fn attach(_options: &args::Attach) -> i32 {
    refuse()
}

/// Refuses: no process can be attached.
pub fn detach(_options: &args::Detach) -> i32 {
    refuse()
}

fn refuse() -> i32 {
    note(format_args!(
        "running programs are attached on x86-64 only, and this is {}: start them by `fastpath run`",
        std::env::consts::ARCH
    ));
    OTHER_PROGRAMS
}
