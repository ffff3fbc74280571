//! An attached process stays attached; a detached process is as it was before.

use std::process::Command;

use super::stepping::entries;
use super::{Memory, attach, detach, sleeper};
use crate::common::processes::holds_within;
use crate::common::{Pid, fastpath, finish, served, start, tool, wait_until};

/// Some intervals at which the helper checks whether any process uses its page.
const LOOKS: std::time::Duration = std::time::Duration::from_secs(1);

#[test]
fn the_publisher_ends_when_the_last_process_is_detached_or_has_ended() {
    let [one, other] = [sleeper(), sleeper()];
    let pids = [one.pid(), other.pid()].map(|pid| pid.0.to_string());
    let attaching = start(fastpath(&["attach", "--clocks", "all", &pids[0], &pids[1]]));
    let mark = attaching.mark().to_owned();
    attaching.finish().expect_success();
    let helper = Pid::helper(&mark);
    detach(one.pid()).expect_success();
    assert!(!holds_within(LOOKS, || !helper.exists()), "the other was left alone");
    drop(other);
    wait_until("the helper's end", || !helper.exists());
}

#[test]
fn no_helper_stays_behind_if_nothing_was_attached() {
    let attaching = start(fastpath(&["attach", "--clocks", "all", "4194303"]));
    let mark = attaching.mark().to_owned();
    attaching.finish().expect_code(3);
    wait_until("the helper's end", || Pid::helpers(&mark).is_empty());
}

#[test]
fn a_program_under_run_is_detached_as_one_that_was_attached() {
    let python = needed!(tool("python3"));
    let script =
        "import os, time\nprint('ready', flush=True)\nwhile True:\n    time.sleep(0.01)\n    time.monotonic()\n";
    let running = start(served(&[python, "-I", "-c", script]));
    wait_until("its loop", || running.out_so_far().contains("ready"));
    assert!(running.pid().is_served());
    detach(running.pid()).expect_success().expect_output("");
    assert!(
        !running.pid().read("maps").contains("memfd:fastpath"),
        "{}",
        running.pid().read("maps")
    );
    let begun = running.pid().cpu_time();
    wait_until("going on", || running.pid().cpu_time() > begun);
    attach(running.pid()).expect_success();
    assert!(running.pid().is_served());
}

#[test]
fn a_child_that_is_forked_stays_attached_and_is_detached_by_itself() {
    let python = needed!(tool("python3"));
    let mut command = Command::new(python);
    // The program forks when the file exists.
    let script = "import os, sys, time\nprint('ready', flush=True)\n\
        while not os.path.exists(sys.argv[1]):\n    time.sleep(0.01)\n\
        os.fork()\nwhile True:\n    time.sleep(0.01)\n    time.monotonic()\n";
    let directory = tempfile::tempdir().expect("a directory");
    let go = directory.path().join("go");
    command.args(["-I", "-c", script]).arg(&go);
    let running = start(command);
    wait_until("its loop", || running.out_so_far().contains("ready"));
    std::thread::sleep(std::time::Duration::from_millis(100));
    let before = Memory::open(running.pid());
    attach(running.pid()).expect_success();
    std::fs::write(&go, "").expect("a file");
    wait_until("a child", || running.pid().children().len() == 1);
    let child = running.pid().children()[0];
    assert!(child.is_served() && !entries(child).is_empty());
    detach(running.pid()).expect_success();
    assert_eq!(Memory::open(running.pid()), before);
    assert!(child.is_served() && !entries(child).is_empty());
    detach(child).expect_success();
    assert_eq!(Memory::open(child), before);
    assert!(child.exists());
}

#[test]
fn nothing_is_attached_if_every_clock_is_fast() {
    let running = sleeper();
    let outcome = finish(fastpath(&["attach", &running.pid().0.to_string()])).expect_success();
    // On a host with slow clocks it is attached; the other tests cover that.
    if outcome.err.contains("nothing was attached") {
        assert!(!running.pid().is_served());
    } else {
        assert!(running.pid().is_served(), "{outcome:#?}");
    }
}
