//! `fastpath status` where a daemon runs.

use std::process::Command;

use super::policy::{daemon, rule};
use super::{Place, page_of};
use crate::common::{finish, install, needs_root, program, start, wait_until};

#[test]
fn it_shows_the_daemons_state_and_the_rule_that_attached_a_process() {
    let ((), torture) = needed!(needs_root(), program("torture"));
    let place = Place::among_others();
    let copied = place.0.path().join("by-a-rule");
    install(&torture, &copied, 0o755);
    let rules = [("/nonexistent/a", "never"), (copied.to_str().expect("UTF-8"), "attach")];
    let (daemon, file) = daemon(&place, &rules.map(|(path, action)| rule(path, action)).concat());
    let mut command = Command::new(&copied);
    command.args(["-s", "20", "-t", "1"]);
    let running = start(command);
    wait_until("it to be attached", || {
        page_of(running.pid()).is_some() && place.status().pages.iter().any(|page| page.rule == Some(2))
    });
    // A request that is refused: no page has this clock.
    let client = fastpath_protocol::Client::connect_to(&place.socket()).expect("a daemon");
    client
        .page(fastpath_page::ClockSet(1 << 2), None, None)
        .expect_err("a refusal");
    let look = || {
        let outcome = finish(place.fastpath(&["status", "--json"])).expect_success();
        let status: serde_json::Value = serde_json::from_str(&outcome.out).expect("JSON");
        status
    };
    let status = look();
    assert_eq!(status["schema"], 1);
    let about = &status["daemon"];
    assert_eq!((&about["pid"], &about["rules"]), (&daemon.pid().0.into(), &2.into()));
    assert_eq!((&about["pages"], &about["refused"]), (&1.into(), &1.into()));
    let processes = status["processes"].as_array().expect("processes");
    let of = |pid: i32| processes.iter().find(|one| one["pid"] == pid).expect("it is there");
    let one = of(running.pid().0);
    assert_eq!((&one["rule"], &one["by"]), (&2.into(), &"attach".into()));
    let text = finish(place.fastpath(&["status"])).expect_success().out;
    // Other tests have processes of this name.
    let pid = format!("{} ", running.pid().0);
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with(&pid))
        .expect("a line");
    assert!(line.contains("rule 2"), "{text}");
    let about = format!("fastpathd {} ({}), for ", daemon.pid().0, env!("CARGO_PKG_VERSION"));
    let line = text.lines().find(|line| line.starts_with(&about));
    assert!(
        line.is_some_and(|line| line.ends_with(": 1 page, 1 request refused")),
        "{text}"
    );
    assert!(
        text.contains(&format!("{}: 2 rules, processes are detected by ", file.display())),
        "{text}"
    );
    // status shows a mistake that the daemon has found.
    std::fs::write(&file, "[[rule]").expect("write");
    daemon.pid().signal(libc::SIGHUP);
    wait_until("the mistake to be reported", || {
        look()["daemon"]["policy_error"].is_string()
    });
    let text = finish(place.fastpath(&["status"])).expect_success().out;
    assert!(
        text.contains("line 1, column ") && text.contains("the previous policy stays in force"),
        "{text}"
    );
}

#[test]
fn without_a_daemon_it_shows_none() {
    let place = Place::new();
    let text = finish(place.fastpath(&["status"])).expect_success();
    assert!(!text.out.contains("fastpathd") && text.err.is_empty(), "{text:#?}");
    let json = finish(place.fastpath(&["status", "--json"])).expect_success().out;
    assert!(json.contains("\"daemon\":null"), "{json}");
}
