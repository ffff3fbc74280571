//! C programs with the installed libraries, found by pkg-config as a user's build finds them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{destination, libraries, pkg_config, run, source, text};

/// Builds a C program against the shared library or the static one.
fn build(file: &Path, how: &str) -> PathBuf {
    let name = file.file_stem().expect("a name").to_string_lossy();
    let program = destination().join(format!("{name}-{how}"));
    let mut command = Command::new("cc");
    command
        .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(pkg_config(&["--cflags"]))
        .arg(file)
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
        let file = source().join(format!("tests/c/{name}.c"));
        let output = run(Command::new(build(&file, how)).env("LD_LIBRARY_PATH", libraries()));
        println!("{how}: {}", text(&output));
        assert!(text(&output).ends_with("ok\n"), "{how}: {}", text(&output));
    }
}

#[test]
fn the_host_on_the_documentations_page_compiles_as_it_stands_and_serves_its_guest() {
    let page = std::fs::read_to_string(source().join("../../docs/libfastpath.md")).expect("the page");
    let code = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    let code = code.expect("a block of C");
    assert!(code.lines().count() <= 60, "{}", code.lines().count());
    let file = destination().join("host-of-the-page.c");
    std::fs::write(&file, code).expect("write");
    for how in ["shared", "static"] {
        let output = text(&run(Command::new(build(&file, how)).env("LD_LIBRARY_PATH", libraries())));
        let words = output.split([' ', ',', '\n']);
        let seconds: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
        assert!(seconds.len() == 2 && seconds[1] + 1e-6 >= seconds[0], "{how}: {output}");
    }
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
