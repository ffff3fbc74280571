//! Programs that do what few programs do, and check their own work and their clocks all the time (helpers/judge.h).
//!
//! Each cycle attaches and detaches, or is refused with a message; either way the program continues its work, and at
//! the end nothing of fastpath's is left in it.

use std::process::Command;
use std::time::Duration;

use super::cycles_or;
use crate::attach::namespaces::unshared;
use crate::attach::{Memory, attach, detach, hazard, status};
use crate::common::command::MARK;
use crate::common::processes::{TIMEOUT, holds_within};
use crate::common::{Outcome, Pid, Running, fastpath, finish, helper_program, tool, wait_until};

/// Some seconds of `make test` for each test here.
const CYCLES: u32 = 10;

fn cycles() -> u32 {
    cycles_or(CYCLES)
}

/// Lets the program run as it is, for another duration each time.
fn let_it_work(cycle: u32) {
    std::thread::sleep(Duration::from_millis(u64::from(cycle * 7 % 20)));
}

/// Ends a program that checks its work, and has printed `said` by then; fails the test if the program found an error.
#[track_caller]
fn has_done_its_work(running: Running, pid: Pid, said: &str) {
    pid.signal(libc::SIGTERM);
    running
        .finish()
        .expect_success()
        .expect_output(&format!("{said}\ndone"));
}

#[track_caller]
fn is_refused(outcome: Outcome, code: i32, reason: &str) {
    let outcome = outcome.expect_code(code);
    let is_one_line = outcome.err.lines().count() == 1 && outcome.out.is_empty();
    assert!(is_one_line && outcome.err.contains(reason), "{outcome:#?}");
}

#[track_caller]
fn is_attached_and_detached(pid: Pid, cycle: u32) {
    attach(pid).expect_success().expect_output("");
    assert!(pid.is_served(), "cycle {cycle}");
    let_it_work(cycle);
    detach(pid).expect_success().expect_output("");
    assert!(!pid.is_served(), "cycle {cycle}");
}

/// Attaches and detaches a program, cycle after cycle.
#[track_caller]
fn goes_on_with_its_work(program: &str, arguments: &[&str]) {
    let running = needed!(hazard(program, arguments, "ready"));
    let pid = running.pid();
    let before = Memory::open(pid);
    for cycle in 0..cycles() {
        is_attached_and_detached(pid, cycle);
    }
    assert_eq!(Memory::open(pid), before);
    has_done_its_work(running, pid, "ready");
}

#[test]
fn requests_of_io_uring_complete_as_they_must() {
    goes_on_with_its_work("uring", &[]);
}

#[test]
fn calls_and_handlers_on_shadow_stacks_return_to_where_they_must() {
    goes_on_with_its_work("shadow-stack", &[]);
}

#[test]
fn every_function_of_the_kernels_vdso_answers_as_its_system_call_does() {
    goes_on_with_its_work("vdso-functions", &[]);
}

#[test]
fn data_in_secret_memory_stays_as_it_is() {
    goes_on_with_its_work("secret-memory", &["data"]);
}

#[test]
fn sealed_memory_is_not_needed() {
    goes_on_with_its_work("sealed", &["own"]);
}

#[test]
fn a_program_all_of_whose_memory_is_sealed_is_attached() {
    goes_on_with_its_work("sealed", &["all"]);
}

/// Ends the publisher of a process's page, and waits until no read is answered from the page.
fn end_publisher(pid: Pid) {
    wait_until("its publisher", || {
        status::read(pid).is_some_and(|status| status["publisher"].is_i64())
    });
    let publisher = status::read(pid).expect("a process")["publisher"].as_i64();
    Pid(publisher.expect("a number") as i32).signal(libc::SIGKILL);
    wait_until("its end", || {
        status::read(pid).is_some_and(|status| status["publisher_is_alive"] == false && status["is_fresh"] == false)
    });
}

