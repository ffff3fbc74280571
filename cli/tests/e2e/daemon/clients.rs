//! Which client gets a page, for which process, and for how long.

use std::os::unix::process::CommandExt;
use std::process::Command;

use fastpath_protocol::Client;

use super::{Place, page_of, wait_until_served};
use crate::common::{NOBODY, Pid, finish, needs_root, skip, start, tool, torture, wait_until};

#[test]
fn run_takes_its_page_from_the_daemon_and_its_helper_publishes_nothing() {
    let torture = needed!(torture::endless("2"));
    let place = Place::among_others();
    let daemon = place.daemon();
    let running = start(place.served(&torture));
    wait_until_served(&running);
    let status = place.status();
    assert_eq!(status.pid, daemon.pid().0 as u32);
    let pages: Vec<_> = status.pages.iter().map(|page| (page.pid, Some(page.inode))).collect();
    assert_eq!(pages, [(running.pid().0, page_of(running.pid()))]);
    let helper = Pid::helper(running.mark());
    assert!(
        !helper.read("maps").contains("memfd:fastpath-page"),
        "the helper maps a page"
    );
    torture::end(running);
    wait_until("the page to go away", || place.status().pages_in_all == 0);
}

#[test]
fn a_tree_keeps_its_page_until_its_last_process_has_ended() {
    let place = Place::among_others();
    let _daemon = place.daemon();
    let script = "(read line; grep -c memfd:fastpath-page /proc/self/maps; exec sleep 2) <\"$0\" & exit 0";
    let fifo = place.0.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("a fifo");
    let running = start(place.served(&["sh", "-c", script, fifo.to_str().expect("UTF-8")]));
    // Three intervals of the check whether pages are in use.
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(place.status().pages_in_all, 1);
    std::fs::write(&fifo, "go\n").expect("write");
    let outcome = running.finish().expect_success();
    assert!(outcome.err.is_empty(), "{outcome:#?}");
    wait_until("the page to go away", || place.status().pages_in_all == 0);
}

#[test]
fn attach_takes_a_page_for_the_process_from_the_daemon() {
    let (torture, ()) = needed!(torture::endless("3"), needs_root());
    let place = Place::among_others();
    let _daemon = place.daemon();
    let running = torture::start_endless(&torture);
    wait_until("the loop", || running.pid().cpu_time().as_millis() > 100);
    let pid = running.pid().0.to_string();
    let attach = finish(place.fastpath(&["attach", "--clocks", "all", &pid]));
    if attach.status.code() == Some(12) {
        return skip("this kernel's vDSO cannot be written");
    }
    attach.expect_success();
    let pages: Vec<_> = place
        .status()
        .pages
        .iter()
        .map(|page| (page.pid, Some(page.inode)))
        .collect();
    assert_eq!(pages, [(running.pid().0, page_of(running.pid()))]);
    torture::end(running);
    wait_until("the page to go away", || place.status().pages_in_all == 0);
}

#[test]
fn a_program_in_another_time_namespace_reads_that_namespaces_clocks() {
    let (torture, _, ()) = needed!(torture::endless("2"), tool("unshare"), needs_root());
    let options = ["--time", "--monotonic", "86400", "--boottime", "-5", "--fork"];
    let mut trial = Command::new("unshare");
    trial.args(options).arg("true");
    if !finish(trial).status.success() {
        return skip("no time namespaces here");
    }
    let place = Place::among_others();
    let _daemon = place.daemon();
    let mut command = Command::new("unshare");
    command
        .args(options)
        .arg(env!("CARGO_BIN_EXE_fastpath"))
        .args(crate::common::SERVED)
        .args(&torture)
        .env("FASTPATH_SOCKET", place.socket());
    let running = start(command);
    wait_until("a page with offsets", || {
        place.status().pages.iter().any(|page| page.is_offset)
    });
    // Mixed with system calls: a clock that is off by an hour would be detected.
    torture::go_on(&running);
    torture::end(running);
}

/// Sends a request to the daemon as another user, and prints the answer.
const ASK: &str = r#"
import array, os, socket, struct, sys
path, operation, pid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(path)
fds = [os.pidfd_open(pid)] if pid else []
request = struct.pack("<QIIIIIIQQQQ", int.from_bytes(b"fastpath", "little"), 1, operation, 1 if fds else 0, 0, 0, 0, 0, 0, 0, 0)
s.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
answer, control, _, _ = s.recvmsg(100000, 64)
print(struct.unpack_from("<I", answer, 16)[0], answer[240:496].split(b"\0")[0].decode())
print(answer[496:].decode())
"#;

