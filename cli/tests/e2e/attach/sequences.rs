//! Restartable sequences (rseq(2)): if fastpath stops a thread in the middle of one, the sequence begins anew, as after
//! a preemption.

use std::process::Command;
use std::time::Duration;

use super::{attach, detach};
use crate::common::{helper_program, start, wait_until};

#[test]
fn a_restartable_sequence_begins_anew_after_an_attach() {
    let path = needed!(helper_program("sequences", "cc", &[]));
    let mut command = Command::new(path);
    // The program registers its own.
    command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    let running = start(command);
    wait_until("its threads", || running.out_so_far().contains("ready"));
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(20));
        // Beside two threads that share a CPU all the time, and much other work, a publisher did not start in time once.
        if attach(running.pid()).status.code() == Some(16) {
            attach(running.pid()).expect_success();
        }
        assert!(running.pid().is_served());
        std::thread::sleep(Duration::from_millis(20));
        detach(running.pid()).expect_success();
    }
    running.pid().signal(libc::SIGTERM);
    running.finish().expect_success().expect_output("ready\nlost 0");
}
