//! `attach --rescue`: system calls for time in the program's own code.
#![cfg(target_arch = "x86_64")]

use std::process::Command;
use std::time::Duration;

use super::{attach, bytes, detach};
use crate::common::{
    Outcome, Pid, Running, fastpath, finish, helper_program, needs_root, start, tool, unprivileged, wait_until,
};

fn rescue(pid: Pid) -> Outcome {
    finish(fastpath(&["attach", "--rescue", "-v", &pid.0.to_string()]))
}

/// A program that makes such calls all the time and detects any difference from a system call. It has made some of each
/// form.
fn raw_calls(flags: &[&str]) -> Option<Running> {
    let running = start(Command::new(helper_program("raw-calls", "cc", flags)?));
    wait_until("its first round", || {
        running.out_so_far().contains("ready") || !running.pid().exists()
    });
    Some(running)
}

/// Ends the program, and asserts that it detected nothing.
fn end(running: Running) {
    // SAFETY: kill takes integers.
    unsafe { libc::kill(running.pid().0, libc::SIGTERM) };
    let outcome = running.finish().expect_success();
    assert!(outcome.out.contains(" 0 differences"), "{outcome:#?}");
}

/// All code of a process that comes from files, and its vDSO.
fn code(pid: Pid) -> Vec<(String, Vec<u8>)> {
    let maps = pid.read("maps");
    let is_code = |line: &&str| line.contains(" r-xp ") && (line.contains('/') || line.contains("[vdso]"));
    let lines = maps.lines().filter(is_code);
    lines
        .map(|line| {
            let (range, _) = line.split_once(' ').expect("a line of maps");
            let (from, to) = range.split_once('-').expect("a range");
            let number = |text| u64::from_str_radix(text, 16).expect("an address");
            (line.to_owned(), bytes(pid, number(from), number(to)))
        })
        .collect()
}

/// Most clock calls of a rescued program in the span that [`clock_calls`] looks at. It makes some hundred if it is not
/// rescued; if it is, only while an anchor has ended because the publisher gets no CPU.
const MOST_CALLS: usize = 20;

/// Number of clock calls that a thread of the process makes in a while.
fn clock_calls(strace: &str, pid: Pid) -> usize {
    clock_calls_named(strace, pid, &["clock_gettime", "gettimeofday", "time"])
}

fn clock_calls_named(strace: &str, pid: Pid, names: &[&str]) -> usize {
    let traced = Command::new("timeout")
        .args([
            "-s",
            "INT",
            "0.3",
            strace,
            "-qq",
            "-e",
            &format!("trace={}", names.join(",")),
            "-p",
        ])
        .arg(pid.0.to_string())
        .output()
        .expect("strace");
    let said = String::from_utf8_lossy(&traced.stderr).into_owned();
    assert!(!said.contains("attach:"), "{said}");
    said.lines().filter(|line| line.contains("(")).count()
}

#[test]
fn a_rescued_program_sees_no_difference_from_its_system_calls() {
    for flags in [&[][..], &["-static", "-no-pie"]] {
        let running = needed!(raw_calls(flags));
        let pid = running.pid();
        let before = code(pid);
        for _ in 0..3 {
            let outcome = rescue(pid).expect_success();
            // libc has some that it falls back to, and that cannot be redirected. Only the kernel's vDSO answers `time`.
            let err = &outcome.err;
            let mut left_alone = err.lines().filter(|line| line.contains("raw-calls at 0x"));
            assert!(
                err.contains("are rescued") && left_alone.all(|line| line.contains("a program may unmap")),
                "{outcome:#?}"
            );
            assert!(code(pid) != before);
            std::thread::sleep(Duration::from_millis(300));
            detach(pid).expect_success();
            assert!(code(pid) == before, "a byte is not restored");
        }
        // It ends while it is rescued.
        rescue(pid).expect_success();
        std::thread::sleep(Duration::from_millis(300));
        end(running);
    }
}

#[test]
fn a_rescued_program_makes_no_system_calls_for_time() {
    let strace = needed!(tool("strace"));
    // Inline, and by libc's function for any call; each turn ends with a call that is none for time.
    let program = needed!(helper_program("raw-clock", "cc", &["-static", "-no-pie"]));
    let running = start(Command::new(program));
    wait_until("its loop", || running.out_so_far().contains("ready"));
    assert!(clock_calls(strace, running.pid()) > 20, "it makes none at all");
    attach(running.pid()).expect_success();
    assert!(
        clock_calls(strace, running.pid()) > 20,
        "they are rescued only on demand"
    );
    detach(running.pid()).expect_success();
    let others = || clock_calls_named(strace, running.pid(), &["clock_getres", "getcpu"]);
    assert!(others() > 20, "it makes none at all");
    rescue(running.pid()).expect_success();
    wait_until("reads by the page", || clock_calls(strace, running.pid()) <= MOST_CALLS);
    wait_until("resolutions by the page", || others() <= MOST_CALLS);
}