#[test]
fn a_user_reaches_only_its_own_processes_and_root_reaches_all() {
    needed!(needs_root(), tool("python3"));
    let place = Place::among_others();
    let _daemon = place.daemon();
    let roots = start(place.served(&["sleep", "1000"]));
    wait_until_served(&roots);
    let ask = |uid: u32, operation: &str, pid: &str| {
        let mut command = Command::new("python3");
        let socket = place.socket();
        command.args(["-I", "-c", ASK, socket.to_str().expect("UTF-8"), operation, pid]);
        command.uid(uid).gid(uid);
        finish(command).expect_success().out
    };
    let pid = roots.pid().0.to_string();
    let answer = ask(65534, "1", &pid);
    assert!(
        answer.starts_with("3 ") && answer.contains("another user's"),
        "{answer}"
    );
    let answer = ask(65534, "3", "0");
    assert!(answer.contains("\"pages\":[],\"pages_in_all\":1"), "{answer}");
    assert_eq!(ask(65534, "1", "0").trim(), "0");
    // The daemon attaches processes for root alone: not even a user's own.
    let mut own = Command::new("sleep");
    own.arg("1000").uid(65534).gid(65534);
    let own = start(own);
    for pid in [&pid, &own.pid().0.to_string()] {
        let answer = ask(65534, "5", pid);
        assert!(answer.starts_with("3 ") && answer.contains("only root"), "{answer}");
    }
    let answer = ask(0, "5", "0");
    assert!(
        answer.starts_with("1 ") && answer.contains("names no process"),
        "{answer}"
    );
}

/// A daemon of another user, which accepts all and answers nothing.
const ANOTHERS: &str = r#"
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
listener.listen(50)
say("listens")
kept = []
while True:
    kept.append(listener.accept())
"#;

#[test]
fn a_socket_of_another_user_is_not_used_and_the_message_names_the_user() {
    needed!(super::attacks::wanted());
    let place = Place::new();
    std::os::unix::fs::chown(place.0.path(), Some(NOBODY), None).expect("chown");
    let another = super::attacks::client(&place, NOBODY, ANOTHERS);
    super::attacks::wait_until_says(&another, "listens");
    let why = format!("{} is a socket of user {NOBODY}", place.socket().display());
    let failure = Client::connect_to(&place.socket()).map(drop).expect_err("a refusal");
    assert!(failure.to_string().contains(&why), "{failure}");
    for arguments in [&["run", "--clocks", "all", "--", "true"][..], &["status"]] {
        let outcome = finish(place.fastpath(arguments)).expect_success();
        assert!(outcome.err.contains(&why), "{outcome:#?}");
    }
    let daemon = finish(place.command(&[])).expect_code(1);
    assert!(daemon.err.contains(&why), "{daemon:#?}");
}

/// A daemon that hands out a page that it can shorten, and does: a reader of it ends by SIGBUS.
const FORGES: &str = r#"
os.chmod(sys.argv[1], 0o666)
listener.listen(50)
say("listens")
while True:
    client, _ = listener.accept()
    if not client.recv(1 << 16):
        continue
    say("asked")
    page = os.memfd_create("fastpath-page", os.MFD_ALLOW_SEALING)
    os.ftruncate(page, 4096)
    answer = struct.pack("<QIIIIIIQQ", MAGIC, 1, PAGE, 0, 2, 0x893, 0, 0, 0) + bytes(448)
    fds = array.array("i", [page, sealed(2)])
    client.sendmsg([answer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    os.ftruncate(page, 0)
"#;
const BINDS: &str = "listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\nlistener.bind(sys.argv[1])\n";

#[test]
fn no_program_maps_the_page_of_a_daemon_that_listened_first() {
    use crate::common::{Running, program};

    needed!(super::attacks::wanted());
    let clock = needed!(program("clock-glibc"));
    // Returns what `run` says, and whether the other daemon was asked. The program reads its own page, or the kernel's clock.
    let run = |place: &Place, other: &Running, prefix: &[&str]| {
        super::attacks::wait_until_says(other, "listens");
        let own = env!("CARGO_BIN_EXE_fastpath");
        let words = [
            prefix,
            &[own, "run", "--clocks", "all", "--", &clock, "1000000", "MONOTONIC"],
        ]
        .concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("FASTPATH_SOCKET", place.socket());
        let outcome = finish(command).expect_success();
        (outcome.err, other.out_so_far().contains("asked"))
    };
    let place_of = |uid: u32| {
        let place = Place::new();
        std::os::unix::fs::chown(place.0.path(), Some(uid), None).expect("chown");
        place
    };

    // One's own user's: it is trusted, but its page is not mapped.
    let place = Place::new();
    let own = super::attacks::client(&place, 0, &format!("{BINDS}{FORGES}"));
    let (err, was_asked) = run(&place, &own, &[]);
    assert!(was_asked, "{err}");

    // Another user's, and the same seen from a user namespace, in which that user has no number.
    let place = place_of(NOBODY);
    let another = super::attacks::client(&place, NOBODY, &format!("{BINDS}{FORGES}"));
    let (err, was_asked) = run(&place, &another, &[]);
    assert!(
        !was_asked && err.contains(&format!("is a socket of user {NOBODY}")),
        "{err}"
    );
    let inside = ["unshare", "--user", "--map-root-user"];
    let mut trial = Command::new(inside[0]);
    trial.args(&inside[1..]).arg("true");
    if finish(trial).status.success() {
        let (err, was_asked) = run(&place, &another, &inside);
        assert!(!was_asked && err.contains("is a socket of user"), "{err}");
    }

    // One by root of a user namespace.
    let place = place_of(100_000);
    let becomes_root = "enter_user_namespace()\nos.setresuid(0, 0, 0)\n";
    let root = needed!(super::attacks::client_with_users(
        &place,
        &format!("{becomes_root}{BINDS}{FORGES}")
    ));
    let (err, was_asked) = run(&place, &root, &[]);
    assert!(!was_asked && err.contains("is a socket of user 100000"), "{err}");
}
