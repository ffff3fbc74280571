//! What is said about a command line that makes no sense, and how options end where the program begins.

use crate::common::{fastpath, finish, install};

#[test]
fn an_unknown_clock_is_a_usage_error_that_names_the_valid_ones() {
    for list in ["wall", "monotonic,wall", "", ",", "PROCESS_CPUTIME_ID"] {
        let outcome = finish(fastpath(&["run", "--clocks", list, "--", "echo", "ran"])).expect_code(2);
        assert_eq!(outcome.out, "");
        for name in [
            "auto",
            "all",
            "REALTIME",
            "MONOTONIC",
            "MONOTONIC_RAW",
            "BOOTTIME",
            "TAI",
        ] {
            assert!(outcome.err.contains(name), "{name}: {outcome:#?}");
        }
    }
}

#[test]
fn a_wrong_command_line_is_a_usage_error() {
    for arguments in [
        &["run"][..],
        &["run", "--"],
        &["run", "--require"],
        &["run", "--no-such-option", "true"],
        &["run", "--clocks"],
        &["walk"],
        &[],
    ] {
        let outcome = finish(fastpath(arguments)).expect_code(2);
        assert!(outcome.out.is_empty() && !outcome.err.is_empty(), "{outcome:#?}");
    }
}

#[test]
fn options_end_where_the_program_begins() {
    for (arguments, printed) in [
        (&["run", "--clocks", "all", "echo", "--clocks", "x"][..], "--clocks x"),
        (
            &["run", "--clocks", "all", "--", "echo", "--require", "-v"],
            "--require -v",
        ),
        (&["run", "--clocks=all", "echo", "--", "a"], "-- a"),
        (&["run", "--clocks", "all", "--", "echo", "--", "a"], "-- a"),
        (&["run", "--clocks", "monotonic,CLOCK_TAI", "echo", "-h"], "-h"),
        (
            &[
                "run",
                "--clocks",
                "all",
                "--require",
                "sh",
                "-c",
                "echo $1",
                "x",
                "--help",
            ],
            "--help",
        ),
    ] {
        finish(fastpath(arguments)).expect_success().expect_output(printed);
    }
}

#[test]
fn a_program_that_needs_no_fixing_starts_without_a_word_unless_asked_for_one() {
    for quiet in [&["run"][..], &["run", "--quiet"]] {
        let outcome = finish(fastpath(&[quiet, &["--", "echo", "ran"]].concat())).expect_success();
        assert_eq!(
            (outcome.out.as_str(), outcome.err.as_str()),
            ("ran\n", ""),
            "{outcome:#?}"
        );
    }
    let outcome = finish(fastpath(&["run", "--verbose", "--", "echo", "ran"])).expect_success();
    assert_eq!(outcome.out, "ran\n");
    // On a sick host there is something to fix, and steps to name.
    assert!(
        outcome.err.contains("nothing needs fixing") || outcome.err.contains("map the page"),
        "{outcome:#?}"
    );
}

#[test]
fn a_program_that_cannot_be_served_starts_with_a_warning_unless_quiet() {
    let place = tempfile::tempdir().expect("a directory");
    let privileged = install(env!("CARGO_BIN_EXE_fastpath"), place.path().join("privileged"), 0o4755);
    let run = |quiet: &[&str]| {
        let words = ["--clocks", "all", "--", &privileged, "--version"];
        finish(fastpath(&[&["run"], quiet, &words[..]].concat())).expect_success()
    };
    let warned = run(&[]).err;
    assert!(
        warned.starts_with("fastpath: warning: ") && warned.contains("untouched"),
        "{warned}"
    );
    assert_eq!(run(&["--quiet"]).err, "");
}

#[test]
fn verbose_times_each_step_of_the_start() {
    let outcome = finish(fastpath(&["run", "--clocks", "all", "--verbose", "--", "echo", "ran"])).expect_success();
    assert_eq!(outcome.out, "ran\n");
    for step in ["map the page", "calibrate and publish", "inject", "in all"] {
        assert!(outcome.err.contains(step), "{step}: {outcome:#?}");
    }
}
