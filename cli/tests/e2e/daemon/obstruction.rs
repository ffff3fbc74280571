//! Objects that a client sends, keeps or locks delay neither the daemon nor its other clients.

use std::process::Command;
use std::time::{Duration, Instant};

use fastpath_page::ClockSet;
use fastpath_protocol::Client;

use super::Place;
use super::attacks::{Traps, fuse_trap, trap};
use super::attacks::{client, wait_until_says, wanted};
use super::policy::rule;
use crate::common::{NOBODY, Running, start, wait_until};

/// Each of these obstructions lasts much longer; an answer takes milliseconds.
const SOON: Duration = Duration::from_secs(20);

/// Checks that another client gets a page as usual.
#[track_caller]
fn others_are_served(place: &Place) {
    let begun = Instant::now();
    loop {
        let answered = Client::connect_to(&place.socket()).and_then(|client| client.page(ClockSet::NONE, None, None));
        let waited = begun.elapsed();
        match answered {
            Ok(_) => return assert!(waited < SOON, "another client waited for {waited:?}"),
            Err(failure) => assert!(waited < SOON, "another client was not served for {waited:?}: {failure}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_daemon_survives_a_client_that_breaks_its_lease() {
    let place = Place::among_others();
    let daemon = place.daemon();
    // The daemon takes a lease of each mailbox a few times a minute. If its client opens the mailbox for writing at
    // that moment, the kernel sends this signal, which by default ends a process.
    daemon.pid().signal(libc::SIGIO);
    others_are_served(&place);
    assert!(daemon.pid().exists());
}

#[test]
fn a_daemon_starts_though_a_user_locks_its_directory() {
    needed!(wanted());
    let place = Place::among_others();
    let hostile = client(
        &place,
        NOBODY,
        r#"
directory = os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY)
fcntl.flock(directory, fcntl.LOCK_EX)
say("locked")
time.sleep(1000)
"#,
    );
    wait_until_says(&hostile, "locked");
    let _daemon = place.daemon();
    others_are_served(&place);
    // Other users cannot open the lock itself either.
    let lock = format!("{}.lock", place.socket().display());
    let about = std::fs::metadata(&lock).expect(&lock);
    let mode = std::os::unix::fs::MetadataExt::mode(&about) & 0o777;
    assert_eq!(mode, 0o600);
}

#[test]
fn a_lock_that_is_a_link_or_another_users_file_is_refused_with_advice() {
    needed!(wanted());
    let place = Place::new();
    let lock = format!("{}.lock", place.socket().display());
    let target = place.0.path().join("target");
    std::os::unix::fs::symlink(&target, &lock).expect("a link");
    let refused = crate::common::finish(place.command(&[])).expect_code(1);
    assert!(refused.err.contains(&lock) && !target.exists(), "{refused:#?}");
    std::fs::remove_file(&lock).expect("remove");
    std::fs::write(&lock, "").expect("a file");
    std::os::unix::fs::chown(&lock, Some(NOBODY), None).expect("chown");
    let refused = crate::common::finish(place.command(&[])).expect_code(1);
    assert!(refused.err.contains("remove it"), "{refused:#?}");
}

#[test]
fn a_descriptor_sent_as_a_pidfd_is_not_read() {
    needed!(wanted());
    let place = Place::among_others();
    let daemon = place.daemon();
    let before = daemon.pid().cpu_time();
    let hostile = client(
        &place,
        NOBODY,
        r#"
epoll = epoll_of(min(many_descriptors(), 200_000) - 100)
s = connect()
say("sends")
refused = set()
for _ in range(400):
    try:
        send(s, PAGE, [epoll], WITH_PROCESS)
        refused.add(receive(s)[0])
    except (OSError, LookupError, struct.error):
        # The daemon disconnects a client that sends descriptors faster than they are closed.
        s = connect()
say("refused", refused)
os._exit(0)
"#,
    );
    wait_until_says(&hostile, "sends");
    others_are_served(&place);
    let said = hostile.finish().expect_success().out;
    // The requests are invalid. If the client sends another before its connections are closed, its share of connections
    // may be used up.
    assert!(
        said.contains("refused {1}") || said.contains("refused {1, 7}"),
        "{said}"
    );
    let spent = daemon.pid().cpu_time() - before;
    assert!(spent < Duration::from_secs(3), "the daemon worked for {spent:?}");
}

#[test]
fn a_client_that_keeps_answers_takes_no_more_than_its_share() {
    needed!(wanted());
    let place = Place::among_others();
    let _daemon = start(place.command(&["--pages-per-user", "3"]));
    wait_until("fastpathd", || Client::connect_to(&place.socket()).is_ok());
    let hostile = client(
        &place,
        NOBODY,
        r#"
s = connect()
send(s, STATUS)
error, text, fds = receive(s)
say("status", error, b"pages_in_all" in text, fds)
plans = []
for _ in range(3):
    send(s, PREPARE)
    error, _, (page, mailbox, plan) = receive(s)
    os.close(page)
    os.close(mailbox)
    plans.append(plan)
# The daemon checks repeatedly whether pages are in use.
end = time.monotonic() + 12
while time.monotonic() < end:
    send(s, PREPARE)
    error, _, fds = receive(s)
    if error != 7:
        break
    time.sleep(0.5)
say("limit", error)
for plan in plans:
    os.close(plan)
while error == 7:
    time.sleep(0.5)
    send(s, PREPARE)
    error, _, fds = receive(s)
say("served", error)
"#,
    );
    let said = hostile.finish().expect_success().out;
    assert_eq!(said, "status 0 True []\nlimit 7\nserved 0\n");
    others_are_served(&place);
}

#[test]
fn a_status_of_many_pages_is_complete() {
    needed!(wanted());
    let place = Place::among_others();
    let _daemon = place.daemon();
    let kept: Vec<_> = (0..150)
        .map(|_| place.ask(|client| client.page(ClockSet::NONE, None, None)))
        .collect();
    let status = place.status();
    let mut inodes: Vec<_> = status.pages.iter().map(|page| page.inode).collect();
    inodes.sort_unstable();
    inodes.dedup();
    assert_eq!((inodes.len(), status.pages_in_all), (kept.len(), kept.len()));
}

#[test]
fn connections_dropped_for_lack_of_descriptors_are_released() {
    needed!(wanted());
    let place = Place::among_others();
    let daemon = place.daemon();
    // As many connections as one user may have, all of which send requests faster than permitted.
    let hungry = || {
        client(
            &place,
            NOBODY,
            r#"
kept = [connect() for _ in range(60)]
for s in kept:
    s.setblocking(False)
say("connected")
while True:
    for s in kept:
        try:
            for _ in range(10):
                send(s, STATUS)
        except OSError:
            pass
        try:
            s.recv(1 << 18)
        except OSError:
            pass
"#,
        )
    };
    for _ in 0..3 {
        let hostile = hungry();
        wait_until_says(&hostile, "connected");
        std::thread::sleep(Duration::from_secs(2));
        // Far fewer than the daemon has open, with which poll(2) refuses to wait for all of them.
        limit_descriptors(&daemon, 8);
        // The daemon has no descriptor left for this connection.
        let connected = Client::connect_to(&place.socket());
        std::thread::sleep(Duration::from_secs(1));
        limit_descriptors(&daemon, 20_000);
        drop(connected);
        drop(hostile);
        wait_until("it to be served", || {
            Client::connect_to(&place.socket()).is_ok_and(|client| client.status().is_ok())
        });
    }
    let later = client(&place, NOBODY, "s = connect()\nsend(s, STATUS)\nsay(receive(s)[0])\n");
    assert_eq!(later.finish().expect_success().out, "0\n");
}

fn limit_descriptors(daemon: &Running, most: u64) {
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: 20_000,
    };
    // SAFETY: a valid rlimit, and no room for the old one.
    let done = unsafe { libc::prlimit(daemon.pid().0, libc::RLIMIT_NOFILE, &limit, std::ptr::null_mut()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

fn endless_loop(shell: &str) -> Running {
    let mut command = Command::new(shell);
    command.args(["-c", "while :; do :; done"]);
    start(command)
}

#[test]
fn files_that_never_answer_delay_no_rule_and_their_processes_continue_to_run() {
    needed!(wanted());
    let place = Place::among_others();
    let Traps { fuse, .. } = needed!(Traps::install(&place));
    let traps = (30_000..30_004).map(|user| fuse_trap(&fuse, user, "memfd:fastpath-region", None));
    let traps = needed!(traps.collect::<Option<Vec<_>>>());
    let shell = crate::common::install("/bin/dash", place.0.path().join("shell"), 0o755);
    let rules = [&fuse, &shell].map(|path| rule(path, "attach")).concat();
    let (_daemon, _) = super::policy::daemon(&place, &rules);
    let other = endless_loop(&shell);
    wait_until("the other to be attached", || super::page_of(other.pid()).is_some());
    for trap in &traps {
        wait_until("it to be attached, and to continue", || {
            trap.pid().is_served() && trap.pid().status("TracerPid") == "0" && trap.pid().state() == 'S'
        });
    }
}

#[test]
fn status_ends_whatever_processes_do_and_escapes_their_names() {
    needed!(wanted());
    let place = Place::new();
    let Traps { fuse, .. } = needed!(Traps::install(&place));
    let of_userfaultfd = trap("python3", "fastpath-page");
    let of_fuse = fuse_trap(&fuse, NOBODY, "memfd:fastpath-page", None);
    let (of_userfaultfd, of_fuse) = needed!(of_userfaultfd, of_fuse);
    let begun = Instant::now();
    let status = crate::common::finish(place.fastpath(&["status"])).expect_success();
    assert!(begun.elapsed() < Duration::from_secs(50), "{:?}", begun.elapsed());
    assert!(
        !status.out.contains('\u{1b}') && !status.err.contains('\u{1b}'),
        "{status:#?}"
    );
    assert!(
        status.err.contains("does not answer") || status.out.contains("[31mred"),
        "{status:#?}"
    );
    assert!(of_userfaultfd.pid().exists() && of_fuse.pid().exists());
}

#[test]
fn leases_on_what_looks_like_a_page_do_not_delay_a_daemon() {
    needed!(wanted());
    let place = Place::alone();
    let script = format!(
        "MAILBOX = {}{}",
        fastpath_inject::region::MAILBOX,
        r#"
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_ulong
libc.mmap.argtypes = [ctypes.c_ulong, ctypes.c_ulong, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
signal.signal(signal.SIGIO, signal.SIG_IGN)
at = libc.mmap(0, 1 << 20, 0, 0x22, -1, 0)
for name, offset in [("fastpath-page", 0), ("fastpath-mailbox", MAILBOX)]:
    made = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    os.ftruncate(made, 4096)
    opened = os.open(f"/proc/self/fd/{made}", os.O_RDWR)
    os.close(made)
    assert libc.mmap(at + offset, 4096, 1, 1 | 0x10, opened, 0) == at + offset
    fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_WRLCK)
say("ready")
time.sleep(1000)
"#
    );
    let of_fuse = {
        let Traps { fuse, .. } = needed!(Traps::install(&place));
        let mailbox = (fastpath_inject::region::MAILBOX, "memfd:fastpath-mailbox");
        fuse_trap(&fuse, NOBODY, "memfd:fastpath-page", Some(mailbox))
    };
    // Examining them one after the other, in any order, took up to 45 s each before.
    let hostile: Vec<_> = (0..3).map(|_| client(&place, NOBODY, &script)).collect();
    for one in &hostile {
        wait_until_says(one, "ready");
    }
    let first = place.daemon();
    let running = start(place.served(&["sleep", "1000"]));
    super::wait_until_served(&running);
    let page = super::page_of(running.pid()).expect("a page");
    first.pid().signal(libc::SIGKILL);
    drop(first);
    let _next = place.daemon();
    wait_until("the page to be found again", || {
        let pages = place.status().pages;
        pages.iter().any(|one| one.inode == page && one.was_found_again)
    });
    if let Some(of_fuse) = of_fuse {
        // The status of another test may touch its memory.
        assert!(!of_fuse.out_so_far().contains("opened"), "{}", of_fuse.out_so_far());
    }
}

#[test]
fn an_unreceived_descriptor_whose_close_waits_delays_no_other_client() {
    needed!(wanted());
    let place = Place::among_others();
    let daemon = place.daemon();
    // The daemon is stopped meanwhile, so that the client's own close is not the last. The first packet ends the
    // connection. The last of those behind it has the socket.
    daemon.pid().signal(libc::SIGSTOP);
    let hostile = client(
        &place,
        NOBODY,
        r#"
listener, kept = listening(), []
for _ in range(2):
    lingers = lingering(listener, kept)
    s = connect()
    for packet in b"", b"x", b"":
        s.send(packet)
    send(s, PAGE, [lingers.fileno()], WITH_PROCESS)
    kept.append(s)
    os.close(lingers.detach())
say("sent")
time.sleep(1000)
"#,
    );
    wait_until_says(&hostile, "sent");
    daemon.pid().signal(libc::SIGCONT);
    for _ in 0..20 {
        others_are_served(&place);
    }
}

#[test]
fn a_user_gets_no_more_pages_than_its_limit() {
    needed!(wanted());
    let place = Place::among_others();
    let _daemon = start(place.command(&["--pages-per-user", "3"]));
    wait_until("fastpathd", || Client::connect_to(&place.socket()).is_ok());
    let errors = |uid| {
        let script = "s, kept = connect(), []\nfor _ in range(5):\n    send(s, PAGE)\n    kept.append(receive(s))\nsay(*[each[0] for each in kept])\n";
        client(&place, uid, script).finish().expect_success().out
    };
    assert_eq!(errors(NOBODY), "0 0 0 7 7\n");
    assert_eq!(errors(0), "0 0 0 0 0\n");
}
