//! The messages about wrong command lines, and the end of the options at the program.

use std::process::Command;

use crate::common::{fastpath, finish, install};

/// Returns the exit status and the message of each command that takes clocks, for this list.
fn of_clocks(clocks: &str) -> Vec<(&'static str, i32, String)> {
    let place = tempfile::tempdir().expect("a directory");
    let policy = |clocks: &str| {
        let rule = "[[rule]]\nexecutable = \"/nonexistent\"\naction = \"attach\"\n";
        let file = place.path().join("policy.toml");
        std::fs::write(&file, format!("{rule}clocks = \"{clocks}\"\n")).expect("write");
        file
    };
    let daemon = |options: &[&str], policy: std::path::PathBuf| {
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_fastpathd"));
        daemon.args(options).arg("--check-policy").arg("--policy").arg(policy);
        daemon
    };
    // No process has this PID.
    let no_pid = i32::MAX.to_string();
    let commands = [
        ("run", fastpath(&["run", "--quiet", "--clocks", clocks, "--", "true"])),
        ("attach", fastpath(&["attach", "--clocks", clocks, &no_pid])),
        ("guard", fastpath(&["guard", "--clocks", clocks])),
        ("fastpathd", daemon(&["--clocks", clocks], policy("auto"))),
        ("policy", daemon(&[], policy(clocks))),
    ];
    let of = |(name, command)| {
        let outcome = finish(command);
        (name, outcome.status.code().expect("a status"), outcome.err)
    };
    commands.into_iter().map(of).collect()
}

#[test]
fn clocks_have_the_same_syntax_in_every_command() {
    for clocks in [
        "auto",
        "all",
        "ALL",
        "monotonic,CLOCK_TAI",
        "Monotonic-Raw, boottime",
        "realtime,realtime",
    ] {
        for (name, code, said) in of_clocks(clocks) {
            // guard's result depends on this host.
            let right = match name {
                "attach" => code == 3,
                "guard" => [0, 1, 69].contains(&code),
                _ => code == 0,
            };
            assert!(right && !said.contains("valid:"), "{name} {clocks}: {code} {said}");
        }
    }
    for (clocks, wrong, meant) in [
        ("wall", "wall", " (did you mean all?)"),
        ("xyz", "xyz", ""),
        ("monotonic,relatime", "relatime", " (did you mean REALTIME?)"),
        ("", "", ""),
        (",", "", ""),
        ("auto,tai", "auto", ""),
        ("PROCESS_CPUTIME_ID", "PROCESS_CPUTIME_ID", ""),
        ("MONOTONIC_COARSE", "MONOTONIC_COARSE", ""),
    ] {
        let sentence = format!(
            "`{wrong}` is not a clock that fastpath serves{meant}; valid: auto, all, or a list of REALTIME, MONOTONIC, \
             MONOTONIC_RAW, BOOTTIME, TAI"
        );
        for (name, code, said) in of_clocks(clocks) {
            // A policy with a mistake is not a usage error.
            assert_eq!(code, if name == "policy" { 1 } else { 2 }, "{name} {clocks}: {said}");
            assert!(said.contains(&sentence), "{name} {clocks}: {said}");
        }
    }
}

