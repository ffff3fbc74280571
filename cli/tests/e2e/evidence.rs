//! While a program is served, the counter is checked, and the page shows the results.

use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;

use fastpath_evidence::PageCopy;
use fastpath_publish::evidence::Residuals;

use crate::common::{Pid, fastpath, finish, start, wait_until};

/// `sleep` under `fastpath run`, for as long as `look` takes.
fn while_served(options: &[&str], look: impl FnOnce(Pid)) {
    let running = start(fastpath(
        &[&["run", "--clocks", "all"], options, &["--", "sleep", "1000"]].concat(),
    ));
    let sleeper = running.pid();
    wait_until("the sleeper's start", || {
        sleeper.is_served() && sleeper.program() == "sleep"
    });
    look(sleeper);
    sleeper.signal(libc::SIGKILL);
    running.finish();
}

fn experience(pid: Pid) -> Residuals {
    let experience = Residuals::of_process(pid.0 as u32).expect("the page may be read");
    experience.expect("a page")
}

#[test]
fn the_cpus_are_compared_again_and_again_while_a_program_is_served() {
    for (options, allows_non_invariant) in [(&[][..], false), (&["--trust-counter"][..], true)] {
        while_served(options, |sleeper| {
            wait_until("three comparisons", || experience(sleeper).warp_tests >= 3);
            wait_until("anchors", || experience(sleeper).refreshes > 10);
            let found = experience(sleeper);
            assert_eq!(found.allows_non_invariant, allows_non_invariant, "{found:?}");
            assert_eq!(found.withdrawals, 0, "{found:?}");
            assert_eq!(found.withdrawn, None, "{found:?}");
        });
    }
}

/// The max age of the newest anchor, which is four refreshes.
fn cap_ns(pid: Pid) -> u64 {
    let page = PageCopy::of_process(pid.0 as u32).expect("the page may be read");
    let page = page.expect("a page");
    let newest = &page.hres.copy[0];
    let (cap, mult, shift) = (&newest.cap_cycles, &newest.mult, &newest.shift);
    (u64::from(cap.load(Relaxed)) * u64::from(mult.load(Relaxed))) >> shift.load(Relaxed)
}

#[test]
fn anchors_of_a_counter_that_is_not_invariant_last_a_tenth_of_the_time() {
    const USUAL_NS: u64 = 400_000_000;
    while_served(&[], |sleeper| {
        wait_until("windows of the full length", || cap_ns(sleeper) > USUAL_NS * 9 / 10);
    });
    while_served(&["--trust-counter"], |sleeper| {
        wait_until("windows of the full length", || {
            cap_ns(sleeper) > USUAL_NS / 10 * 9 / 10
        });
        let begun = experience(sleeper).refreshes;
        wait_until("more of them", || {
            let cap_ns = cap_ns(sleeper);
            assert!(cap_ns < USUAL_NS / 10 * 11 / 10, "{cap_ns}");
            experience(sleeper).refreshes > begun + 20
        });
    });
}

#[test]
fn the_help_states_the_cost_and_risk_of_trust_counter() {
    let mut help = Command::new(env!("CARGO_BIN_EXE_fastpath"));
    help.args(["run", "--help"]);
    let help = finish(help).expect_success().out;
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for phrase in [
        "--trust-counter",
        "of one CPU",
        "read wrong until the error is detected",
        "docs/counter.md",
    ] {
        assert!(words.contains(phrase), "{phrase}: {words}");
    }
}
