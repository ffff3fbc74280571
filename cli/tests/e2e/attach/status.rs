//! `fastpath status`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::{attach, detach};
use crate::common::terminal::output_to_terminal;
use crate::common::{Pid, fastpath, finish, helper_program, program_32, served, start, wait_until};

/// Returns the entry of a process in the status.
pub fn read(pid: Pid) -> Option<serde_json::Value> {
    let outcome = finish(fastpath(&["status", "--json"])).expect_success();
    let status: serde_json::Value = serde_json::from_str(&outcome.out).expect("JSON");
    assert_eq!(status["schema"], 1);
    let processes = status["processes"].as_array().expect("processes").clone();
    processes.into_iter().find(|process| process["pid"] == pid.0)
}

fn answers_all(pid: Pid) -> bool {
    read(pid).is_some_and(|status| status["clocks"].as_array().is_some_and(|clocks| clocks.len() == 5))
}

#[test]
fn status_shows_attach_or_run_with_clocks_and_publisher() {
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let attached = start(sleep);
    wait_until("its sleep", || attached.pid().read("wchan").contains("nanosleep"));
    assert_eq!(read(attached.pid()), None);
    attach(attached.pid()).expect_success();
    assert!(answers_all(attached.pid()), "an attach ends before its page answers");
    let run = start(served(&["sleep", "1000"]));
    wait_until("its sleep", || run.pid().read("wchan").contains("nanosleep"));
    for (running, by) in [(&attached, "attach"), (&run, "run")] {
        // `run` starts its program before the publisher's first anchor.
        wait_until("its clocks", || answers_all(running.pid()));
        let status = read(running.pid()).expect("a process");
        assert_eq!((&status["by"], &status["comm"]), (&by.into(), &"sleep".into()));
        assert_eq!(status["publisher_is_alive"], true);
        let publisher = Pid(status["publisher"].as_i64().expect("a number") as i32);
        assert!(publisher.read("cmdline").starts_with("fastpath-publisher"));
        assert_eq!(read(publisher), None, "the publisher is not served itself");
        assert!(status["residual_ns"].is_i64() && status["fallbacks"].is_u64() && status["age_ns"].is_u64());
    }
    let table = finish(fastpath(&["status"])).expect_success().out;
    let line = table
        .lines()
        .find(|line| line.contains(&attached.pid().0.to_string()))
        .expect("a line");
    assert!(line.contains("attach") && line.contains("all"), "{table}");
    let in_vdso = |pid| read(pid).map(|status| status["in_vdso"].as_bool());
    assert_eq!(
        matches!(in_vdso(run.pid()), Some(Some(_))),
        cfg!(target_arch = "x86_64")
    );
    if let Some(clock) = program_32("clock-i386-glibc") {
        let running = start(served(&[&clock, "2000000000", "MONOTONIC"]));
        wait_until("a 32-bit program", || in_vdso(running.pid()) == Some(Some(false)));
        let text = finish(fastpath(&["status"])).expect_success().out;
        let says = |line: &str| line.contains("callers of clock reads") && line.contains(&running.pid().0.to_string());
        assert!(text.lines().any(says), "{text}");
    }
    detach(attached.pid()).expect_success();
    assert_eq!(read(attached.pid()), None);
}

#[test]
fn a_c_library_that_was_loaded_again_is_reported() {
    let path = needed!(helper_program("second-libc", "cc", &[]));
    let running = start(served(&[&path, "second", "true"]));
    wait_until("its library", || running.out_so_far().contains("ready"));
    let status = read(running.pid()).expect("a process");
    let library = status["unseen_library"].as_str();
    assert!(library.is_some_and(|name| name.ends_with("/libc.so.6")), "{status}");
    let text = finish(fastpath(&["status"])).expect_success().out.replace('\n', " ");
    let words = format!("{} has loaded {} again", running.pid().0, library.unwrap());
    assert!(text.contains(&words), "{text}");
}

#[test]
fn a_killed_publisher_is_shown_as_gone_and_attach_replaces_it() {
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let running = start(sleep);
    wait_until("its sleep", || running.pid().read("wchan").contains("nanosleep"));
    attach(running.pid()).expect_success();
    wait_until("its publisher", || {
        read(running.pid()).is_some_and(|status| status["publisher"].is_i64())
    });
    let publisher = read(running.pid()).expect("a process")["publisher"]
        .as_i64()
        .expect("a number");
    Pid(publisher as i32).signal(libc::SIGKILL);
    wait_until("its end", || {
        read(running.pid()).is_some_and(|status| status["publisher_is_alive"] == false && status["is_fresh"] == false)
    });
    wait_until("another publisher", || attach(running.pid()).status.success());
    let other = read(running.pid()).expect("a process");
    assert!(
        other["publisher_is_alive"] == true && other["publisher"] != publisher,
        "{other}"
    );
    detach(running.pid()).expect_success();
    assert!(!running.pid().is_served());
}

