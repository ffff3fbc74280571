//! Hundreds of short pipelines: no exit status lost, no zombie, no helper left.

use std::time::Instant;

use crate::common::command::MARK;
use crate::common::{Pid, finish, served, wait_until};

/// Number of pipelines; FASTPATH_TEST_PIPELINES overrides it.
const RUNS: u32 = 250;
const AT_ONCE: u32 = 2;

#[test]
fn pipelines_keep_their_exit_statuses_and_leave_nothing_behind() {
    let runs = std::env::var("FASTPATH_TEST_PIPELINES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(RUNS);
    let mark = format!("pipelines-{}", std::process::id());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for lane in 0..AT_ONCE {
            let mark = &mark;
            scope.spawn(move || {
                for run in (lane..runs).step_by(AT_ONCE as usize) {
                    let code = (run % 250) as i32;
                    let mut command = served(&["sh", "-c", &format!("seq 3 | sort | wc -l; exit {code}")]);
                    command.env(MARK, mark);
                    let outcome = finish(command).expect_code(code);
                    assert!(
                        outcome.out.trim() == "3" && outcome.err.is_empty(),
                        "run {run}: {outcome:#?}"
                    );
                }
            });
        }
    });
    let each = begun.elapsed() / runs.max(1);
    println!("{runs} pipelines, {AT_ONCE} at a time: {each:?} each");
    wait_until("the helpers' end", || Pid::helpers(&mark).is_empty());
    let own = Pid(std::process::id() as i32);
    assert!(
        own.children()
            .iter()
            .all(|child| child.state() != 'Z' || child.status("Name") != "fastpath")
    );
}
