//! A daemon that is lost, and one that comes after it.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use super::{Place, alone, among_others, exists, page_of, wait_until_served};
use crate::common::clock_calls::{fewest_clock_calls, makes_clock_calls};
use crate::common::{finish, needs_root, program, start, wait_until};

/// Longer than an anchor is believed.
const ANCHOR_IS_OLD: Duration = Duration::from_millis(700);

#[test]
fn readers_bridge_a_killed_daemon_by_the_kernels_path_and_are_fast_again_with_the_next() {
    let (Some(clock), Some(())) = (program("clock-glibc"), needs_root()) else {
        return;
    };
    let _host = alone();
    let place = Place::new();
    let daemon = place.daemon();
    let running = start(place.served(&[&clock, "2000000000", "MONOTONIC"]));
    wait_until_served(&running);
    let page = page_of(running.pid());
    assert_eq!(fewest_clock_calls(running.pid()).unwrap_or(0), 0);
    daemon.pid().signal(libc::SIGKILL);
    std::thread::sleep(ANCHOR_IS_OLD);
    assert_ne!(
        makes_clock_calls(running.pid()),
        Some(false),
        "a page that nobody keeps is still believed"
    );
    let _next = place.daemon();
    wait_until("the page to be found again", || {
        let status = place.status();
        let found = status.pages.iter().find(|page| page.was_found_again);
        found.is_some_and(|found| Some(found.inode) == page && found.refreshes > 0 && found.clocks.len() == 5)
    });
    assert_eq!(fewest_clock_calls(running.pid()).unwrap_or(0), 0);
    running.pid().signal(libc::SIGKILL);
    wait_until("the page to go away", || place.status().pages_in_all == 0);
}

#[test]
fn daemons_that_die_and_are_replaced_make_no_read_wrong() {
    let (Some(torture), Some(())) = (program("torture"), needs_root()) else {
        return;
    };
    let _host = alone();
    let place = Place::new();
    let mut daemon = place.daemon();
    let arguments = ["-s", "12", "-t", "2", "-m", "same,causal,mixed"];
    let running = start(place.served(&[&[torture.as_str()], &arguments[..]].concat()));
    wait_until_served(&running);
    for delay_ms in [300, 50, 700, 5, 1500] {
        std::thread::sleep(Duration::from_millis(delay_ms));
        daemon.pid().signal(libc::SIGKILL);
        std::thread::sleep(Duration::from_millis(delay_ms / 3));
        daemon = place.daemon();
    }
    wait_until("the page to be kept", || {
        place.status().pages.iter().any(|page| page.refreshes > 0)
    });
    let outcome = running.finish().expect_success();
    assert!(outcome.out.contains("\"violations\":0}"), "{outcome:#?}");
}

#[test]
fn a_second_daemon_leaves_the_first_ones_pages_alone_and_is_refused_its_socket() {
    let _host = among_others();
    let place = Place::new();
    let _first = place.daemon();
    let running = start(place.served(&["sleep", "60"]));
    wait_until_served(&running);
    let second = finish(place.command(&[])).expect_code(1);
    assert!(second.err.contains("another fastpathd listens there"), "{second:#?}");
    let elsewhere = Place::new();
    let _other = elsewhere.daemon();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(elsewhere.status().pages_in_all, 0);
    assert_eq!(place.status().pages_in_all, 1);
}

#[test]
fn a_daemon_that_is_told_to_end_removes_its_socket_and_one_that_was_killed_is_no_obstacle() {
    let _host = alone();
    let place = Place::new();
    let daemon = place.daemon();
    daemon.pid().signal(libc::SIGKILL);
    daemon.finish();
    assert!(exists(&place.socket()));
    let daemon = place.daemon();
    daemon.pid().signal(libc::SIGTERM);
    daemon.finish().expect_success();
    assert!(!exists(&place.socket()));
    std::fs::write(place.socket(), "a file of somebody's").expect("write");
    let refused = finish(place.command(&[])).expect_code(1);
    assert!(refused.err.contains("a file that is not a socket"), "{refused:#?}");
    assert!(exists(&place.socket()), "it was removed");
}

#[test]
fn the_service_manager_hears_that_the_daemon_is_ready_alive_and_stopping() {
    let _host = among_others();
    let place = Place::new();
    let path = place.0.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a timeout");
    let hear = || {
        let mut bytes = [0; 100];
        let length = manager.recv(&mut bytes).expect("a word from the daemon");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let mut command = place.command(&[]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "500000");
    let daemon = start(command);
    assert_eq!(hear(), "READY=1");
    assert_eq!(place.status().pages_in_all, 0, "it is ready and answers");
    assert_eq!(hear(), "WATCHDOG=1");
    daemon.pid().signal(libc::SIGTERM);
    while hear() != "STOPPING=1" {}
    daemon.finish().expect_success();
}

#[test]
fn without_a_daemon_run_has_a_publisher_of_its_own() {
    let place = Place::new();
    let script = "grep -c memfd:fastpath-page /proc/self/maps";
    finish(place.served(&["sh", "-c", script]))
        .expect_success()
        .expect_output("1");
}
