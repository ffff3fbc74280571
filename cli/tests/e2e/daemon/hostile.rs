//! Clients that mean no good cost nobody else anything.

use std::os::unix::process::CommandExt;
use std::process::Command;

use fastpath_protocol::Client;

use super::{Place, among_others, wait_until_served};
use crate::common::{Running, finish, needs_root, start, tool, torture, wait_until};

/// For longer than the test: garbage, half requests, descriptors that nobody asked for, connections that say nothing, requests whose
/// answers are never read, odd ones, and as many good requests as there is time for.
const HOSTILE: &str = r#"
import array, os, random, socket, struct, sys, time
path, kind = sys.argv[1], sys.argv[2]
request = struct.pack("<QIIIIIIQQQQ", int.from_bytes(b"fastpath", "little"), 1, 1, 0, 0, 0, 0, 0, 0, 0, 0)
prepare = struct.pack("<QIIIIIIQQQQ", int.from_bytes(b"fastpath", "little"), 1, 2, 0, 0, 62, 0, 0x7f0000000000, 0x7effffff0000, 0, 0)
kept = []
end = time.monotonic() + 60
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
own = os.pidfd_open(os.getpid())
while time.monotonic() < end:
    try:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.settimeout(1)
        s.connect(path)
        if kind == "garbage":
            for _ in range(20):
                s.send(random.randbytes(random.choice([0, 1, 8, 63, 64, 65, 4000])) or b"x")
        elif kind == "half":
            s.send(request[:random.randrange(1, 64)])
            s.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
        elif kind == "silent":
            kept.append(s)
            kept = kept[-500:]
        elif kind == "deaf":
            kept.append(s)
            kept = kept[-500:]
            while True:
                s.send(request)
        elif kind == "odd":
            # Well-formed in what is looked at first, and anything in the rest.
            for _ in range(20):
                word = lambda: random.choice([0, 1, 2, 3, 0xffffffff, random.getrandbits(32)])
                place = lambda: random.choice([0, 4096, 0x7ffff7fc1000, 2**56 - 4096, 2**64 - 4096, random.getrandbits(64)])
                odd = struct.pack("<QIIIIIIQQQQ", int.from_bytes(b"fastpath", "little"), 1, random.randrange(6), random.randrange(5),
                                  word(), random.choice([62, word()]), random.choice([0, 0, word()]), place(), place(), 0, 0)
                given = random.sample(files + [own], random.randrange(4))
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", given))] if given else []
                s.sendmsg([odd], rights)
                s.recvmsg(496, 64)
        elif kind == "greedy":
            while True:
                s.send(prepare)
                s.recvmsg(496, 64)
    except OSError:
        pass
"#;

fn hostile(place: &Place, kind: &str) -> Running {
    let mut command = Command::new("python3");
    let socket = place.socket();
    command.args(["-I", "-c", HOSTILE, socket.to_str().expect("UTF-8"), kind]);
    command.uid(65534).gid(65534);
    start(command)
}

#[test]
fn clients_that_mean_no_good_cost_others_nothing() {
    let (Some(torture), Some(()), Some("python3")) = (torture::endless("1"), needs_root(), tool("python3")) else {
        return;
    };
    let _host = among_others();
    let place = Place::new();
    let daemon = place.daemon();
    let running = start(place.served(&torture));
    wait_until_served(&running);
    let page = |place: &Place| {
        let status = place.status();
        let pid = running.pid().0;
        status.pages.into_iter().find(|page| page.pid == pid).expect("its page")
    };
    let before = page(&place).refreshes;
    let all = ["garbage", "half", "silent", "deaf", "odd", "greedy"].map(|kind| hostile(&place, kind));
    for _ in 0..100 {
        place.ask(|client| client.page(0, None, None));
    }
    wait_until("more refreshes", || page(&place).refreshes > before + 10);
    drop(all);
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid().0))
        .expect("its descriptors")
        .count();
    assert!(descriptors < 6_000, "{descriptors} descriptors are open");
    let memory = daemon.pid().status("VmRSS");
    let kib: u64 = memory.trim_end_matches("kB").trim().parse().expect("VmRSS");
    assert!(kib < 200_000, "the daemon takes {memory}");
    torture::end(running);
    assert!(daemon.pid().exists());
}

#[test]
fn one_user_may_have_so_many_pages_and_no_more() {
    let (Some(()), Some("python3")) = (needs_root(), tool("python3")) else {
        return;
    };
    let _host = among_others();
    let place = Place::new();
    let _daemon = start(place.command(&["--pages-per-user", "3"]));
    wait_until("fastpathd", || Client::connect_to(&place.socket()).is_ok());
    let many = r#"
import socket, struct, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
request = struct.pack("<QIIIIIIQQQQ", int.from_bytes(b"fastpath", "little"), 1, 1, 0, 0, 0, 0, 0, 0, 0, 0)
kept = []
for _ in range(5):
    s.send(request)
    answer, control, _, _ = s.recvmsg(496, 64)
    kept.append(control)
    print(struct.unpack_from("<I", answer, 16)[0], end=" ")
"#;
    let ask = |uid: u32| {
        let mut command = Command::new("python3");
        let socket = place.socket();
        command.args(["-I", "-c", many, socket.to_str().expect("UTF-8")]);
        command.uid(uid).gid(uid);
        finish(command).expect_success().out
    };
    assert_eq!(ask(65534), "0 0 0 7 7 ");
    assert_eq!(ask(0), "0 0 0 0 0 ");
}

#[test]
fn five_thousand_connections_of_many_users_leave_room_for_who_comes_later() {
    let (Some(()), Some("python3")) = (needs_root(), tool("python3")) else {
        return;
    };
    let _host = among_others();
    let place = Place::new();
    let daemon = place.daemon();
    // A hundred users with fifty connections each, that say nothing: he lets a thousand in, for some seconds.
    let many = r#"
import os, resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (6000, 6000))
kept = []
for user in range(100):
    os.setresuid(20000 + user, 20000 + user, 0)
    for _ in range(50):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.connect(sys.argv[1])
        kept.append(s)
    os.setresuid(0, 0, 0)
print("connected", flush=True)
time.sleep(60)
"#;
    let mut command = Command::new("python3");
    let socket = place.socket();
    command.args(["-I", "-c", many, socket.to_str().expect("UTF-8")]);
    let crowd = start(command);
    crate::common::wait_until("the crowd", || crowd.out_so_far().contains("connected"));
    // Refused at first, and told why; then those who said nothing are gone.
    crate::common::wait_until("room", || {
        let asked = Client::connect_to(&place.socket()).and_then(|client| client.page(0, None, None));
        asked.is_ok()
    });
    drop(crowd);
    assert!(daemon.pid().exists());
    crate::common::wait_until("their connections to be closed", || {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid().0)).expect("its descriptors");
        descriptors.count() < 100
    });
}
