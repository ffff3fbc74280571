//! C programs with the installed libraries, found by pkg-config as a user's build finds them.

mod installed;

use std::path::PathBuf;
use std::process::Command;

use installed::{destination, libraries, pkg_config, run, source, text};

/// Builds `tests/c/NAME.c` against the shared library or the static one.
fn build(name: &str, how: &str) -> PathBuf {
    let program = destination().join(format!("{name}-{how}"));
    let mut command = Command::new("cc");
    command
        .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(pkg_config(&["--cflags"]))
        .arg(source().join(format!("tests/c/{name}.c")))
        .arg("-o")
        .arg(&program);
    match how {
        "shared" => command.args(pkg_config(&["--libs"])),
        "static" => command.args(pkg_config(&["--static", "--libs"])).arg("-static"),
        _ => panic!("{how}"),
    };
    run(&mut command);
    program
}

fn works(name: &str) {
    for how in ["shared", "static"] {
        let output = run(Command::new(build(name, how)).env("LD_LIBRARY_PATH", libraries()));
        println!("{how}: {}", text(&output));
        assert!(text(&output).ends_with("ok\n"), "{how}: {}", text(&output));
    }
}

#[test]
fn a_host_in_c_serves_its_guest() {
    works("host");
}

#[test]
fn arguments_that_no_call_takes_are_refused_and_change_nothing() {
    works("arguments");
}

#[test]
fn a_host_in_c_answers_calls_of_its_guest() {
    works("answering");
}

#[test]
fn a_host_in_c_that_traps_calls_needs_no_timer() {
    works("trapping");
}

#[test]
fn an_emulator_gives_its_guest_clocks_and_a_counter_of_its_own() {
    works("callbacks");
}
