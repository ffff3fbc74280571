//! What a client sends, keeps or locks holds up neither the daemon nor its other clients.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use fastpath_protocol::Client;

use super::{Place, among_others};
use crate::common::{Running, needs_root, start, tool, wait_until};

/// A user without any privilege.
const NOBODY: u32 = 65534;
/// Each of these obstructions lasts much longer, and an answer takes milliseconds.
const SOON: Duration = Duration::from_secs(20);

/// What a hostile client's program begins with.
const CLIENT: &str = r#"
import array, fcntl, os, resource, select, signal, socket, struct, sys, time
MAGIC = int.from_bytes(b"fastpath", "little")
PAGE, PREPARE, STATUS, WITHDRAW = 1, 2, 3, 4
WITH_PROCESS, WITH_MAILBOX = 1, 2
def connect():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(100)
    s.connect(sys.argv[1])
    return s
def send(s, operation, fds=[], flags=0):
    packet = struct.pack("<QIIIIIIQQQQ", MAGIC, 1, operation, flags, 0, 62, 0, 0x7f0000000000, 0x7effffff0000, 0, 0)
    s.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
def receive(s):
    """The error, the text and the descriptors of an answer."""
    answer, control, _, _ = s.recvmsg(1 << 18, 64)
    fds = array.array("i")
    for _, _, data in control:
        fds.frombytes(data[:len(data) // 4 * 4])
    return struct.unpack_from("<I", answer, 16)[0], answer[496:], list(fds)
def sealed(seals):
    """A memfd of a page, opened so that the kernel counts who has it open."""
    made = os.memfd_create("mailbox", os.MFD_ALLOW_SEALING)
    os.ftruncate(made, 4096)
    fcntl.fcntl(made, 1033, seals)  # F_ADD_SEALS
    opened = os.open(f"/proc/self/fd/{made}", os.O_RDWR)
    os.close(made)
    return opened
def say(*what):
    print(*what, flush=True)
"#;

/// Starts a program that begins with [`CLIENT`].
fn client(place: &Place, uid: u32, script: &str) -> Running {
    let mut command = Command::new("python3");
    command.args(["-I", "-c", &format!("{CLIENT}{script}")]);
    command.arg(place.socket()).uid(uid).gid(uid);
    start(command)
}

#[track_caller]
fn wait_until_says(client: &Running, word: &str) {
    wait_until(word, || client.out_so_far().contains(word));
}

/// Another client gets a page as if nothing were.
#[track_caller]
fn others_are_served(place: &Place) {
    let begun = Instant::now();
    loop {
        let answered = Client::connect_to(&place.socket()).and_then(|client| client.page(0, None, None));
        let waited = begun.elapsed();
        match answered {
            Ok(_) => return assert!(waited < SOON, "another client waited for {waited:?}"),
            Err(failure) => assert!(waited < SOON, "another client was not served for {waited:?}: {failure}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn wanted() -> Option<()> {
    needs_root()?;
    tool("python3").map(drop)
}

#[test]
fn a_mailbox_with_a_lease_on_it_holds_up_nobody() {
    let Some(()) = wanted() else { return };
    let _host = among_others();
    let place = Place::new();
    let daemon = place.daemon();
    let hostile = client(
        &place,
        NOBODY,
        r#"
signal.signal(signal.SIGIO, signal.SIG_IGN)
memory = sealed(2 | 4)  # F_SEAL_SHRINK, F_SEAL_GROW
fcntl.fcntl(memory, fcntl.F_SETLEASE, fcntl.F_WRLCK)
s = connect()
for _ in range(3):
    send(s, PAGE, [memory], WITH_MAILBOX)
say("sent")
say("refused", [receive(s)[0] for _ in range(3)])
"#,
    );
    wait_until_says(&hostile, "sent");
    others_are_served(&place);
    let said = hostile.finish().expect_success().out;
    assert!(said.contains("refused [1, 1, 1]"), "{said}");
    assert!(daemon.pid().exists());
}

#[test]
fn a_lease_of_the_daemons_that_a_client_breaks_does_not_end_it() {
    let _host = among_others();
    let place = Place::new();
    let daemon = place.daemon();
    // The daemon asks for a lease of each mailbox a few times a minute. If its client opens it for writing at that moment, the kernel sends
    // this signal, whose default is the end.
    daemon.pid().signal(libc::SIGIO);
    others_are_served(&place);
    assert!(daemon.pid().exists());
}

#[test]
fn a_user_who_locks_the_sockets_directory_does_not_keep_the_daemon_from_starting() {
    let Some(()) = wanted() else { return };
    let _host = among_others();
    let place = Place::new();
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
    // Nor can the lock itself be opened by others.
    let lock = format!("{}.lock", place.socket().display());
    let about = std::fs::metadata(&lock).expect(&lock);
    let mode = std::os::unix::fs::MetadataExt::mode(&about) & 0o777;
    assert_eq!(mode, 0o600);
}

#[test]
fn a_lock_that_is_a_link_or_another_users_file_is_refused_with_what_to_do() {
    let Some(()) = wanted() else { return };
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
fn what_is_sent_as_a_pidfd_is_not_read_whatever_it_is() {
    let Some(()) = wanted() else { return };
    let _host = among_others();
    let place = Place::new();
    let daemon = place.daemon();
    let before = daemon.pid().cpu_time();
    let hostile = client(
        &place,
        NOBODY,
        r#"
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
watched, _ = os.pipe()
epoll = select.epoll()
for _ in range(min(hard, 200_000) - 100):
    epoll.register(os.dup(watched), select.EPOLLIN)
s = connect()
say("sends")
refused = set()
for _ in range(400):
    try:
        send(s, PAGE, [epoll.fileno()], WITH_PROCESS)
        refused.add(receive(s)[0])
    except (OSError, LookupError, struct.error):
        # Who sends descriptors faster than they are closed is let go.
        s = connect()
say("refused", refused)
os._exit(0)
"#,
    );
    wait_until_says(&hostile, "sends");
    others_are_served(&place);
    let said = hostile.finish().expect_success().out;
    assert!(said.contains("refused {1}"), "{said}");
    let spent = daemon.pid().cpu_time() - before;
    assert!(spent < Duration::from_secs(3), "the daemon worked for {spent:?}");
}

#[test]
fn a_client_that_keeps_all_answers_makes_the_daemon_hold_no_more_than_its_share() {
    let Some(()) = wanted() else { return };
    let _host = among_others();
    let place = Place::new();
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
# The daemon looks again and again whether pages are in use.
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
fn a_status_of_many_pages_comes_whole() {
    let Some(()) = wanted() else { return };
    let _host = among_others();
    let place = Place::new();
    let _daemon = place.daemon();
    let kept: Vec<_> = (0..150)
        .map(|_| place.ask(|client| client.page(0, None, None)))
        .collect();
    let status = place.status();
    let mut inodes: Vec<_> = status.pages.iter().map(|page| page.inode).collect();
    inodes.sort_unstable();
    inodes.dedup();
    assert_eq!((inodes.len(), status.pages_in_all), (kept.len(), kept.len()));
}

#[test]
fn connections_that_are_dropped_for_want_of_descriptors_are_given_back() {
    let Some(()) = wanted() else { return };
    let _host = among_others();
    let place = Place::new();
    let daemon = place.daemon();
    // As many connections as one user may have, all of which ask faster than they may.
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
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid().0)).expect("its descriptors");
        let highest = descriptors.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let highest: u64 = highest.max().expect("descriptors");
        std::thread::sleep(Duration::from_secs(2));
        limit_descriptors(&daemon, highest / 2);
        // It finds no descriptor for this one.
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

#[test]
fn a_user_with_subordinate_users_has_one_share_like_everybody() {
    let Some(()) = wanted() else { return };
    let _host = among_others();
    let place = Place::new();
    let daemon = place.daemon();
    // A hundred users of its own, each with as many connections as a user may have.
    let hostile = client(
        &place,
        NOBODY,
        r#"
import ctypes
libc = ctypes.CDLL(None)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
if libc.unshare(0x10000000) != 0:  # CLONE_NEWUSER
    say("no namespace")
    os._exit(0)
say("unshared")
while not open("/proc/self/uid_map").read():
    time.sleep(0.01)
kept = []
while True:
    for user in range(1, 100):
        os.setresuid(user, user, 0)
        for _ in range(50):
            try:
                s = connect()
                send(s, PAGE)
                s.setblocking(False)
                kept.append(s)
            except OSError:
                pass
        os.setresuid(0, 0, 0)
    say("connected")
    kept = kept[-10000:]
"#,
    );
    wait_until("its namespace", || !hostile.out_so_far().is_empty());
    if hostile.out_so_far().contains("no namespace") {
        return crate::common::skip("no user namespaces for users here");
    }
    let map = format!("/proc/{}/uid_map", hostile.pid().0);
    std::fs::write(&map, "0 100000 65536\n").expect(&map);
    wait_until_says(&hostile, "connected");
    for _ in 0..50 {
        others_are_served(&place);
        // Each connection is one, each page two.
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid().0)).expect("its descriptors");
        let descriptors = descriptors.count();
        assert!(descriptors < 64 + 2 * 1024 + 200, "{descriptors} descriptors are open");
    }
    let status = place.status();
    let theirs = status.pages.iter().filter(|page| page.uid >= 100_000).count();
    assert!(theirs <= 1024, "{theirs} pages");
}

/// A process whose memory is served by itself: who reads it waits for ever. What it maps has the name of fastpath's own.
#[cfg(target_arch = "x86_64")]
fn trap(program: &str, name: &str) -> Option<Running> {
    let script = format!(
        r#"{CLIENT}
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_ulong
libc.mmap.argtypes = [ctypes.c_ulong, ctypes.c_ulong, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
SIZE = 1 << 20
memory = os.memfd_create("{name}")
os.ftruncate(memory, SIZE)
at = libc.mmap(0, SIZE, 1 | 4, 1, memory, 0)
handler = libc.syscall(323, os.O_CLOEXEC | os.O_NONBLOCK)  # userfaultfd
if handler < 0:
    say("none")
    os._exit(0)
fcntl.ioctl(handler, 0xc018aa3f, bytearray(struct.pack("<QQQ", 0xaa, 0, 0)))  # UFFDIO_API
fcntl.ioctl(handler, 0xc020aa00, bytearray(struct.pack("<QQQQ", at, SIZE, 1, 0)))  # UFFDIO_REGISTER, missing
libc.prctl(15, b"\x1b[31mred", 0, 0, 0)  # PR_SET_NAME
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE
say("ready")
time.sleep(1000)
"#
    );
    let mut command = Command::new(program);
    command.args(["-I", "-c", &script]);
    let running = start(command);
    wait_until("the trap", || !running.out_so_far().is_empty());
    if running.out_so_far().contains("none") {
        crate::common::skip("no userfaultfd here");
        return None;
    }
    Some(running)
}

#[cfg(target_arch = "x86_64")]
#[test]
fn processes_whose_memory_does_not_answer_keep_no_others_from_being_attached() {
    let Some(()) = wanted() else { return };
    let _host = among_others();
    let place = Place::new();
    let python = std::fs::canonicalize("/usr/bin/python3").expect("python3");
    let copy = crate::common::install(&python, place.0.path().join("trapped"), 0o755);
    let mut traps = Vec::new();
    for _ in 0..5 {
        let Some(trap) = trap(&copy, "fastpath-region") else {
            return;
        };
        traps.push(trap);
    }
    let shell = crate::common::install("/bin/dash", place.0.path().join("shell"), 0o755);
    let rules = [&copy, &shell].map(|path| super::policy::rule(path, "attach")).concat();
    let (_daemon, _) = super::policy::daemon(&place, &rules);
    let mut command = Command::new(&shell);
    command.args(["-c", "while :; do :; done"]);
    let other = start(command);
    wait_until("the other to be attached", || super::page_of(other.pid()).is_some());
    others_are_served(&place);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn status_ends_whatever_processes_do_and_obeys_no_name_of_theirs() {
    let Some(()) = wanted() else { return };
    let Some(_trap) = trap("python3", "fastpath-page") else {
        return;
    };
    let place = Place::new();
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
}

#[test]
fn processes_with_leases_on_what_looks_like_a_page_do_not_delay_the_next_daemon() {
    let Some(()) = wanted() else { return };
    let _host = super::alone();
    let place = Place::new();
    let script = format!(
        "MAILBOX = {}{}",
        fastpath_inject::region::MAILBOX,
        r#"
import ctypes
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
    // One after the other has them looked at in whatever order: before, each took up to 45 s.
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
}

#[test]
fn a_descriptor_whose_close_waits_holds_up_nobody() {
    let Some(()) = wanted() else { return };
    let _host = among_others();
    let place = Place::new();
    let _daemon = place.daemon();
    let hostile = client(
        &place,
        NOBODY,
        r#"
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
s, kept = connect(), []
for _ in range(2):
    lingers = socket.create_connection(listener.getsockname())
    kept.append(listener.accept())
    lingers.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1000))
    lingers.setblocking(False)
    try:
        while True:
            lingers.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    # What the daemon closes is the last.
    send(s, PAGE, [lingers.fileno()], WITH_PROCESS)
    os.close(lingers.detach())
say("sent")
time.sleep(1000)
"#,
    );
    wait_until_says(&hostile, "sent");
    for _ in 0..20 {
        others_are_served(&place);
    }
}
