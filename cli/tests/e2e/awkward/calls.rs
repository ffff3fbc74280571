//! System calls are made from the addresses that the program expects, and with its flags.

use std::process::Command;

use crate::common::{comes_to, finish, helper_program, served, skip};

#[test]
fn a_program_that_dispatches_calls_sees_none_of_fastpaths() {
    let path = needed!(helper_program("own-dispatch", "cc", &[]));
    if finish(Command::new(&path)).status.code() != Some(0) {
        return skip("PR_SET_SYSCALL_USER_DISPATCH is not available here");
    }
    comes_to(|| served(&[&path]), 0, "0");
}

#[test]
fn system_calls_with_odd_flags_set_preserve_the_flags() {
    for flags in [&[][..], &["-static"]] {
        let path = needed!(helper_program("odd-flags", "cc", flags));
        comes_to(|| served(&[&path]), 0, "preserved");
    }
}
