//! States of a process in which an attach must not break it.

use std::time::Duration;

use super::{Memory, attach, detach, hazard, vdso};
use crate::common::{Pid, Running, fastpath, finish, needs_root, wait_until};

#[track_caller]
fn is_attached_and_detached_again_and_again(running: &Running, said: &str) {
    let pid = running.pid();
    let before = Memory::open(pid);
    for _ in 0..5 {
        attach(pid).expect_success().expect_output("");
        std::thread::sleep(Duration::from_millis(20));
        detach(pid).expect_success().expect_output("");
        std::thread::sleep(Duration::from_millis(20));
        assert!(pid.exists(), "it said {}", running.out_so_far());
    }
    assert_eq!(Memory::open(pid), before);
    assert_eq!(running.out_so_far(), said);
}

#[test]
fn an_injected_call_does_not_kill_a_thread_with_its_own_seccomp_filter() {
    let ((), running) = needed!(needs_root(), hazard("thread-filter", &[], "filtered"));
    is_attached_and_detached_again_and_again(&running, "filtered\n");
}

#[test]
fn a_kernel_worker_among_the_threads_is_left_alone() {
    let running = needed!(hazard("ring", &[], "ready"));
    is_attached_and_detached_again_and_again(&running, "ready\n");
}

#[test]
fn a_program_whose_threads_map_memory_all_the_time_is_attached_each_time() {
    let running = needed!(hazard("maps-memory", &[], "ready"));
    for _ in 0..10 {
        attach(running.pid()).expect_success().expect_output("");
        detach(running.pid()).expect_success().expect_output("");
    }
}

#[test]
fn a_program_that_maps_a_library_tens_of_thousands_of_times_is_attached_in_a_moment() {
    let running = needed!(hazard("many-mappings", &["30000"], "ready"));
    for how in [&["--clocks", "all"][..], &["--clocks", "all", "--rescue"]] {
        let pid = running.pid().0.to_string();
        // On a busy machine, one of some attempts is.
        wait_until("an attach in a moment", || {
            let begun = std::time::Instant::now();
            finish(fastpath(&[&["attach", "-q"][..], how, &[&pid]].concat())).expect_success();
            let took = begun.elapsed();
            detach(running.pid()).expect_success();
            took < Duration::from_secs(4)
        });
    }
}

#[test]
fn attach_waits_for_the_parent_of_a_vfork() {
    // Longer than the timeout for a thread that does not stop.
    let running = needed!(hazard("vfork", &["1300"], "child"));
    let pid = running.pid();
    attach(pid).expect_success().expect_output("");
    assert!(pid.is_served());
    detach(pid).expect_success().expect_output("");
    assert!(pid.exists() && !pid.is_served());
}

#[test]
fn code_that_its_file_system_does_not_return_is_not_read() {
    let running = needed!(hazard("fuse-mapped", &["65534", "library.so"], "ready"));
    is_attached_and_detached_again_and_again(&running, "ready\n");
}

#[test]
fn files_that_never_answer_keep_no_command_from_ending() {
    for name in ["libc.so.6", "memfd:fastpath-page", "memfd:fastpath-region"] {
        let running = needed!(hazard("fuse-mapped", &["65534", name], "ready"));
        let pid = running.pid().0.to_string();
        let commands: [&[&str]; 6] = [
            &["doctor", &pid],
            &["status"],
            &["export", "--textfile", "-"],
            &["trace", "-d", "1", "--stacks"],
            &["attach", "--clocks", "all", "--children", "--rescue", &pid],
            &["detach", &pid],
        ];
        for command in commands {
            let begun = std::time::Instant::now();
            let outcome = finish(fastpath(command));
            assert!(
                begun.elapsed() < Duration::from_secs(15),
                "{name}: {command:?}: {outcome:#?}"
            );
        }
    }
}

#[test]
fn threads_are_not_stopped_while_another_cannot_be() {
    let running = needed!(hazard("unstoppable", &["20"], "ready"));
    let pid = running.pid();
    let threads = std::fs::read_dir(format!("/proc/{}/task", pid.0)).expect("its threads");
    let waiter = threads
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .find(|tid| *tid != pid.0)
        .map(Pid)
        .expect("a second thread");
    // A thread that is stopped and continues begins its wait anew.
    let waits = || {
        waiter
            .status("voluntary_ctxt_switches")
            .parse::<u32>()
            .expect("a number")
    };
    let (before, code) = (waits(), vdso(pid));
    attach(pid).expect_code(14);
    let stopped = waits() - before;
    // A few come from the test's own reads. Two for each of some hundred tries would be the fault.
    assert!(stopped < 200, "{stopped}");
    assert!(vdso(pid) == code, "it was attached");
}

#[test]
fn a_thread_with_file_descriptors_of_its_own_is_not_used_and_no_file_changes() {
    const BYTES: usize = 10_000;
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), [7; BYTES]).expect("its bytes");
    let running = needed!(hazard("own-files", &[file.path().to_str().expect("UTF-8")], "ready"));
    attach(running.pid()).expect_success();
    detach(running.pid()).expect_success();
    assert_eq!(std::fs::read(file.path()).expect("its bytes"), [7; BYTES]);
}
