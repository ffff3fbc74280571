//! The bounds of UTC on a page, on a simulated host whose daemon states the kernel's error without any margin.

#[allow(dead_code, reason = "the other tests need the rest")]
mod host;

use fastpath_clock::Leap;
use host::publisher::Publisher;
use host::{Host, TICK_AFTER_NS, VDSO};

const SECOND_NS: u64 = 1_000_000_000;

/// A publisher, and the true time.
struct World {
    publisher: Publisher,
    /// UTC less the time that has passed.
    utc_base_ns: u64,
    /// Whether a phase-locked loop slews the clock: by more than the kernel's own bound allows for.
    has_loop: bool,
    /// The second of REALTIME of which the kernel has added the growth.
    second: u64,
    reads: u32,
    bounded: u32,
}

impl World {
    fn new(seed: u64) -> World {
        let mut host = Host::fixed(seed, 2.596_144, VDSO);
        host.tells = true;
        let mut world = World {
            utc_base_ns: host.real_ns(),
            has_loop: false,
            second: host.real_ns() / SECOND_NS,
            publisher: Publisher::new(host),
            reads: 0,
            bounded: 0,
        };
        world.state_error();
        world
    }

    fn host(&mut self) -> &mut Host {
        &mut self.publisher.host
    }

    fn utc_ns(&self) -> u64 {
        self.utc_base_ns + self.publisher.host.elapsed_ns as u64
    }

    /// Returns how far the kernel is ahead of UTC.
    fn error_ns(&self) -> i64 {
        self.publisher.host.real_ns().wrapping_sub(self.utc_ns()) as i64
    }

    /// The daemon states the error as it is.
    fn state_error(&mut self) {
        self.publisher.host.max_error_us = self.error_ns().unsigned_abs().div_ceil(1_000) + 1;
    }

    /// Passes the time, and reads a few times.
    fn pass(&mut self, ns: f64) {
        for _ in 0..10 {
            self.host().advance(ns / 10.0);
            let second = self.publisher.host.real_ns() / SECOND_NS;
            // As second_overflow() in kernel/time/ntp.c.
            self.host().max_error_us += 500 * second.saturating_sub(self.second);
            self.second = second;
            self.look();
        }
    }

    fn look(&mut self) {
        self.reads += 1;
        let Some((earliest_ns, latest_ns)) = self.publisher.utc() else {
            return;
        };
        self.bounded += 1;
        let kernel_ns = self.publisher.host.clock_ns(0).expect("there is always REALTIME");
        let utc_ns = if self.has_loop { kernel_ns } else { self.utc_ns() };
        for (name, ns) in [("UTC", utc_ns), ("the kernel", kernel_ns)] {
            let (after_ns, before_ns) = (ns as i64 - earliest_ns as i64, latest_ns as i64 - ns as i64);
            assert!(
                after_ns >= 0 && before_ns >= 0,
                "{name} is {after_ns} ns after the earliest and {before_ns} ns before the latest"
            );
        }
    }

    fn refresh(&mut self) {
        self.pass(self.publisher.discipline.next_window_ns() as f64);
        self.publisher.refresh_now();
    }

    /// Steps REALTIME to UTC, and reports it.
    fn step(&mut self) {
        self.until(|publisher| publisher.refresh_now().published);
        let by_ns = self.error_ns();
        if by_ns.abs() < 100_000 {
            return;
        }
        self.host().real_offset_ns -= by_ns;
        self.second = self.publisher.host.real_ns() / SECOND_NS;
        self.state_error();
        // Until then the publisher has taken REALTIME off the page.
        self.until(|publisher| publisher.step().published);
    }

    fn until(&mut self, succeeds: impl Fn(&mut Publisher) -> bool) {
        for _ in 0..1_000 {
            if succeeds(&mut self.publisher) {
                return;
            }
            self.host().advance(1e6);
        }
        panic!("it does not within a second");
    }
}