#[test]
fn the_help_on_clocks_is_the_same_for_each_command_that_takes_them() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let help = "Which clocks: `auto`, those whose present path is slow (for guard: MONOTONIC and REALTIME); `all`; or a \
                comma-separated list of REALTIME, MONOTONIC, MONOTONIC_RAW, BOOTTIME, TAI";
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_fastpathd"));
    daemon.arg("--help");
    let commands = ["run", "attach", "guard"].map(|name| fastpath(&[name, "--help"]));
    for command in commands.into_iter().chain([daemon]) {
        let shown = format!("{command:?}");
        let said = finish(command).expect_success().out;
        assert!(words(&said).contains(help), "{shown}: {said}");
        assert!(said.contains("--clocks <auto|all|LIST>"), "{shown}: {said}");
    }
    // No other command takes clocks.
    for name in [
        "probe", "doctor", "status", "detach", "bench", "trace", "export", "report", "audit",
    ] {
        let said = finish(fastpath(&[name, "--help"])).expect_success().out;
        assert!(!said.contains("--clocks"), "{name}: {said}");
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
fn words_and_arguments_of_other_tools_are_corrected() {
    for (arguments, tip) in [
        (&["check"][..], "'doctor'"),
        (&["list"], "'status'"),
        (&["fix", "1234"], "'attach'"),
        (&["exec", "true"], "'run'"),
        (&["trace", "1234"], "`fastpath trace -p 1234`"),
        (&["probe", "1234"], "`fastpath doctor 1234`"),
        (&["status", "--watch", "2"], "`fastpath status --watch=2`"),
        (&["status", "1234"], "`fastpath doctor 1234`"),
        (&["status", "-p", "1234"], "`fastpath doctor PID`"),
        (&["trace", "ls"], "`fastpath trace -- ls`"),
        (&["undo", "1234"], "'detach'"),
    ] {
        let outcome = finish(fastpath(arguments)).expect_code(2);
        assert!(outcome.err.contains(tip), "{outcome:#?}");
    }
}

#[test]
fn a_process_may_be_named_by_the_option_of_other_tools() {
    for words in [
        &["doctor", "--pid", "4194304"][..],
        &["doctor", "-p", "4194304"],
        &["attach", "--pid=4194304"],
        &["detach", "-p", "4194304"],
    ] {
        let outcome = finish(fastpath(words)).expect_code(3);
        assert!(outcome.err.contains("4194304"), "{outcome:#?}");
    }
}

#[test]
fn the_help_lists_every_command_and_the_manual_shows_examples_of_it() {
    let overview = finish(fastpath(&["-h"])).expect_success().out;
    assert!(overview.lines().count() <= 24, "{overview}");
    let directory = tempfile::tempdir().expect("a directory");
    let mut man = fastpath(&["man"]);
    man.arg(directory.path());
    finish(man).expect_success();
    for entry in std::fs::read_dir(directory.path()).expect("a folder").flatten() {
        let name = entry.file_name().into_string().expect("a name");
        if let Some(command) = name.strip_prefix("fastpath-").and_then(|name| name.strip_suffix(".1")) {
            assert!(overview.contains(&format!("\n  {command} ")), "{command}: {overview}");
        }
        let page = std::fs::read_to_string(entry.path()).expect("a page");
        let examples = page.split_once(".SH EXAMPLES\n").map_or("", |(_, after)| after);
        let examples = examples.split(".SH").next().unwrap_or_default().lines();
        for line in examples.filter(|line| line.starts_with("  ")) {
            assert!(line.contains("fastpath"), "{name}: {line}");
        }
    }
    let page = std::fs::read_to_string(directory.path().join("fastpath.1")).expect("a page");
    assert!(
        page.contains(".SH EXAMPLES\n") && page.contains(".SH \"EXIT STATUS\"\n"),
        "{page}"
    );
}

#[test]
fn a_locale_of_ascii_gets_ascii() {
    for (locale, shown) in [("C", " +/- "), ("C.UTF-8", " ± ")] {
        let mut bench = fastpath(&["bench", "--rounds", "3"]);
        bench.env("LC_ALL", locale);
        let out = finish(bench).expect_success().out;
        assert!(out.is_ascii() == (locale == "C"), "{out}");
        assert!(out.contains(shown), "{out}");
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
fn a_program_that_needs_no_fixing_starts_without_a_message_unless_verbose() {
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
    // On a host with slow clocks there is something to fix, and there are steps to report.
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
    for step in ["ask fastpathd", "start the helper", "inject", "in all"] {
        assert!(outcome.err.contains(step), "{step}: {outcome:#?}");
    }
}

#[test]
fn the_version_names_the_commit_and_the_images() {
    let head = Command::new("git").args(["rev-parse", "HEAD"]).output();
    let head = head.ok().filter(|done| done.status.success());
    for program in [env!("CARGO_BIN_EXE_fastpath"), env!("CARGO_BIN_EXE_fastpathd")] {
        let name = program.rsplit('/').next().expect("a name");
        let first = format!("{name} {}\n", env!("CARGO_PKG_VERSION"));
        let says = |option| {
            let mut command = Command::new(program);
            command.arg(option);
            finish(command).expect_success().out
        };
        assert_eq!(says("-V"), first);
        let long = says("--version");
        assert!(long.starts_with(&first), "{long}");
        // The build knew a commit if the source is a repository, or was given one.
        if let Some(commit) = option_env!("FASTPATH_BUILT_COMMIT") {
            assert!(long.contains(&format!("\ncommit: {commit}\n")), "{long}");
        }
        if let Some(head) = &head
            && option_env!("FASTPATH_COMMIT").is_none()
        {
            let head = String::from_utf8_lossy(&head.stdout);
            assert!(long.contains(&format!("\ncommit: {head}")), "{long}");
        }
        let images = long.split_once("\nimages:\n").expect("images").1;
        let named: Vec<_> = images
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        assert_eq!(named, ["x86_64", "i386", "aarch64", "arm"], "{long}");
        let own = images
            .lines()
            .find(|line| line.contains(std::env::consts::ARCH))
            .expect("a line");
        let size = own
            .split_whitespace()
            .nth(1)
            .and_then(|size| size.parse::<usize>().ok());
        assert!(size.is_some_and(|size| size > 1000), "{own}");
    }
}