/// A program that is started by this command line after `fastpath`, once it is in its loop.
fn started(arguments: &[&str]) -> Running {
    let running = start(fastpath(arguments));
    wait_until("its loop", || running.out_so_far().contains("ready"));
    running
}

/// The same, once the sites of all files of this process of it are redirected. The hook waits for a moment only: if
/// fastpath gets no CPU in it, the libraries are left alone.
fn started_and_rescued(arguments: &[&str], process: impl Fn(&Running) -> Pid) -> Running {
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        let running = started(arguments);
        if rescued_sites(process(&running)) >= 2 {
            return running;
        }
    }
    panic!("{arguments:?}: not rescued in {TRIES} tries");
}

fn rescued_sites(pid: Pid) -> u64 {
    let status = finish(fastpath(&["status", "--json"])).expect_success();
    let status: serde_json::Value = serde_json::from_str(&status.out).expect("a document");
    let processes = status["processes"].as_array().expect("processes");
    let listed = processes.iter().find(|process| process["pid"] == pid.0);
    // One that is not served is not listed.
    listed.map_or(0, |process| process["rescued_sites"].as_u64().expect("a number"))
}

#[test]
fn a_program_that_is_started_with_rescue_sees_no_difference_either() {
    for flags in [&[][..], &["-static", "-no-pie"]] {
        let program = needed!(helper_program("raw-calls", "cc", flags));
        let outcome = finish(fastpath(&["run", "--require", "--rescue", &program, "-1"])).expect_success();
        assert!(outcome.out.contains(" 0 differences"), "{outcome:#?}");
    }
}

#[test]
fn the_calls_of_a_program_and_its_descendants_are_rescued_from_the_start() {
    let strace = needed!(tool("strace"));
    for flags in [&[][..], &["-static", "-no-pie"]] {
        let program = needed!(helper_program("raw-clock", "cc", flags));
        let plain = started(&["run", "--require", "--clocks", "all", &program]);
        assert!(clock_calls(strace, plain.pid()) > 20, "they are rescued only on demand");
        let itself = started_and_rescued(&["run", "--require", "--rescue", &program], Running::pid);
        wait_until("reads by the page", || clock_calls(strace, itself.pid()) <= MOST_CALLS);
        if flags.is_empty() {
            // A static glibc that looks for the vDSO makes such calls only as a fallback, as far as an audit can see.
            let doctor = finish(fastpath(&["doctor", "--json", &itself.pid().0.to_string()]));
            assert!(doctor.out.contains("\"process-is-rescued\""), "{doctor:#?}");
        }
        let shell = format!("{program}; true");
        let child = |shell: &Running| shell.pid().children()[0];
        let shell = started_and_rescued(&["run", "--require", "--rescue", "sh", "-c", &shell], child);
        let child = child(&shell);
        wait_until("the child's reads by the page", || {
            clock_calls(strace, child) <= MOST_CALLS
        });
    }
}

/// `raw-clock` in this mode, in its loop. `None`: its filters cannot be read here.
fn confined(mode: &str) -> Option<Running> {
    needs_root()?;
    let mut command = Command::new(helper_program("raw-clock", "cc", &["-static", "-no-pie"])?);
    command.arg(mode);
    let running = start(command);
    wait_until("its loop", || running.out_so_far().contains("ready"));
    Some(running)
}

#[test]
fn a_program_whose_seccomp_filter_allows_the_calls_is_rescued() {
    let (strace, running) = needed!(tool("strace"), confined("filtered"));
    let outcome = rescue(running.pid()).expect_success();
    assert!(outcome.err.contains("are rescued"), "{outcome:#?}");
    wait_until("reads by the page", || clock_calls(strace, running.pid()) <= MOST_CALLS);
    detach(running.pid()).expect_success();
    assert!(clock_calls(strace, running.pid()) > 20, "it is rescued after detach");
}

