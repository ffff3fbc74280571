//! Hostile clients do not affect other users.

use std::os::unix::process::CommandExt;
use std::process::Command;

use fastpath_page::ClockSet;
use fastpath_protocol::Client;

use super::attacks::hostile;
use super::{Place, among_others, wait_until_served};
use crate::common::{finish, needs_root, start, tool, torture, wait_until};

#[test]
fn hostile_clients_do_not_affect_other_users() {
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
        place.ask(|client| client.page(ClockSet::NONE, None, None));
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
fn a_user_gets_no_more_pages_than_its_limit() {
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
fn five_thousand_connections_of_many_users_leave_room_for_later_clients() {
    let (Some(()), Some("python3")) = (needs_root(), tool("python3")) else {
        return;
    };
    let _host = among_others();
    let place = Place::new();
    let daemon = place.daemon();
    // A hundred users with fifty connections each that send nothing: the daemon accepts a thousand, for some seconds.
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
    // Refused at first, with the reason; later the connections that sent nothing are closed.
    crate::common::wait_until("room", || {
        let asked = Client::connect_to(&place.socket()).and_then(|client| client.page(ClockSet::NONE, None, None));
        asked.is_ok()
    });
    drop(crowd);
    assert!(daemon.pid().exists());
    crate::common::wait_until("their connections to be closed", || {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid().0)).expect("its descriptors");
        descriptors.count() < 100
    });
}
