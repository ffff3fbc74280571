//! Other tools change the same code: a uprobe writes a breakpoint over the first byte of an instruction, and later
//! restores that byte from the file, whatever is there by then.

use std::process::Command;

use crate::attach::children::attach_with_children;
use crate::attach::{detach, hazard};
use crate::common::{fastpath, finish, helper_program, served, skip, start, wait_until};

#[test]
fn functions_work_after_a_probe_on_any_of_their_instructions() {
    let program = needed!(helper_program("restored-bytes", "cc", &[]));
    // A program that starts while the publisher gets no CPU runs untouched.
    wait_until("programs that are served", || {
        let outcome = finish(served(&[&program, "calls"]));
        if outcome.status.code() == Some(77) {
            skip(outcome.first_line());
            return true;
        }
        let outcome = outcome.expect_success();
        let count = outcome.out.trim().strip_prefix("served ").expect("a number");
        count.parse::<u32>().expect("a number") > 40
    });
}

#[test]
fn a_partly_restored_site_is_detached_and_a_breakpoint_stays() {
    let running = needed!(hazard("restored-bytes", &["waits"], "ready"));
    let pid = running.pid();
    attach_with_children(pid).expect_success().expect_output("");
    pid.signal(libc::SIGUSR1);
    wait_until("its bytes", || running.out_so_far().contains("restored"));
    detach(pid).expect_success().expect_output("");
    pid.signal(libc::SIGUSR1);
    running.finish().expect_success().expect_output("ready\nrestored");
}

#[test]
fn a_function_with_another_tools_breakpoint_is_left_alone() {
    let running = needed!(hazard("restored-bytes", &["waits"], "ready"));
    let pid = running.pid();
    running.pid().signal(libc::SIGUSR1);
    wait_until("its breakpoint", || running.out_so_far().contains("restored"));
    let attached = attach_with_children(pid);
    assert!(attached.err.contains("not that of its file"), "{attached:#?}");
    attached.expect_code(17);
    assert!(pid.is_served());
    detach(pid).expect_success().expect_output("");
    pid.signal(libc::SIGUSR1);
    running.finish().expect_success().expect_output("ready\nrestored");
}

#[test]
fn a_rescued_program_reads_the_clock_while_probes_on_its_code_come_and_go() {
    let running = needed!(hazard("probed-reads", &[], "ready"));
    let pid = running.pid();
    let attached = finish(fastpath(&["attach", "--rescue", "-v", &pid.0.to_string()])).expect_success();
    let is_rescued = attached.err.contains("are rescued") && !attached.err.contains("probed-reads at 0x");
    assert!(is_rescued, "{attached:#?}");
    pid.signal(libc::SIGUSR1);
    wait_until("its reads", || {
        running.out_so_far().contains("failures") || !pid.exists() || pid.state() == 'Z'
    });
    if !running.out_so_far().contains("failures") {
        let outcome = running.finish().expect_code(77);
        skip(outcome.first_line());
        return;
    }
    assert!(running.out_so_far().contains(" 0 failures"), "{}", running.out_so_far());
    detach(pid).expect_success();
    pid.signal(libc::SIGUSR1);
    running.finish().expect_success();
}

#[test]
fn the_reason_is_reported_if_a_programs_exec_cannot_be_redirected_safely() {
    let program = needed!(helper_program("no-relay", "cc", &["-static", "-nostdlib"]));
    let says_why = |err: &str| err.contains("will not be served") && err.contains("keep its first byte");
    // It is served itself.
    let run = finish(served(&[&program, "ends"])).expect_success();
    assert!(says_why(&run.err), "{run:#?}");
    let running = start(Command::new(&program));
    let attached = attach_with_children(running.pid()).expect_success();
    assert!(says_why(&attached.err), "{attached:#?}");
    running.pid().signal(libc::SIGKILL);
}