/// The signal comes in the copy of the image's code in the vDSO, and without a publisher mostly in the region.
#[test]
fn a_signal_frame_of_another_thread_is_not_taken_for_its_own() {
    for cycle in 0..cycles().div_ceil(8) {
        let running = needed!(hazard("adjoining-stacks", &[], "ready"));
        let pid = running.pid();
        attach(pid).expect_success().expect_output("");
        if cycle % 2 == 1 {
            end_publisher(pid);
        }
        pid.signal(libc::SIGUSR1);
        wait_until("a signal in a read", || running.out_so_far().contains("interrupted"));
        // Waits until that thread has returned from it, and says nothing of a region that stays.
        detach(pid).expect_success().expect_output("");
        assert!(!pid.is_served());
        has_done_its_work(running, pid, "ready\ninterrupted");
    }
}

/// Without a publisher, fastpath's code calls the kernel's vDSO, which returns to it. A process that is stopped there
/// stays there when it is detached.
#[test]
fn a_thread_in_the_kernels_function_returns_to_code_that_is_there() {
    for cycle in 0..cycles().div_ceil(16) {
        let running = needed!(hazard("busy", &[], "ready"));
        let pid = running.pid();
        attach(pid).expect_success().expect_output("");
        end_publisher(pid);
        let_it_work(cycle);
        pid.signal(libc::SIGSTOP);
        wait_until("its stop", || pid.status("State").starts_with('T'));
        detach(pid).expect_success();
        let was_in_the_way = pid.is_served();
        pid.signal(libc::SIGCONT);
        // Once the thread has returned, the mappings that stayed can be removed.
        if was_in_the_way {
            detach(pid).expect_success();
        }
        assert!(!pid.is_served(), "cycle {cycle}");
        has_done_its_work(running, pid, "ready");
    }
}

const NOT_READABLE: &str = "is in memory that cannot be read (memfd_secret(2))";

#[test]
fn a_process_with_a_thread_on_a_secret_stack_is_refused() {
    let running = needed!(hazard("secret-memory", &["stack"], "ready"));
    let pid = running.pid();
    let before = Memory::open(pid);
    for cycle in 0..cycles() {
        is_refused(attach(pid), 14, NOT_READABLE);
        assert_eq!(Memory::open(pid), before, "cycle {cycle}");
        is_refused(detach(pid), 15, "not attached");
        let_it_work(cycle);
    }
    has_done_its_work(running, pid, "ready");
}

#[test]
fn code_to_which_a_thread_on_a_secret_stack_may_return_stays_mapped() {
    let running = needed!(hazard("secret-memory", &["stack", "late"], "waiting"));
    let pid = running.pid();
    attach(pid).expect_success().expect_output("");
    pid.signal(libc::SIGUSR1);
    wait_until("its secret stack", || running.out_so_far().contains("ready"));
    for cycle in 0..5 {
        let_it_work(cycle);
        let outcome = detach(pid).expect_success();
        assert!(
            outcome.err.contains("36 KiB stay mapped") && outcome.err.contains(NOT_READABLE),
            "{outcome:#?}"
        );
        is_refused(attach(pid), 14, NOT_READABLE);
    }
    has_done_its_work(running, pid, "waiting\nready");
}

/// Returns a thread other than the first one; /proc shows the memory of all threads under its number.
fn another_thread(pid: Pid) -> Pid {
    let threads = std::fs::read_dir(format!("/proc/{}/task", pid.0)).expect("its threads");
    let tids = threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    tids.map(Pid).find(|tid| *tid != pid).expect("a second thread")
}

const WITHOUT_LEADER: &str = "its first thread has ended, though others run";

#[test]
fn a_process_whose_first_thread_has_ended_is_refused() {
    let path = needed!(helper_program("without-leader", "cc", &[]));
    let running = crate::common::start(Command::new(path));
    let pid = running.pid();
    wait_until("the first thread's end", || running.out_so_far().contains("ready"));
    let thread = another_thread(pid);
    let before = Memory::open(thread);
    for cycle in 0..cycles().div_ceil(10) {
        is_refused(attach(pid), 70, WITHOUT_LEADER);
        is_refused(detach(pid), 70, WITHOUT_LEADER);
        assert_eq!(Memory::open(thread), before, "cycle {cycle}");
    }
    let doctor = finish(fastpath(&["doctor", &pid.0.to_string()]));
    assert!(doctor.out.contains(WITHOUT_LEADER), "{doctor:#?}");
    has_done_its_work(running, pid, "ready");
}

