//! 32-bit programs on an x86-64 kernel are served like 64-bit ones, and so are the programs of either kind that they
//! start.

use std::process::Command;

use crate::common::{comes_to, fastpath, finish, helper_program, install, needs_root, program_32, served, tool};

const LEAF_IN_SHELL: &str = "grep -c memfd:fastpath-page /proc/self/maps";
const LEAF: [&str; 4] = ["grep", "-c", "memfd:fastpath-page", "/proc/self/maps"];
const SPAWNERS: [&str; 4] = [
    "spawn-i386-glibc",
    "spawn-i386-glibc-static",
    "spawn-i386-musl",
    "spawn-i386-musl-static",
];

#[test]
fn a_32_bit_program_without_a_libc_is_served() {
    let bare = needed!(program_32("thirty-two-bit"));
    finish(served(&[&bare])).expect_code(32).expect_output("32-bit");
    let script = format!("{bare}; echo $?");
    finish(served(&["sh", "-c", &script]))
        .expect_success()
        .expect_output("32-bit\n32");
}

#[test]
fn children_of_32_bit_programs_are_served_however_they_are_started() {
    for name in SPAWNERS {
        let spawn = needed!(program_32(name));
        for how in ["fork", "vfork", "posix_spawn", "thread", "failing"] {
            let command = [&[spawn.as_str(), how], &LEAF[..]].concat();
            comes_to(|| served(&command), 0, "1");
        }
        let grep = tool("grep").map(|_| "/bin/grep").unwrap_or_default();
        for how in ["fexecve", "execveat"] {
            let command = [&[spawn.as_str(), how, grep], &LEAF[1..]].concat();
            comes_to(|| served(&command), 0, "1");
        }
    }
}

#[test]
fn every_program_of_a_chain_of_32_and_64_bit_ones_is_served() {
    let spawners: Option<Vec<String>> = SPAWNERS.into_iter().map(program_32).collect();
    let spawners = needed!(spawners);
    let mut command = LEAF_IN_SHELL.to_owned();
    for spawn in spawners.iter().chain(&spawners) {
        command = format!("{spawn} vfork sh -c '{}; :'", command.replace('\'', r"'\''"));
    }
    comes_to(|| served(&["sh", "-c", &command]), 0, "1");
}

#[test]
fn every_kind_of_32_bit_child_reads_a_clock_that_never_goes_back() {
    for name in ["children-i386-glibc", "children-i386-musl-static"] {
        let children = needed!(program_32(name));
        let outcome = finish(served(&[&children, "100000"])).expect_success();
        assert!(outcome.out.lines().count() >= 9, "{outcome:#?}");
        assert!(outcome.out.lines().all(|line| line.ends_with(" ok")), "{outcome:#?}");
    }
}

#[test]
fn threads_of_a_32_bit_program_see_no_contradiction() {
    for name in ["torture-i386-glibc", "torture-i386-musl-static"] {
        let torture = needed!(program_32(name));
        let outcome = finish(served(&[&torture, "-s", "3", "-t", "2"])).expect_success();
        assert!(outcome.out.contains("\"violations\":0}"), "{outcome:#?}");
        // The same on a host that has its vDSO: the image falls back to the kernel's.
        let mut healthy = fastpath(&["run", "--clocks", "all", "--require", "--"]);
        healthy.args([&torture, "-s", "2", "-t", "2"]);
        let outcome = finish(healthy).expect_success();
        assert!(outcome.out.contains("\"violations\":0}"), "{outcome:#?}");
    }
}

#[test]
fn signals_reach_a_32_bit_program_and_return() {
    for name in ["signals-i386-glibc", "signals-i386-musl-static"] {
        let signals = needed!(program_32(name));
        for options in [crate::common::SERVED, crate::common::SERVED_WITHOUT_VDSO] {
            let mut command = fastpath(options);
            command.arg(&signals);
            let outcome = finish(command).expect_success();
            assert!(outcome.out.lines().count() >= 4, "{outcome:#?}");
            assert!(outcome.out.lines().all(|line| line.ends_with(" ok")), "{outcome:#?}");
        }
    }
}

#[test]
fn a_stack_is_unwound_through_a_system_call_of_a_32_bit_program() {
    let unwind = needed!(program_32("unwind-i386-glibc"));
    let bare = finish(Command::new(&unwind)).expect_success().out;
    assert!(bare.ends_with("cancelled\n"), "{bare}");
    for options in [crate::common::SERVED, crate::common::SERVED_WITHOUT_VDSO] {
        let mut command = fastpath(options);
        command.arg(&unwind);
        assert_eq!(finish(command).expect_success().out, bare, "{options:?}");
    }
}

#[test]
fn a_32_bit_program_under_a_filter_that_forbids_its_calls_runs_untouched() {
    let (bare, filter) = needed!(program_32("thirty-two-bit"), helper_program("filter", "cc", &[]));
    // recvmsg of 32-bit programs; 64-bit ones have no such call.
    let run = |options: &[&str]| {
        let mut run = Command::new(&filter);
        run.args([
            "forbid",
            "372",
            env!("CARGO_BIN_EXE_fastpath"),
            "run",
            "--clocks",
            "all",
        ]);
        run.args(options).arg("--").arg(&bare);
        finish(run)
    };
    let untouched = run(&[]).expect_code(32);
    assert!(
        untouched.err.contains("32-bit programs") && untouched.err.contains("recvmsg"),
        "{untouched:#?}"
    );
    assert_eq!(run(&["--require"]).expect_code(125).out, "");
    let mut leaf = Command::new(&filter);
    leaf.args(["forbid", "372", env!("CARGO_BIN_EXE_fastpath")])
        .args(crate::common::SERVED)
        .args(LEAF);
    finish(leaf).expect_success().expect_output("1");
}

#[test]
fn a_setuid_32_bit_program_is_left_alone() {
    let (bare, ()) = needed!(program_32("thirty-two-bit"), needs_root());
    let directory = tempfile::tempdir().expect("a directory");
    let path = install(bare, directory.path().join("setuid"), 0o4755);
    let mut run = fastpath(&["run", "--clocks", "all", "--"]);
    run.arg(&path);
    let outcome = finish(run).expect_code(32);
    assert!(
        outcome.err.lines().count() == 1 && outcome.err.contains("privileges"),
        "{outcome:#?}"
    );
}