/// The sequence that follows each table on the terminal before another is drawn in its place.
const ERASE: &str = "\x1b[J";

#[test]
fn a_watched_table_is_redrawn_in_place_and_fits_a_resized_terminal() {
    let served = start(served(&["sleep", "1000"]));
    wait_until("its sleep", || served.pid().read("wchan").contains("nanosleep"));
    // A day: only the signals cause a redraw.
    let mut watch = fastpath(&["status", "--watch=86400"]);
    watch.env("NO_COLOR", "1").env("TERM", "xterm");
    let mut terminal = output_to_terminal(&mut watch);
    let resize = terminal.resizer();
    let mut child = watch.spawn().expect("fastpath");
    drop(watch);
    let pid = Pid(child.id() as i32);
    let mut drawn = 0;
    let shown = terminal.read_to_end(|shown| {
        let tables = shown.split(ERASE).collect::<Vec<_>>();
        if tables.len() == drawn || !tables[tables.len() - 1].ends_with('\n') {
            return;
        }
        drawn = tables.len();
        match drawn {
            1 => {
                resize(4, 30);
                pid.signal(libc::SIGWINCH);
            }
            2 => pid.signal(libc::SIGINT),
            _ => {}
        }
    });
    assert!(child.wait().expect("wait").success(), "{shown:?}");
    let tables: Vec<&str> = shown.split(ERASE).collect();
    assert_eq!(tables.len(), 3, "{shown:?}");
    assert!(
        tables[0].starts_with("Every 86400 s: fastpath status"),
        "the time of day is above it: {shown:?}"
    );
    assert!(
        tables[0].contains(" PID ") && tables[0].contains(" sleep "),
        "{shown:?}"
    );
    // After a resize, the position of the lines is unknown.
    assert!(tables[0].ends_with("\n\x1b[H"), "{shown:?}");
    // The same table again: what the terminal showed of Ctrl-C is gone.
    assert!(tables[1].ends_with("\n\r\x1b[3A"), "{shown:?}");
    for (table, lines, columns) in [(tables[0], 23, 80), (tables[1], 3, 30), (tables[2], 3, 30)] {
        let table = &table[..=table.rfind('\n').expect("a line")];
        assert!(table.lines().count() <= lines, "{shown:?}");
        assert!(
            table.lines().all(|line| line.chars().count() <= columns),
            "{columns} columns: {table}"
        );
    }
}

#[test]
fn a_dumb_terminal_gets_one_watched_table_below_the_other() {
    let mut watch = fastpath(&["status", "--watch=0.1"]);
    watch.env("TERM", "dumb");
    let mut terminal = output_to_terminal(&mut watch);
    let mut child = watch.spawn().expect("fastpath");
    drop(watch);
    let count = |shown: &str| shown.matches("Every 0.1 s: fastpath status").count();
    let shown = terminal.read_to_end(|shown| {
        if count(shown) == 3 {
            Pid(child.id() as i32).signal(libc::SIGINT);
        }
    });
    assert!(child.wait().expect("wait").success(), "{shown:?}");
    assert!(count(&shown) >= 3 && !shown.contains('\x1b'), "{shown:?}");
}

#[test]
fn a_watched_status_without_a_terminal_prints_until_a_signal() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let watch = start(fastpath(&["status", "--json", "--watch=0.1"]));
        wait_until("three lines", || watch.out_so_far().lines().count() >= 3);
        watch.pid().signal(signal);
        let outcome = watch.finish().expect_success();
        for line in outcome.out.lines() {
            let document: serde_json::Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(
                (&document["schema"], &document["command"]),
                (&1.into(), &"status".into())
            );
        }
    }
}

#[test]
fn a_watched_status_ends_when_its_reader_is_gone() {
    let mut child = fastpath(&["status", "--watch=86400"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("fastpath");
    let mut first = String::new();
    BufReader::new(child.stdout.take().expect("a pipe"))
        .read_line(&mut first)
        .expect("a line");
    assert!(first.starts_with("Every 86400 s: "), "{first}");
    assert_eq!(child.wait().expect("wait").code(), Some(74));
    let closed = "exec \"$1\" status --watch=0.1 >&-";
    let mut shell = Command::new("sh");
    shell.args(["-c", closed, "sh", env!("CARGO_BIN_EXE_fastpath")]);
    finish(shell).expect_code(74);
}

#[test]
fn an_invalid_interval_is_a_usage_error() {
    for wrong in ["--watch=0", "--watch=", "--watch=x", "--watch=-1"] {
        let outcome = finish(fastpath(&["status", wrong])).expect_code(2);
        assert!(outcome.err.contains("0.1 to 86400"), "{outcome:#?}");
    }
}