#[test]
fn a_call_that_a_filter_of_any_thread_answers_is_not_rescued() {
    let strace = needed!(tool("strace"));
    for mode in ["refused", "thread", "threads"] {
        let running = needed!(confined(mode));
        let pid = running.pid();
        let outcome = rescue(pid).expect_success();
        let reason = "may answer clock_gettime by SECCOMP_RET_ERRNO (errno 1)";
        assert!(outcome.err.contains(reason), "{outcome:#?}");
        // What no page answers of gettimeofday is asked by clock_gettime.
        let count = |name: &str| clock_calls_named(strace, pid, &[name]);
        for call in ["clock_gettime", "gettimeofday"] {
            wait_until(call, || count(call) > 20);
        }
        std::thread::sleep(Duration::from_millis(300));
        detach(pid).expect_success();
        std::thread::sleep(Duration::from_millis(100));
        // It ends if a call returns something else.
        assert!(pid.exists(), "{mode}: {:#?}", running.finish());
    }
}

#[test]
fn a_program_is_not_rescued_against_its_seccomp_filter() {
    for (mode, reason) in [
        ("strict", "SECCOMP_MODE_STRICT"),
        ("address", "tests the address of a call"),
    ] {
        let running = needed!(confined(mode));
        let outcome = rescue(running.pid()).expect_success();
        assert!(outcome.err.contains("are not rescued: "), "{outcome:#?}");
        assert!(outcome.err.contains(reason), "{outcome:#?}");
        assert!(running.pid().exists());
    }
}

#[test]
fn a_filter_that_the_user_may_not_read_is_refused() {
    needed!(needs_root());
    let program = needed!(helper_program("raw-clock", "cc", &["-static", "-no-pie"]));
    let mut command = unprivileged();
    command.args([&program, "filtered"]);
    let running = start(command);
    wait_until("its loop", || running.out_so_far().contains("ready"));
    let mut other = unprivileged();
    let pid = running.pid().0.to_string();
    other.args([env!("CARGO_BIN_EXE_fastpath"), "attach", "--rescue", &pid]);
    finish(other).expect_code(11);
    assert!(running.pid().exists());
}

#[test]
fn a_rescued_program_that_confines_itself_makes_its_system_calls_again() {
    for flags in [&[][..], &["-static", "-no-pie"]] {
        let program = needed!(helper_program("raw-clock", "cc", flags));
        for mode in ["later", "counter"] {
            finish(fastpath(&["run", "--require", "--rescue", &program, mode])).expect_success();
        }
    }
}

#[test]
fn a_program_without_such_calls_is_attached_with_a_word() {
    let python = needed!(tool("sleep"));
    let mut command = Command::new(python);
    command.arg("1000");
    let running = start(command);
    wait_until("its sleep", || running.pid().read("wchan").contains("nanosleep"));
    let outcome = rescue(running.pid()).expect_success();
    // libc has calls of its own, to which it falls back.
    assert!(outcome.err.contains("of its own system calls for time"), "{outcome:#?}");
    detach(running.pid()).expect_success();
}

#[test]
fn the_dry_run_lists_the_sites_and_the_reasons() {
    let program = needed!(helper_program("raw-calls", "cc", &[]));
    let outcome = finish(fastpath(&["audit", "--rescue", "--json", &program])).expect_success();
    let document: serde_json::Value = serde_json::from_str(&outcome.out).expect("a document");
    let sites = document["files"][0]["sites"].as_array().expect("sites");
    let count = |kind: &str| sites.iter().filter(|site| site["window"] == kind).count();
    assert_eq!((count("before"), count("behind")), (6, 0), "{document:#}");
    let outcome = finish(fastpath(&["audit", "--rescue", &program])).expect_success();
    assert!(
        outcome.out.contains("would redirect 6, and leave 1 alone"),
        "{outcome:#?}"
    );
    finish(fastpath(&["audit", "--rescue", "/no/such/file"])).expect_code(66);
    finish(fastpath(&["audit", "--rescue", "--sarif", &program])).expect_code(2);
}

/// Regression: reading the place of a change failed, or found other bytes, and the process stayed attached.
#[test]
fn a_program_that_closed_a_rescued_library_is_detached() {
    let library = |flags: &[&str]| helper_program("closes-library", "cc", &[&["-shared", "-fPIC"], flags].concat());
    let (first, other) = needed!(library(&["-DLIBRARY"]), library(&["-DLIBRARY", "-DOTHER"]));
    for libraries in [&[&*first][..], &[&*first, &*other]] {
        let running = needed!(super::hazard("closes-library", libraries, "ready"));
        let pid = running.pid();
        let code_of = |library: &str| code(pid).into_iter().find(|(line, _)| line.ends_with(library));
        let before = code_of(&first);
        rescue(pid).expect_success();
        assert_ne!(code_of(&first), before);
        pid.signal(libc::SIGUSR1);
        wait_until("the end of the library", || running.out_so_far().contains("closed"));
        let in_its_place = code_of(&other);
        detach(pid).expect_success().expect_output("");
        assert!(!pid.is_served());
        assert_eq!(code_of(&other), in_its_place);
    }
}
