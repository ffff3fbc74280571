//! A machine that sleeps, at each moment of a refresh: no read is earlier than one before it, and reads after the wake are
//! ahead of the kernel by at most the age cap.

#[allow(dead_code, reason = "the other tests need the rest")]
mod host;

use fastpath_clock::Config;
use fastpath_page::ClockSet;
use host::publisher::Publisher;
use host::{Asleep, Host, VDSO};

const IDS: [u32; 5] = [0, 1, 7, 11, 4];
const MS: f64 = 1e6;
/// Moments of a refresh at which the machine may fall asleep: two in each of 25 reads of a clock, and five until the
/// anchor is on the page.
const MOMENTS: u32 = 56;
/// As in order.rs: what a program cannot see when it changes from the kernel to the page.
const UNSEEN_NS: u64 = 30;
/// An anchor ends by so much later than its cap after its publication, and a little more.
const LEAD_NS: i64 = 60_000;
/// More than anchors are ahead of a kernel that is awake.
const AWAKE_NS: i64 = 100;

/// A program that reads every clock.
#[derive(Default)]
struct Program {
    last: [u64; 5],
    last_by_page: [bool; 5],
    ahead_ns: i64,
    /// Whether a counter that was reset does not show how old an anchor is, and so not the floor.
    is_reset: bool,
}

impl Program {
    fn read(&mut self, publisher: &Publisher, what: &dyn std::fmt::Debug) {
        for (clock, id) in IDS.into_iter().enumerate() {
            let (now_ns, by_page) = publisher.answer(id);
            let unseen_ns = if (by_page && !self.last_by_page[clock]) || self.is_reset {
                UNSEEN_NS
            } else {
                0
            };
            let back_ns = self.last[clock].saturating_sub(now_ns);
            assert!(back_ns <= unseen_ns, "clock {id} goes back by {back_ns} ns: {what:?}");
            self.last[clock] = now_ns.max(self.last[clock]);
            self.last_by_page[clock] = by_page;
        }
        let ahead_ns = self.last[1].wrapping_sub(publisher.host.mono_ns()) as i64;
        self.ahead_ns = self.ahead_ns.max(ahead_ns);
    }
}

#[test]
fn a_sleep_at_any_moment_of_a_refresh_takes_no_clock_back() {
    takes_no_clock_back(Config::default());
}

#[test]
fn a_sleep_of_a_host_that_refreshes_on_demand_takes_no_clock_back() {
    takes_no_clock_back(Config::on_demand(ClockSet::ALL));
}

fn takes_no_clock_back(config: Config) {
    let cap_ns = (config.longest_window_ns * config.cap_windows) as f64;
    let mut worst_ns = 0;
    for counter in [Asleep::GoesOn, Asleep::Stops, Asleep::IsReset] {
        for (length, ns) in [3.0 * MS, 30.0 * MS, 250.0 * MS, 390.0 * MS, 700.0 * MS, 6_200.0 * MS]
            .into_iter()
            .enumerate()
        {
            for moment in (length as u32 % 3..MOMENTS).step_by(3) {
                let what = (counter, ns, moment);
                let mut publisher = Publisher::with(config, Host::fixed(u64::from(moment), 2.596_144, VDSO));
                publisher.late = f64::MIN_POSITIVE;
                // No machine has counted for 50 years.
                publisher.host.counter.whole >>= 2;
                publisher.settle(10.0);
                let mut program = Program {
                    is_reset: counter == Asleep::IsReset,
                    ..Program::default()
                };
                let mut is_due = false;
                // Sometimes another sleep comes between two refreshes, before or after that.
                let mut sleeps_again = moment % 2 == 1;
                let settled_ns = publisher.host.elapsed_ns + 4e9;
                while publisher.host.elapsed_ns < settled_ns {
                    program.read(&publisher, &what);
                    if is_due {
                        publisher.refresh_now();
                    } else {
                        // The next one is due, and the machine falls asleep in it.
                        is_due = true;
                        publisher.host.sleep_after = Some((moment, ns, counter));
                    }
                    program.read(&publisher, &what);
                    let window_ns = publisher.discipline.next_window_ns() as f64;
                    for part in 0..8 {
                        publisher.host.advance(window_ns / 8.0);
                        program.read(&publisher, &what);
                        let is_before = moment % 4 == 1;
                        let is_now = part == moment % 8 && (is_before || publisher.host.sleep_after.is_none());
                        if is_now && std::mem::take(&mut sleeps_again) {
                            publisher.host.sleep(ns, counter);
                            program.read(&publisher, &what);
                        }
                    }
                }
                // A sleep that the counter did not count is not seen in what it shows.
                let most_ns = match counter {
                    Asleep::GoesOn => cap_ns as i64 + LEAD_NS,
                    _ => 0,
                };
                assert!(
                    program.ahead_ns <= most_ns + AWAKE_NS,
                    "{} ns ahead: {what:?}",
                    program.ahead_ns
                );
                worst_ns = worst_ns.max(program.ahead_ns);
                publisher.settle(1.0);
                let error_ns = publisher.error_ns();
                let is_served = error_ns.is_some_and(|ns| ns.abs() < 50);
                assert!(is_served, "{error_ns:?} after {:?}: {what:?}", publisher.withdrawals);
            }
        }
    }
    println!("{worst_ns} ns ahead at most");
}
