//! fastpath does not kill a program that confines itself after its start.

use crate::common::{comes_to, fastpath, finish, helper_program, served, tool};

/// With the kernel's vDSO to fall back on: the filter forbids the system call, and the helper may get no CPU for a
/// while.
const SERVED_BESIDE_VDSO: &[&str] = &["run", "--clocks", "all", "--require", "--"];

#[test]
fn a_program_that_forbids_itself_the_clock_calls_can_still_read_clocks() {
    let filter = needed!(helper_program("filter", "cc", &[]));
    for _ in 0..10 {
        finish(fastpath(&[SERVED_BESIDE_VDSO, &[&filter, "strict", "100000"]].concat()))
            .expect_success()
            .expect_output("alive");
    }
}

#[test]
fn such_a_program_survives_without_a_vdso_while_the_page_is_fresh() {
    let filter = needed!(helper_program("filter", "cc", &[]));
    let lives = || finish(served(&[&filter, "strict", "1000"])).out == "alive\n";
    assert!((0..10).any(|_| lives()));
}

#[test]
fn that_filter_kills_a_program_on_the_kernels_path() {
    let filter = needed!(helper_program("filter", "cc", &[]));
    finish(fastpath(&["run", "--without-vdso", "--", &filter, "strict", "1"])).expect_signal(libc::SIGSYS);
}

/// Calls that only ask, fail, or say what is so already.
#[test]
fn a_call_that_confines_nothing_leaves_the_program_and_its_children_served() {
    let python = needed!(tool("python3"));
    let script = "import ctypes, os, subprocess, sys\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        seccomp, action = {'x86_64': 317, 'aarch64': 277}[os.uname().machine], ctypes.byref(ctypes.c_uint32(0x7fff0000))\n\
        net = os.open('/proc/self/ns/net', os.O_RDONLY)\n\
        for call in (\n\
            lambda: libc.syscall(seccomp, 2, 0, action),\n\
            lambda: libc.syscall(seccomp, 0, 1, 0),\n\
            lambda: libc.syscall(seccomp, 1, 0, 0),\n\
            lambda: libc.syscall(seccomp, 1, 1, 0),\n\
            lambda: libc.prctl(22, 99, 0, 0, 0),\n\
            lambda: libc.prctl(59, 99, 0, 0, 0),\n\
            lambda: libc.prctl(26, 99, 0, 0, 0),\n\
            lambda: libc.prctl(26, 1, 0, 0, 0),\n\
            lambda: libc.setns(-1, 0),\n\
            lambda: libc.setns(-1, 0x80),\n\
            lambda: libc.setns(net, 0),\n\
            lambda: libc.unshare(0x80 | 1),\n\
        ):\n    call()\n\
        count = lambda text: 'fastpath-page' in text\n\
        print(count(open('/proc/self/maps').read()), count(subprocess.check_output(['cat', '/proc/self/maps'], text=True)))\n";
    comes_to(|| served(&[python, "-c", script]), 0, "True True");
}

#[test]
fn a_program_that_forbids_itself_futexes_can_still_exec() {
    let spawn = needed!(helper_program("spawn", "cc", &[]));
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
