//! Requests in the mailbox that no thread has made, and programs that get more privileges than their callers had.

use crate::common::{comes_to, helper_program, served};

/// Starts threads that wait, in the name of whose threads another process of the tree sends requests.
#[track_caller]
fn are_not_disturbed_by_requests_of(kind: &str) {
    let (threads, forger) = needed!(
        helper_program("many-threads", "cc", &[]),
        helper_program("forger", "cc", &[])
    );
    let script = "\"$0\" 20 & victim=$!; sleep 1; \"$1\" \"$2\" $(ls /proc/$victim/task) & forger=$!; \
        sleep 2; kill -9 $forger; kill $victim; wait $victim";
    let command = ["sh", "-c", script, &threads, &forger, kind];
    comes_to(|| served(&command), 0, "ready\nforging\ndone");
}

#[test]
fn a_forged_exec_request_does_not_stop_a_thread() {
    are_not_disturbed_by_requests_of("1");
}

#[test]
fn a_forged_entry_request_does_not_stop_a_thread() {
    are_not_disturbed_by_requests_of("2");
}
