//! Rules with `rescue`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Place;
use super::policy::{daemon, rule};
use crate::common::{Pid, finish, helper_program, install, needs_root, start, wait_until};

/// Installs a copy of `raw-clock`, which makes system calls for time, under a name of its own: other tests run the same
/// program at the same time.
fn raw_clock(place: &Place, name: &str) -> Option<String> {
    copy_of("raw-clock", place, name)
}

fn copy_of(helper: &str, place: &Place, name: &str) -> Option<String> {
    let program = helper_program(helper, "cc", &["-static", "-no-pie"])?;
    Some(install(program, place.0.path().join(name), 0o755))
}

/// Returns the number of rescued sites of each process that runs this program and is served.
#[track_caller]
fn rescued_sites(place: &Place, program: &str) -> Vec<u64> {
    let status = finish(place.fastpath(&["status", "--json"])).expect_success();
    let status: serde_json::Value = serde_json::from_str(&status.out).expect("a document");
    let runs_it = |pid: u64| {
        let executable = std::fs::read_link(format!("/proc/{pid}/exe"));
        executable.is_ok_and(|executable| executable == Path::new(program))
    };
    let processes = status["processes"].as_array().expect("processes").iter();
    processes
        .filter(|process| process["pid"].as_u64().is_some_and(runs_it))
        .filter_map(|process| process["rescued_sites"].as_u64())
        .collect()
}

/// Waits until the attach is complete.
#[track_caller]
fn wait_until_attached(place: &Place, pid: Pid, rule: usize) {
    wait_until("it to be attached", || {
        let pages = place.status().pages;
        pages.iter().any(|page| page.pid == pid.0 && page.rule == Some(rule))
    });
}

#[test]
fn a_rule_with_rescue_redirects_a_programs_own_calls() {
    needed!(needs_root());
    let place = Place::among_others();
    let (plain, rescued) = needed!(raw_clock(&place, "plain"), raw_clock(&place, "rescued"));
    let (plain_rule, rescue_rule) = (rule(&plain, "attach"), rule(&rescued, "attach"));
    let (_daemon, _) = daemon(&place, &format!("{plain_rule}{rescue_rule}rescue = true\n"));
    for (number, program) in [&plain, &rescued].into_iter().enumerate() {
        let running = start(Command::new(program));
        wait_until_attached(&place, running.pid(), number + 1);
        let sites = rescued_sites(&place, program);
        let is_rescued = program == &rescued;
        assert!(sites.len() == 1 && (sites[0] > 0) == is_rescued, "{program}: {sites:?}");
    }
}

#[test]
fn a_rule_with_children_and_rescue_rescues_the_programs_that_are_executed() {
    needed!(needs_root());
    let place = Place::among_others();
    let program = needed!(raw_clock(&place, "executed"));
    let shell = install("/bin/sh", place.0.path().join("shell"), 0o755);
    for (keys, is_rescued) in [("", false), ("rescue = true\n", true)] {
        let (_daemon, _) = daemon(&place, &format!("{}children = true\n{keys}", rule(&shell, "attach")));
        let go = place.0.path().join(format!("go{is_rescued}"));
        let mut command = Command::new(&shell);
        // If the attendant gets no CPU in time, a program starts on the kernel's path: then the next one is tried.
        let script = "until test -e \"$0\"; do :; done; while :; do timeout --foreground 5 \"$1\"; done";
        command.args(["-c", script]).arg(&go).arg(&program);
        let running = start(command);
        wait_until_attached(&place, running.pid(), 1);
        std::fs::write(&go, "").expect("a file");
        let mut sites = Vec::new();
        wait_until("a program that is served", || {
            sites = rescued_sites(&place, &program);
            !sites.is_empty()
        });
        assert!(sites.iter().all(|sites| (*sites > 0) == is_rescued), "{sites:?}");
    }
}

#[test]
fn a_rule_that_begins_to_rescue_does_so_for_new_processes() {
    needed!(needs_root());
    let place = Place::among_others();
    let program = needed!(raw_clock(&place, "ruled"));
    let plain = rule(&program, "attach");
    let (daemon, file) = daemon(&place, &plain);
    let first = start(Command::new(&program));
    wait_until_attached(&place, first.pid(), 1);
    // The second rule shows that the new policy is in force.
    let another = rule("/nonexistent/a", "never");
    std::fs::write(&file, format!("{plain}rescue = true\n{another}")).expect("write");
    daemon.pid().signal(libc::SIGHUP);
    wait_until("the new policy", || place.status().rules == 2);
    let second = start(Command::new(&program));
    wait_until_attached(&place, second.pid(), 1);
    let mut sites = rescued_sites(&place, &program);
    sites.sort_unstable();
    assert!(sites.len() == 2 && sites[0] == 0 && sites[1] > 0, "{sites:?}");
}

#[test]
fn a_program_that_a_rule_rescues_sees_no_difference() {
    needed!(needs_root());
    let place = Place::among_others();
    let program = needed!(copy_of("raw-calls", &place, "compared"));
    let (daemon, _) = daemon(&place, &format!("{}rescue = true\n", rule(&program, "attach")));
    let running = start(Command::new(&program));
    wait_until_attached(&place, running.pid(), 1);
    assert!(rescued_sites(&place, &program).iter().all(|sites| *sites > 0));
    wait_until("its first round", || running.out_so_far().contains("ready"));
    std::thread::sleep(Duration::from_millis(300));
    drop(daemon);
    std::thread::sleep(Duration::from_millis(300));
    running.pid().signal(libc::SIGTERM);
    let outcome = running.finish().expect_success();
    assert!(outcome.out.contains(" 0 differences"), "{outcome:#?}");
}
