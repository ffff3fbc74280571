//! `fastpath status --core`: the kernel's core dumps of served programs and of others.

use std::path::Path;
use std::process::Command;

use crate::common::{
    Outcome, Running, fastpath, finish, program, program_32, served, served_without_vdso, skip, start, wait_until,
};

/// Starts a program in a directory where its core will be dumped.
fn start_in(directory: &Path, command: &Command) -> Running {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -c unlimited && exec \"$@\"", "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    let envs = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    shell.envs(envs).current_dir(directory);
    start(shell)
}

/// Starts a program that reads a clock until it is killed.
pub fn start_reader(directory: &Path, command: &Command, program: &str) -> Running {
    let running = start_in(directory, command);
    let name = Path::new(program)
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    wait_until("the program", || running.pid().program() == name);
    let begun = running.pid().cpu_time();
    wait_until("the loop", || running.pid().cpu_time() > begun);
    running
}

/// Ends a program by a signal that dumps its core, and returns what status says of that.
pub fn dump(directory: &Path, running: Running) -> Outcome {
    running.pid().signal(libc::SIGABRT);
    running.finish().expect_signal(libc::SIGABRT);
    let mut files = std::fs::read_dir(directory).expect("the directory").flatten();
    let core = files.find(|file| file.file_name().to_string_lossy().starts_with("core"));
    let core = core.expect("a core dump").path();
    let outcome = finish(fastpath(&["status", "--core", core.to_str().expect("UTF-8")]));
    std::fs::remove_file(core).expect("a file");
    outcome
}

/// Skips the test where the kernel hands cores to a program, writes them elsewhere, or may write none.
pub fn cores_are_files() -> Option<()> {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if !pattern.starts_with("core") || pattern.contains('/') {
        skip(format_args!(
            "no core in the working directory: kernel.core_pattern is {pattern:?}"
        ));
        return None;
    }
    let mut limit = Command::new("sh");
    limit.args(["-c", "ulimit -c unlimited"]);
    if !finish(limit).status.success() {
        skip("the size of cores is limited here (ulimit -H -c)");
        return None;
    }
    Some(())
}

#[track_caller]
pub fn expect_served(outcome: Outcome, by: &str, functions: &str) {
    let outcome = outcome.expect_code(1);
    let head = format!("served by fastpath {} ({by})", env!("CARGO_PKG_VERSION"));
    assert!(
        outcome.out.contains(&head) && outcome.out.contains(functions),
        "{outcome:#?}"
    );
}

#[test]
fn a_core_dump_says_how_its_process_was_served() {
    let Some(()) = cores_are_files() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let endless = |program: &str| [program.to_owned(), "2000000000".to_owned(), "MONOTONIC".to_owned()];
    let programs = [
        program("clock-glibc"),
        program("clock-glibc-static"),
        program_32("clock-i386-glibc"),
    ];
    for program in programs.into_iter().flatten() {
        let words = endless(&program);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut bare = Command::new(&program);
        bare.args(&words[1..]);
        for (command, functions) in [
            (served(&words), "clock_gettime"),
            (served_without_vdso(&words), "all: the image is"),
        ] {
            let running = start_reader(directory.path(), &command, &program);
            wait_until("the image", || running.pid().is_served());
            let outcome = dump(directory.path(), running);
            assert!(outcome.out.contains("; publisher "), "no page: {outcome:#?}");
            expect_served(outcome, "run", functions);
        }
        let running = start_reader(directory.path(), &bare, &program);
        let outcome = dump(directory.path(), running).expect_success();
        assert!(outcome.out.ends_with(": not served by fastpath\n"), "{outcome:#?}");
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_core_dump_of_an_attached_process_says_so_until_it_is_detached() {
    use crate::attach::{attach, detach};

    let (Some(()), Some(program)) = (cores_are_files(), program("clock-glibc")) else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let bare = || {
        let mut command = Command::new(&program);
        command.args(["2000000000", "MONOTONIC"]);
        command
    };
    let running = start_reader(directory.path(), &bare(), &program);
    attach(running.pid()).expect_success();
    expect_served(dump(directory.path(), running), "attach", "clock_gettime, gettimeofday");

    let running = start_reader(directory.path(), &bare(), &program);
    attach(running.pid()).expect_success();
    detach(running.pid()).expect_success();
    let outcome = dump(directory.path(), running);
    assert!(!outcome.out.contains("served by fastpath "), "{outcome:#?}");
}
