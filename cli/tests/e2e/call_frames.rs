//! Unwinders find the callers of reads of clocks: profilers, exceptions and cancellation depend on it.

use std::collections::BTreeMap;

use crate::attach::{attach, detach, hazard_of};
use crate::common::{finish, helper_program, served, wait_until};

pub const FLAGS: &[&str] = &["-fexceptions", "-fnon-call-exceptions"];

/// Returns whether most reads went to the end in code that has call frames, and most threads ran their
/// cleanups. A read for which the page has no answer at that moment does not, and on a busy machine there may be many.
pub fn have_call_frames(out: &str) -> bool {
    let mut whole = BTreeMap::new();
    let mut are_cancelled = true;
    for line in out.lines() {
        let words: Vec<&str> = line.split([' ', ':', ',']).filter(|word| !word.is_empty()).collect();
        match words[..] {
            [clock, reads, "whole", "reads", lost, "of", _, "lost"] => {
                assert_eq!(lost, "0", "{out}");
                whole.insert(clock.to_owned(), reads.parse::<u32>().expect("a number"));
            }
            [_, run, "of", count, "cleanups"] => {
                let number = |word: &str| word.parse::<u32>().expect("a number");
                are_cancelled &= number(run) * 10 >= number(count) * 6;
            }
            _ => {}
        }
    }
    assert_eq!(whole.len(), 8, "{out}");
    are_cancelled && whole.values().all(|reads| *reads > 50)
}

#[test]
fn callers_of_reads_are_found_from_each_instruction_under_run() {
    let Some(program) = helper_program("call-frames", "cc", FLAGS) else {
        return;
    };
    wait_until("reads with call frames", || {
        have_call_frames(&finish(served(&[&program])).expect_success().out)
    });
}

#[test]
fn callers_of_reads_are_found_from_each_instruction_after_attach() {
    wait_until("reads with call frames", || {
        let Some(running) = hazard_of(helper_program("call-frames", "cc", FLAGS), &["waits"], "ready") else {
            return true;
        };
        let pid = running.pid();
        attach(pid).expect_success();
        pid.signal(libc::SIGUSR1);
        have_call_frames(&running.finish().expect_success().out)
    });
}

#[test]
fn callers_are_found_after_detach() {
    let Some(running) = hazard_of(helper_program("call-frames", "cc", FLAGS), &["waits"], "ready") else {
        return;
    };
    let pid = running.pid();
    attach(pid).expect_success();
    detach(pid).expect_success();
    pid.signal(libc::SIGUSR1);
    assert!(have_call_frames(&running.finish().expect_success().out));
}