#[test]
fn utc_is_within_the_bounds_under_slews_steps_and_a_late_publisher() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.has_loop = seed % 2 == 0;
        for _ in 0..2_000 {
            let chance = world.host().random.unit();
            if chance < 0.02 {
                world.host().ntp_ppm = world.publisher.host.random.between(-499.0, 499.0);
                world.state_error();
            } else if chance < 0.03 {
                world.step();
            } else if chance < 0.04 {
                // The kernel's rate changes from one end to the other, or begins to, just after a refresh.
                let before_ppm = [0.0, 499.0][seed as usize % 2];
                world.host().ntp_ppm = before_ppm;
                for _ in 0..20 {
                    world.refresh();
                }
                world.state_error();
                world.refresh();
                world.host().ntp_ppm = -499.0;
                world.pass(3.9e8);
            } else if chance < 0.06 && world.has_loop {
                // A phase-locked loop: at most an eighth of this in the first second.
                world.host().offset_ns = -world.error_ns().clamp(-4_000_000, 4_000_000) as f64;
                world.state_error();
            } else if chance < 0.1 {
                let late_ns = world.host().random.between(0.0, 8e8);
                world.pass(late_ns);
            }
            world.refresh();
        }
        for _ in 0..20 {
            world.refresh();
        }
        let (earliest_ns, latest_ns) = world.publisher.utc().expect("after two calm seconds");
        // What the kernel says, the growth that it has not added yet, before our first look and since, and our own.
        let widest_ns = 2 * (1_000 * world.publisher.host.max_error_us + 2 * 500_000 + 100_000);
        assert!(latest_ns - earliest_ns < widest_ns, "{}", latest_ns - earliest_ns);
        assert!(
            world.bounded > world.reads * 8 / 10,
            "{} of {}",
            world.bounded,
            world.reads
        );
        // The publisher is killed.
        world.pass(4e8);
        world.pass(1e6);
        assert_eq!(world.publisher.utc(), None);
    }
}

#[test]
fn the_bounds_leave_a_leap_second_to_the_kernel() {
    const DAY_NS: i64 = 86_400_000_000_000;
    for (leap, by_ns, early_ns) in [
        (Leap::Insert, -(SECOND_NS as i64), 0),
        (Leap::Delete, SECOND_NS as i64, SECOND_NS as i64),
    ] {
        let mut world = World::new(7);
        let leap_ns = 20_000 * DAY_NS - early_ns;
        let mono_ns = world.publisher.host.mono_ns() as i64;
        let host = world.host();
        host.ntp_ppm = 0.0;
        host.leap = Some(leap);
        host.real_offset_ns = leap_ns - mono_ns - 4 * SECOND_NS as i64;
        world.second = world.publisher.host.real_ns() / SECOND_NS;
        world.utc_base_ns = world.publisher.host.real_ns() - world.publisher.host.elapsed_ns as u64;
        world.state_error();
        let mut leaps_on = true;
        for _ in 0..20_000 {
            world.pass(1e6);
            if world.publisher.host.elapsed_ns as u64 % 100_000_000 < 1_000_000 {
                world.publisher.refresh_now();
            }
            let host = world.host();
            if leaps_on && host.real_ns() as i64 >= leap_ns {
                // UTC leaps before the kernel, which does so at its next tick.
                world.utc_base_ns = world.utc_base_ns.wrapping_add_signed(by_ns);
                world.pass(TICK_AFTER_NS as f64);
                world.host().real_offset_ns += by_ns;
                world.host().tai_offset_s -= by_ns / SECOND_NS as i64;
                world.publisher.was_set_back = true;
                leaps_on = false;
                world.second = world.publisher.host.real_ns() / SECOND_NS;
            }
        }
        assert!(!leaps_on && world.bounded > world.reads / 2 && world.publisher.utc().is_some());
    }
}

#[test]
fn the_bounds_of_a_clock_that_is_not_synchronized_are_unknown() {
    for (is_synchronized, max_error_us) in [(true, 16_000_000), (false, 1)] {
        let mut world = World::new(1);
        while world.publisher.utc().is_none() {
            world.refresh();
        }
        world.host().max_error_us = max_error_us;
        world.host().is_synchronized = is_synchronized;
        for _ in 0..3 {
            world.refresh();
        }
        assert_eq!(world.publisher.utc(), None);
    }
}
