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
fn the_documentations_host_compiles_and_serves_its_guest() {
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
fn a_program_with_the_clocks_header_publishes_for_itself_and_its_children() {
    let file = source().join("../libfastpath-clock/tests/c/witness.c");
    let publishing = destination().join("witness-publishing.c");
    std::fs::write(
        &publishing,
        format!("#define FASTPATH_CLOCK_PUBLISH\n#include {file:?}\n"),
    )
    .expect("write");
    // On a host whose counter is not believed, the kernel goes on.
    let steps: &[_] = match fastpath_is_believed() {
        true => &[
            "open=2", "page", "threads", "fork", "page", "threads", "orphan", "kernel", "threads",
        ],
        false => &["open=0", "threads"],
    };
    for how in ["shared", "static"] {
        let mut program = Command::new(build(&publishing, how));
        let program = program.args(steps).env("LD_LIBRARY_PATH", libraries());
        let output = run(program.env("FASTPATH_SOCKET", "/nonexistent/fastpathd.sock"));
        assert_eq!(text(&output), "ok\n", "{how}");
    }
}

#[test]
fn a_program_with_the_clocks_header_alone_needs_no_library_and_no_daemon() {
    let witness = build_alone(
        &[&source().join("../libfastpath-clock/tests/c/witness.c")],
        "witness-alone",
    );
    let mut program = Command::new(witness);
    let program = program.args(["open=0", "kernel", "threads", "fork", "filter"]);
    let output = run(program.env("FASTPATH_SOCKET", "/nonexistent/fastpathd.sock"));
    assert_eq!(text(&output), "ok\n");
}

#[test]
fn the_programs_on_the_clocks_page_compile_as_they_stand() {
    let page = std::fs::read_to_string(source().join("../../docs/clock.md")).expect("the page");
    let blocks = page.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next());
    let file = |(index, code)| {
        let file = destination().join(format!("clock-of-the-page-{index}.c"));
        std::fs::write(&file, code).expect("write");
        file
    };
    let files: Vec<PathBuf> = blocks.enumerate().map(file).collect();
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let output = run(&mut Command::new(build_alone(&files, "clock-of-the-page")));
    assert!(text(&output).contains(" ns"), "{}", text(&output));
}

/// Builds a program that has the clock's header, and links nothing.
fn build_alone(files: &[&Path], name: &str) -> PathBuf {
    let program = destination().join(name);
    run(Command::new("cc")
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
        .arg(destination().join("usr/include"))
        .args(files)
        .arg("-o")
        .arg(&program));
    program
}

fn fastpath_is_believed() -> bool {
    let mut verdict = fastpath::Verdict {
        size: size_of::<fastpath::Verdict>() as u32,
        distrust: 0,
        warp_cycles: 0,
        cpu_features: 0,
        cpus: 0,
        cpus_tested: 0,
        reserved: 0,
    };
    // SAFETY: the verdict begins with its size.
    unsafe { fastpath::fastpath_examine(fastpath::EXAMINE_CPUS, &mut verdict) == 0 && verdict.distrust == 0 }
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
fn an_emulator_gives_its_guest_clocks_and_a_counter_of_its_own() {
    works("callbacks");
}
