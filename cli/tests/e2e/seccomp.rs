//! fastpath does not kill a program that confines itself after its start.

use crate::common::{fastpath, finish, helper_program, served};

/// With the kernel's vDSO to fall back on: the filter forbids the system call, and the helper may get no CPU for a
/// while.
const SERVED_BESIDE_VDSO: &[&str] = &["run", "--clocks", "all", "--require", "--"];

#[test]
fn a_program_that_forbids_itself_the_clock_calls_can_still_read_clocks() {
    let Some(filter) = helper_program("filter", "cc", &[]) else {
        return;
    };
    for _ in 0..10 {
        finish(fastpath(&[SERVED_BESIDE_VDSO, &[&filter, "strict", "100000"]].concat()))
            .expect_success()
            .expect_output("alive");
    }
}

#[test]
fn such_a_program_survives_without_a_vdso_while_the_page_is_fresh() {
    let Some(filter) = helper_program("filter", "cc", &[]) else {
        return;
    };
    let lives = || finish(served(&[&filter, "strict", "1000"])).out == "alive\n";
    assert!((0..10).any(|_| lives()));
}

#[test]
fn that_filter_kills_a_program_on_the_kernels_path() {
    let Some(filter) = helper_program("filter", "cc", &[]) else {
        return;
    };
    finish(fastpath(&["run", "--without-vdso", "--", &filter, "strict", "1"])).expect_signal(libc::SIGSYS);
}

#[test]
fn a_program_that_forbids_itself_futexes_can_still_exec() {
    let Some(spawn) = helper_program("spawn", "cc", &[]) else {
        return;
    };
    for flags in [&[][..], &["-static"]] {
        let Some(filter) = helper_program("filter", "cc", flags) else {
            continue;
        };
        for prefix in [
            &[][..],
            &[&spawn, "fork"],
            &[&spawn, "thread"],
            &["sh", "-c", "\"$@\"; exit $?", "sh"],
        ] {
            let command = [prefix, &[&filter, "strict", "1000", &filter, "alive"]].concat();
            finish(fastpath(&[SERVED_BESIDE_VDSO, &command].concat()))
                .expect_success()
                .expect_output("alive");
        }
    }
}
