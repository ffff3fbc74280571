//! System calls are made from where the program expects them, and with its flags.

use std::process::Command;

use crate::common::{comes_to, finish, helper_program, served, skip};

#[test]
fn a_program_that_dispatches_all_calls_but_its_c_librarys_is_told_of_none_of_ours() {
    let Some(path) = helper_program("own-dispatch", "cc", &[]) else {
        return;
    };
    if finish(Command::new(&path)).status.code() != Some(0) {
        return skip("PR_SET_SYSCALL_USER_DISPATCH is not to be had here");
    }
    comes_to(|| served(&[&path]), 0, "0");
}

#[test]
fn system_calls_with_odd_flags_set_are_made_and_leave_them_as_they_were() {
    for flags in [&[][..], &["-static"]] {
        let Some(path) = helper_program("odd-flags", "cc", flags) else {
            return;
        };
        comes_to(|| served(&[&path]), 0, "as they were");
    }
}
