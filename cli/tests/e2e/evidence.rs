//! The counter is watched for as long as a program is served, and the page tells how.

use std::process::Command;

use fastpath_publisher::evidence::Residuals;

use crate::common::{Pid, fastpath, finish, start, wait_until};

/// `sleep` under `fastpath run`, for as long as `look` takes.
fn while_served(options: &[&str], look: impl FnOnce(Pid)) {
    let running = start(fastpath(
        &[&["run", "--clocks", "all"], options, &["--", "sleep", "30"]].concat(),
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
    for (options, is_vouched_for) in [(&[][..], false), (&["--trust-counter"][..], true)] {
        while_served(options, |sleeper| {
            wait_until("three comparisons", || experience(sleeper).warp_tests >= 3);
            wait_until("anchors", || experience(sleeper).refreshes > 10);
            let found = experience(sleeper);
            assert_eq!(found.is_vouched_for, is_vouched_for, "{found:?}");
            assert_eq!(found.withdrawals, 0, "{found:?}");
            assert_eq!(found.withdrawn, None, "{found:?}");
        });
    }
}

#[test]
fn a_counter_that_is_watched_closely_is_sampled_ten_times_as_often() {
    let refreshes_per_second = |options: &[&str]| {
        let mut rate = 0.0;
        while_served(options, |sleeper| {
            // By now the windows are as long as they get.
            wait_until("the first anchors", || experience(sleeper).refreshes > 10);
            let (begun, before) = (std::time::Instant::now(), experience(sleeper).refreshes);
            std::thread::sleep(std::time::Duration::from_secs(1));
            rate = (experience(sleeper).refreshes - before) as f64 / begun.elapsed().as_secs_f64();
        });
        rate
    };
    let (usual, watched) = (refreshes_per_second(&[]), refreshes_per_second(&["--trust-counter"]));
    assert!(usual < 40.0, "{usual} a second");
    assert!(watched > 2.0 * usual, "{watched} a second instead of {usual}");
}

#[test]
fn the_help_states_the_price_of_trusting_a_counter() {
    let mut help = Command::new(env!("CARGO_BIN_EXE_fastpath"));
    help.args(["run", "--help"]);
    let help = finish(help).expect_success().out;
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for price in [
        "--trust-counter",
        "of one CPU",
        "read wrong until it is caught",
        "docs/counter.md",
    ] {
        assert!(words.contains(price), "{price}: {words}");
    }
}
