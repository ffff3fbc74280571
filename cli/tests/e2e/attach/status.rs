//! `fastpath status`.

use std::process::Command;

use super::{attach, detach};
use crate::common::{Pid, fastpath, finish, served, start, wait_until};

/// What the status says of a process.
fn of(pid: Pid) -> Option<serde_json::Value> {
    let outcome = finish(fastpath(&["status", "--json"])).expect_success();
    let status: serde_json::Value = serde_json::from_str(&outcome.out).expect("JSON");
    assert_eq!(status["schema"], 1);
    let processes = status["processes"].as_array().expect("processes").clone();
    processes.into_iter().find(|process| process["pid"] == pid.0)
}

#[test]
fn attached_and_run_processes_are_told_apart_with_their_clocks_and_publisher() {
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let attached = start(sleep);
    wait_until("its sleep", || attached.pid().read("wchan").contains("nanosleep"));
    assert_eq!(of(attached.pid()), None);
    attach(attached.pid()).expect_success();
    let run = start(served(&["sleep", "1000"]));
    wait_until("its sleep", || run.pid().read("wchan").contains("nanosleep"));
    for (running, by) in [(&attached, "attach"), (&run, "run")] {
        // A publisher that has just begun has published nothing yet.
        wait_until("its clocks", || {
            of(running.pid()).is_some_and(|status| status["clocks"].as_array().is_some_and(|clocks| clocks.len() == 5))
        });
        let status = of(running.pid()).expect("a process");
        assert_eq!((&status["by"], &status["comm"]), (&by.into(), &"sleep".into()));
        assert_eq!(status["publisher_is_alive"], true);
        let publisher = Pid(status["publisher"].as_i64().expect("a number") as i32);
        assert!(publisher.read("cmdline").starts_with("fastpath-publisher"));
        assert_eq!(of(publisher), None, "the publisher is not served itself");
        assert!(status["residual_ns"].is_i64() && status["fallbacks"].is_u64() && status["age_ns"].is_u64());
    }
    let table = finish(fastpath(&["status"])).expect_success().out;
    let line = table
        .lines()
        .find(|line| line.contains(&attached.pid().0.to_string()))
        .expect("a line");
    assert!(line.contains("attach") && line.contains("all"), "{table}");
    detach(attached.pid()).expect_success();
    assert_eq!(of(attached.pid()), None);
}

#[test]
fn a_publisher_that_was_killed_is_told_as_gone() {
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let running = start(sleep);
    wait_until("its sleep", || running.pid().read("wchan").contains("nanosleep"));
    attach(running.pid()).expect_success();
    wait_until("its publisher", || {
        of(running.pid()).is_some_and(|status| status["publisher"].is_i64())
    });
    let publisher = of(running.pid()).expect("a process")["publisher"]
        .as_i64()
        .expect("a number");
    Pid(publisher as i32).signal(libc::SIGKILL);
    wait_until("its end", || {
        of(running.pid()).is_some_and(|status| status["publisher_is_alive"] == false && status["is_fresh"] == false)
    });
    detach(running.pid()).expect_success();
    assert!(!running.pid().is_served());
}