#[test]
fn a_process_whose_first_thread_ends_once_it_is_attached_stays_attached() {
    let running = needed!(hazard("without-leader", &["late"], "waiting"));
    let pid = running.pid();
    let mut command = fastpath(&["attach", "--clocks", "all", &pid.0.to_string()]);
    command.env(MARK, running.mark());
    finish(command).expect_success();
    let mark = running.mark().to_owned();
    pid.signal(libc::SIGUSR1);
    wait_until("the first thread's end", || running.out_so_far().contains("ready"));
    let thread = another_thread(pid);
    let before = Memory::open(thread);
    for cycle in 0..3 {
        is_refused(detach(pid), 70, WITHOUT_LEADER);
        is_refused(attach(pid), 70, WITHOUT_LEADER);
        let_it_work(cycle);
    }
    assert_eq!(Memory::open(thread), before);
    assert!(thread.is_served());
    let status = finish(fastpath(&["status"])).expect_success().out;
    assert!(status.contains(&pid.0.to_string()), "{status}");
    has_done_its_work(running, pid, "waiting\nready");
    wait_until("the helper goes", || Pid::helpers(&mark).is_empty());
}

#[test]
fn waits_of_fifteen_hundred_threads_are_not_disturbed() {
    let running = needed!(hazard("many-threads", &["1500"], "ready"));
    let pid = running.pid();
    let before = Memory::open(pid);
    let mut attached = 0;
    for cycle in 0..cycles().div_ceil(2) {
        let outcome = attach(pid);
        if outcome.status.code() == Some(14) {
            // A busy machine does not stop this many threads in time.
            is_refused(outcome, 14, "try again");
            assert_eq!(Memory::open(pid), before, "cycle {cycle}");
            continue;
        }
        outcome.expect_success().expect_output("");
        attached += 1;
        assert!(pid.is_served(), "cycle {cycle}");
        let_it_work(cycle);
        let is_detached = || {
            let code = detach(pid).status.code();
            assert!(matches!(code, Some(0 | 14)), "{code:?}");
            code == Some(0)
        };
        assert!(holds_within(TIMEOUT, is_detached), "{}", pid.describe());
    }
    assert_eq!(Memory::open(pid), before);
    has_done_its_work(running, pid, "ready");
    assert!(attached > 0, "it was never attached");
}

/// Returns a descendant that runs this program.
fn below(pid: Pid, program: &str) -> Option<Pid> {
    let is_it = |pid: &Pid| pid.program().starts_with(program);
    pid.children()
        .into_iter()
        .find_map(|child| Some(child).filter(is_it).or_else(|| below(child, program)))
}

