//! Pages and requests of other versions.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;

use fastpath_page::PAGE_SIZE;
use fastpath_page::layout::{ABI, Header};
use fastpath_protocol::{Answer, Operation, Request, VERSION};

use super::attacks::{client, wait_until_says, wanted};
use super::{Place, page_of};
use crate::attach::{attach, detach, status};
use crate::common::{finish, needs_root, start, torture, wait_until};

/// As a page of a later version is to this one, and this version's page to an earlier one.
#[test]
fn a_page_of_another_layout_stays_as_it_is_until_its_process_is_attached_again() {
    let (torture, ()) = needed!(torture::endless("2"), needs_root());
    let place = Place::alone();
    let daemon = place.daemon();
    let running = torture::start_endless(&torture);
    let pid = running.pid().0.to_string();
    torture::go_on(&running);
    let attach_here = || {
        finish(place.fastpath(&["attach", "--quiet", "--clocks", "all", &pid])).expect_success();
    };
    attach_here();
    let inode = page_of(running.pid());
    daemon.pid().signal(libc::SIGKILL);
    daemon.finish();
    let maps = running.pid().read("maps");
    let mapping = maps.lines().find(|line| line.contains("memfd:fastpath-page"));
    let range = mapping.and_then(|line| line.split(' ').next()).expect("a page");
    let path = format!("/proc/{pid}/map_files/{range}");
    let page = File::options().read(true).write(true).open(path).expect("the page");
    let abi = offset_of!(Header, abi) as u64;
    page.write_all_at(&(ABI + 1).to_ne_bytes(), abi).expect("write");
    let state = || {
        let mut bytes = [0; PAGE_SIZE];
        page.read_exact_at(&mut bytes, 0).expect("read");
        (bytes, page.metadata().expect("stat").permissions())
    };
    let before = state();
    let next = place.daemon();
    let report = format!(
        "process {pid}'s page stays without a publisher: the page has layout version {}",
        ABI + 1
    );
    wait_until("the report", || next.err_so_far().contains(&report));
    torture::go_on(&running);
    assert_eq!(place.status().pages_in_all, 0);
    assert!(state() == before, "the page has changed");
    let shown = status::read(running.pid()).expect("it has a page");
    assert!(shown["publisher"].is_null() && shown["age_ns"].is_null(), "{shown}");
    finish(place.fastpath(&["detach", "--quiet", &pid])).expect_success();
    attach_here();
    assert_eq!(place.status().pages_in_all, 1);
    assert_ne!(page_of(running.pid()), inode);
    torture::end(running);
}

#[test]
fn a_process_that_another_version_attached_is_not_detached_and_stays_served() {
    let (torture, ()) = needed!(torture::endless("2"), needs_root());
    let running = torture::start_endless(&torture);
    torture::go_on(&running);
    attach(running.pid()).expect_success();
    let memory = format!("/proc/{}/mem", running.pid().0);
    let memory = File::options().read(true).write(true).open(memory).expect("its memory");
    let maps = running.pid().read("maps");
    let starts = maps
        .lines()
        .filter(|line| line.contains("memfd:fastpath-region"))
        .map(|line| u64::from_str_radix(line.split('-').next().expect("an address"), 16).expect("hexadecimal"));
    // The journal begins a page; its version follows its magic.
    let is_journal = |at: &u64| {
        let mut magic = [0; 8];
        memory.read_exact_at(&mut magic, *at).is_ok() && &magic == b"fastjrnl"
    };
    let journal = starts
        .flat_map(|start| (0..16).map(move |page| start + page * PAGE_SIZE as u64))
        .find(is_journal);
    let version_at = journal.expect("a journal") + 8;
    let mut version = [0; 4];
    memory.read_exact_at(&mut version, version_at).expect("read");
    let other = (u32::from_ne_bytes(version) + 1).to_ne_bytes();
    memory.write_all_at(&other, version_at).expect("write");
    for refused in [detach(running.pid()), attach(running.pid())] {
        assert!(!refused.status.success(), "{refused:#?}");
        assert!(refused.err.contains("attached by another version"), "{refused:#?}");
    }
    torture::go_on(&running);
    assert!(running.pid().is_served());
    memory.write_all_at(&version, version_at).expect("write");
    detach(running.pid()).expect_success();
    torture::end(running);
}

/// A daemon that refuses each request with the bytes REFUSAL.
const REFUSES: &str = r#"
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen(50)
say("listens")
while True:
    client, _ = listener.accept()
    if client.recv(1 << 16):
        say("refuses")
        client.send(bytes.fromhex(REFUSAL))
"#;

#[test]
fn where_the_daemon_has_another_protocol_run_and_attach_have_a_publisher_of_their_own() {
    needed!(wanted());
    let mut request = Request::new(Operation::Page);
    request.version = VERSION + 1;
    let refusal = Request::parse(&request.bytes()).expect_err("a refusal");
    let mut answer = Answer::refusing(Operation::Page as u32, &refusal);
    answer.version = VERSION + 1;
    let hex: String = answer.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let place = Place::new();
    let daemon = client(&place, 0, &format!("REFUSAL = '{hex}'\n{REFUSES}"));
    wait_until_says(&daemon, "listens");
    let script = "grep -c memfd:fastpath-page /proc/self/maps";
    let run = finish(place.served(&["sh", "-c", script])).expect_success();
    run.expect_output("1");
    let mut sleep = std::process::Command::new("sleep");
    sleep.arg("1000");
    let running = start(sleep);
    wait_until("its sleep", || running.pid().read("wchan").contains("nanosleep"));
    let pid = running.pid().0.to_string();
    finish(place.fastpath(&["attach", "--clocks", "all", &pid])).expect_success();
    assert!(page_of(running.pid()).is_some());
    assert!(daemon.out_so_far().matches("refuses").count() >= 2, "both have asked");
}
