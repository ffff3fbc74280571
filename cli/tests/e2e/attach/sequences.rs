//! Restartable sequences (rseq(2)): who keeps a thread from running in the middle of one makes it begin anew, fastpath too.

use std::process::Command;
use std::time::Duration;

use super::{attach, detach};
use crate::common::{helper_program, start, wait_until};

#[test]
fn a_restartable_sequence_begins_anew_if_others_ran_while_it_was_attached() {
    let Some(path) = helper_program("sequences", "cc", &[]) else {
        return;
    };
    let mut command = Command::new(path);
    // It has its own.
    command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    let running = start(command);
    wait_until("its threads", || running.out_so_far().contains("ready"));
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(20));
        attach(running.pid()).expect_success();
        std::thread::sleep(Duration::from_millis(20));
        detach(running.pid()).expect_success();
    }
    running.pid().signal(libc::SIGTERM);
    running.finish().expect_success().expect_output("ready\nlost 0");
}