#[test]
fn a_process_in_a_nested_pid_namespace_is_attached_from_both_namespaces_above() {
    const NAMESPACE: [&str; 4] = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let (path, nsenter) = needed!(helper_program("many-threads", "cc", &[]), tool("nsenter"));
    let nested = [&["unshare"], &NAMESPACE[..], &[&path, "20"]].concat();
    let running = needed!(unshared(&NAMESPACE, &nested));
    wait_until("its threads", || running.out_so_far().contains("ready"));
    let pid = below(running.pid(), "many-threads").expect("the program");
    // The namespaces' own PIDs, from the outermost to the innermost.
    let numbers: Vec<String> = pid.status("NSpid").split_whitespace().map(str::to_owned).collect();
    assert!(
        numbers.len() >= 3 && numbers.last().is_some_and(|own| own == "1"),
        "{numbers:?}"
    );
    let between = Pid(pid.status("PPid").parse().expect("its parent"));
    let from_between = |verb: &[&str]| {
        let mut command = Command::new(nsenter);
        // The inner unshare has a mount namespace for the inner /proc; the outer one has that of the namespace between
        // them.
        let namespaces = [("pid", between), ("mnt", running.pid())];
        let enter = namespaces.map(|(kind, pid)| format!("/proc/{}/ns/{kind}", pid.0));
        command
            .arg(format!("--pid={}", enter[0]))
            .arg(format!("--mount={}", enter[1]))
            // In a chroot, the namespace's root is another one.
            .arg(format!("--root=/proc/{}/root", running.pid().0))
            .arg(env!("CARGO_BIN_EXE_fastpath"))
            .args(verb)
            .arg(&numbers[numbers.len() - 2]);
        finish(command)
    };
    let before = Memory::open(pid);
    for cycle in 0..cycles() {
        let is_from_between = |bit: u32| cycle >> bit & 1 == 1;
        match is_from_between(0) {
            true => from_between(&["attach", "-q", "--clocks", "all"]),
            false => attach(pid),
        }
        .expect_success()
        .expect_output("");
        assert!(pid.is_served(), "cycle {cycle}");
        let_it_work(cycle);
        match is_from_between(1) {
            true => from_between(&["detach", "-q"]),
            false => detach(pid),
        }
        .expect_success()
        .expect_output("");
        assert!(!pid.is_served(), "cycle {cycle}");
    }
    assert_eq!(Memory::open(pid), before);
    has_done_its_work(running, pid, "ready");
}

#[test]
fn processes_that_trace_each_other_are_refused_until_they_let_go() {
    let running = needed!(hazard("tracers", &[], "ready"));
    let said = running.out_so_far();
    let second = said.lines().next().expect("a line").parse().expect("a number");
    let both = [running.pid(), Pid(second)];
    let trace_or_let_go = || both.map(|pid| pid.signal(libc::SIGUSR1));
    let are_traced = || both.map(|pid| pid.status("TracerPid") != "0");
    let before = both.map(Memory::open);
    for cycle in 0..cycles() {
        trace_or_let_go();
        // The trace may begin at any moment.
        let codes = both.map(|pid| attach(pid).status.code());
        assert!(codes.iter().all(|code| matches!(code, Some(0 | 6))), "{codes:?}");
        wait_until("tracers", || are_traced() == [true, true]);
        let as_they_are = both.map(Memory::open);
        for pid in both {
            is_refused(attach(pid), 6, "(tracers");
            is_refused(detach(pid), 6, "(tracers");
        }
        assert_eq!(both.map(Memory::open), as_they_are);
        let_it_work(cycle);
        trace_or_let_go();
        wait_until("freedom", || are_traced() == [false, false]);
        for (pid, code) in both.into_iter().zip(codes) {
            if code == Some(0) {
                detach(pid).expect_success().expect_output("");
            }
            is_attached_and_detached(pid, cycle);
        }
    }
    assert_eq!(both.map(Memory::open), before);
    let pid = running.pid();
    pid.signal(libc::SIGTERM);
    let said = format!("{}\ndone\ndone", said.trim_end());
    running.finish().expect_success().expect_output(&said);
}

#[test]
fn a_program_that_executes_itself_with_many_threads_survives() {
    let running = needed!(hazard("exec-storm", &["150", &cycles().to_string()], "ready"));
    let pid = running.pid();
    while !running.out_so_far().contains("done") {
        let outcome = attach(pid);
        assert!(matches!(outcome.status.code(), Some(0 | 8 | 14 | 70)), "{outcome:#?}");
        detach(pid);
        wait_until("the process to exist", || pid.exists());
    }
    let before = Memory::open(pid);
    is_attached_and_detached(pid, 0);
    assert_eq!(Memory::open(pid), before);
    assert_eq!(running.out_so_far(), "ready\ndone\n");
}

#[test]
fn pages_that_the_program_itself_provides_are_not_read() {
    let running = needed!(hazard("missing-pages", &[], "ready"));
    let pid = running.pid();
    let before = Memory::open(pid);
    for cycle in 0..cycles() {
        is_attached_and_detached(pid, cycle);
    }
    assert_eq!(Memory::open(pid), before);
    assert_eq!(running.out_so_far(), "ready\n");
}
