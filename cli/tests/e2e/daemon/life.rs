//! A daemon that dies, and the next one.

use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use super::{Place, exists, page_of, wait_until_served};
use crate::common::clock_calls::{fewest_clock_calls, makes_clock_calls};
use crate::common::processes::TIMEOUT;
use crate::common::{comes_to, finish, install, needs_root, program, start, torture, wait_until};

/// Longer than an anchor is valid.
const ANCHOR_IS_OLD: Duration = Duration::from_millis(700);

#[test]
fn readers_ask_the_kernel_between_a_killed_daemon_and_the_next() {
    let (clock, ()) = needed!(program("clock-glibc"), needs_root());
    let place = Place::alone();
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
        "a page without a publisher still answers"
    );
    // A daemon that listens at another socket does not adopt the page.
    let elsewhere = Place::new();
    let _other = elsewhere.daemon();
    std::thread::sleep(ANCHOR_IS_OLD);
    assert_eq!(elsewhere.status().pages_in_all, 0);
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
    let (torture, ()) = needed!(torture::endless("2"), needs_root());
    let place = Place::alone();
    let mut daemon = place.daemon();
    let running = start(place.served(&torture));
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
    torture::end(running);
}

#[test]
fn a_second_daemon_leaves_the_first_ones_pages_alone() {
    let place = Place::among_others();
    let _first = place.daemon();
    let running = start(place.served(&["sleep", "1000"]));
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
fn a_daemon_does_not_start_if_its_policy_cannot_be_read() {
    let place = Place::new();
    let file = place.0.path().join("policy.toml");
    let command = || place.command(&["--policy", file.to_str().expect("UTF-8")]);
    std::fs::write(&file, "[[rule]]\naction = \"nevver\"\n").expect("write");
    let refused = finish(command()).expect_code(4);
    assert!(refused.err.contains("line 2, column 10"), "{refused:#?}");
    assert!(!exists(&place.socket()));
    // A file whose read never ends is not a policy.
    for file in ["/dev/zero", "/proc"] {
        let refused = finish(place.command(&["--policy", file])).expect_code(4);
        assert!(refused.err.contains("it is not a file"), "{refused:#?}");
    }
    std::fs::remove_file(&file).expect("rm");
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("a fifo");
    let refused = finish(command()).expect_code(4);
    assert!(refused.err.contains("it is not a file"), "{refused:#?}");
}

#[test]
fn pages_of_an_unprivileged_daemon_end_with_it() {
    let (torture, ()) = needed!(program("torture"), needs_root());
    let place = Place::alone();
    std::os::unix::fs::chown(place.0.path(), Some(65534), Some(65534)).expect("chown");
    let copies = [
        (env!("CARGO_BIN_EXE_fastpath"), "fastpath"),
        (env!("CARGO_BIN_EXE_fastpathd"), "fastpathd"),
        (&torture, "torture"),
    ];
    let [fastpath, fastpathd, torture] = copies.map(|(from, name)| {
        let to = place.0.path().join(name);
        install(from, &to, 0o755);
        to
    });
    let as_nobody = |program: &std::path::Path| {
        let mut command = std::process::Command::new(program);
        command.uid(65534).gid(65534).env("FASTPATH_SOCKET", place.socket());
        command
    };
    let daemon = || {
        let mut command = as_nobody(&fastpathd);
        command.args(["--clocks", "all"]);
        let daemon = start(command);
        wait_until("fastpathd", || {
            as_user(65534, || fastpath_protocol::Client::connect_to(&place.socket()).is_ok())
        });
        daemon
    };
    let serve = |seconds: &str| {
        let mut command = as_nobody(&fastpath);
        command.args(crate::common::SERVED).arg(&torture);
        command.args(["-s", seconds, "-t", "2", "-m", "same,causal,mixed"]);
        let running = start(command);
        wait_until("the program", || {
            running.pid().is_served() && running.pid().program() == "torture"
        });
        running
    };
    let mut elsewhere = as_nobody(&fastpathd);
    elsewhere.env("FASTPATH_SOCKET", "/usr/socket-of-nobody");
    let refused = crate::common::finish(elsewhere).expect_code(1);
    assert!(
        refused.err.contains("run it as root, or set FASTPATH_SOCKET"),
        "{refused:#?}"
    );
    let first = daemon();
    let orphan = serve("6");
    first.pid().signal(libc::SIGKILL);
    drop(first);
    let next = daemon();
    let served = serve("2");
    // Root does not use a daemon of another user.
    let pages = as_user(65534, || place.status().pages);
    let pages: Vec<_> = pages
        .iter()
        .map(|page| (Some(page.inode), page.was_found_again))
        .collect();
    assert_eq!(pages, [(page_of(served.pid()), false)]);
    for running in [served, orphan] {
        let outcome = running.finish().expect_success();
        assert!(outcome.out.contains("\"violations\":0}"), "{outcome:#?}");
    }
    drop(next);
}

#[test]
fn of_daemons_that_start_at_once_one_listens() {
    let place = Place::alone();
    for _ in 0..3 {
        // The first time there is no socket; later there is a dead daemon's.
        let mut all: Vec<_> = (0..4).map(|_| start(place.command(&[]))).collect();
        wait_until("all but one to end", || {
            all.iter().filter(|daemon| daemon.pid().exists()).count() == 1
        });
        let winner = all.iter().position(|daemon| daemon.pid().exists()).expect("one");
        let winner = all.swap_remove(winner);
        assert_eq!(place.status().pid, winner.pid().0 as u32);
        for other in all {
            let other = other.finish().expect_code(1);
            assert!(other.err.contains("another fastpathd listens there"), "{other:#?}");
        }
        winner.pid().signal(libc::SIGKILL);
        winner.finish();
    }
}

#[test]
fn a_daemon_that_ends_leaves_the_socket_of_another_alone() {
    let place = Place::alone();
    let first = place.daemon();
    std::fs::remove_file(place.socket()).expect("rm");
    let second = place.daemon();
    first.pid().signal(libc::SIGTERM);
    first.finish().expect_success();
    assert_eq!(place.status().pid, second.pid().0 as u32);
}

#[test]
fn a_daemon_removes_its_socket_and_replaces_a_killed_ones() {
    let place = Place::alone();
    let daemon = place.daemon();
    daemon.pid().signal(libc::SIGKILL);
    daemon.finish();
    assert!(exists(&place.socket()));
    let daemon = place.daemon();
    daemon.pid().signal(libc::SIGTERM);
    daemon.finish().expect_success();
    assert!(!exists(&place.socket()));
    std::fs::write(place.socket(), "a user's file").expect("write");
    let refused = finish(place.command(&[])).expect_code(1);
    assert!(refused.err.contains("a file that is not a socket"), "{refused:#?}");
    assert!(exists(&place.socket()), "it was removed");
}

#[test]
fn the_service_manager_is_notified_of_ready_alive_and_stopping() {
    let place = Place::among_others();
    let path = place.0.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    let read = || {
        let mut bytes = [0; 100];
        let length = manager.recv(&mut bytes).expect("a message from the daemon");
        String::from_utf8_lossy(&bytes[..length]).trim_end().to_owned()
    };
    let mut command = place.command(&[]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "500000");
    let daemon = start(command);
    assert_eq!(read(), "READY=1");
    assert_eq!(place.status().pages_in_all, 0, "it is ready and answers");
    assert_eq!(read(), "WATCHDOG=1");
    daemon.pid().signal(libc::SIGTERM);
    while read() != "STOPPING=1" {}
    daemon.finish().expect_success();
}

#[test]
fn a_log_without_a_reader_delays_no_client() {
    let place = Place::among_others();
    let fifo = place.0.path().join("log");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("a fifo");
    // It holds 64 KiB (pipe(7)).
    let script = "exec 9<>\"$0\"; head -c 65536 /dev/zero >&9; exec \"$@\" 2>&9 9>&-";
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", script])
        .arg(&fifo)
        .arg(env!("CARGO_BIN_EXE_fastpathd"));
    command.args(["--clocks", "all", "--socket"]).arg(place.socket());
    let daemon = start(command);
    let answers = || {
        let asked = fastpath_protocol::Client::connect_to(&place.socket()).and_then(|client| client.status());
        asked.is_ok()
    };
    wait_until("an answer", answers);
    // Each refusal writes to the log.
    for _ in 0..3 {
        daemon.pid().signal(libc::SIGHUP);
        assert!(answers());
    }
    daemon.pid().signal(libc::SIGTERM);
    daemon.finish().expect_success();
}

#[test]
fn without_a_daemon_run_has_a_publisher_of_its_own() {
    let place = Place::new();
    let script = "grep -c memfd:fastpath-page /proc/self/maps";
    comes_to(|| place.served(&["sh", "-c", script]), 0, "1");
}

/// Calls a function while this thread has the rights of another user.
fn as_user<T>(user: u32, call: impl FnOnce() -> T) -> T {
    // SAFETY: takes integers; the system call itself, unlike libc's function, changes this thread alone.
    let change = |user: u32| unsafe { libc::syscall(libc::SYS_setresuid, u32::MAX, user, u32::MAX) };
    assert_eq!(change(user), 0);
    let result = call();
    assert_eq!(change(0), 0);
    result
}

#[test]
fn a_mistyped_socket_makes_no_directories() {
    let place = Place::new();
    let socket = place.0.path().join("mistyped/fastpath/socket");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fastpathd"));
    command.env("FASTPATH_SOCKET", &socket);
    let refused = crate::common::finish(command).expect_code(1);
    assert!(refused.err.contains("its directory does not exist"), "{refused:#?}");
    assert!(!place.0.path().join("mistyped").exists());
}
