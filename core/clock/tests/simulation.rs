//! The discipline on simulated hosts, over hours of virtual time.
//!
//! Every refresh also checks, in the publisher, that no clock goes back by a nanosecond at any counter around the
//! change. A failure prints its seed: run it again with FASTPATH_SEED.

#[allow(dead_code, reason = "the other tests need the rest")]
mod host;

use fastpath_clock::{AnchorDecision, Leap, Reason};
use host::publisher::Publisher;
use host::{ACPI_PM, HPET, Host, Reads, TICK_AFTER_NS, VDSO};

const SECOND_NS: i64 = 1_000_000_000;

#[test]
fn a_quiet_host_stays_within_ten_nanoseconds_for_an_hour() {
    let mut publisher = Publisher::new(Host::new(2.596_144, VDSO));
    publisher.host.wander_per_second = 2e-9;
    publisher.settle(3.0);
    for _ in 0..60 {
        // As ntpd does: a small correction every minute.
        publisher.host.ntp_ppm += publisher.host.random.between(-0.02, 0.02);
        publisher.run_for(60.0);
    }
    println!("worst {} ns, rms {:.2} ns", publisher.worst_ns(), publisher.rms_ns());
    assert!(publisher.worst_ns() <= 10, "{} ns", publisher.worst_ns());
    assert!(publisher.rms_ns() <= 3.0, "{} ns", publisher.rms_ns());
    assert_eq!(publisher.kernel_reads, 0);
    assert!(publisher.withdrawals.is_empty());
}

#[test]
fn the_first_anchors_follow_a_few_samples_and_are_good_from_the_start() {
    for _ in 0..100 {
        let mut publisher = Publisher::new(Host::new(2.596_144, VDSO));
        publisher.host.reads.interrupted = 0.0;
        assert_eq!(publisher.refresh().decision, AnchorDecision::Wait);
        while !publisher.refresh().published {}
        assert!(publisher.host.elapsed_ns < 8e6, "{} ns", publisher.host.elapsed_ns);
        publisher.run_for(1.0);
        assert_eq!(publisher.discipline.next_window_ns(), 100_000_000);
        assert!(publisher.worst_ns() <= 20, "{} ns", publisher.worst_ns());
    }
}

#[test]
fn counters_of_every_frequency_are_followed() {
    // 2 and 4 GHz lie where the shift changes; 24 MHz is an Arm counter, whose one count is 42 ns.
    for ghz in [0.024, 0.062_5, 1.0, 1.999_999_9, 2.0, 2.000_000_1, 4.0, 5.7] {
        let mut publisher = Publisher::new(Host::new(ghz, VDSO));
        publisher.settle(5.0);
        publisher.run_for(60.0);
        let bound_ns = 10.0 + 2.0 / ghz;
        println!(
            "{ghz} GHz: worst {} ns, rms {:.2} ns",
            publisher.worst_ns(),
            publisher.rms_ns()
        );
        assert!(
            (publisher.worst_ns() as f64) <= bound_ns,
            "{ghz} GHz: {} ns",
            publisher.worst_ns()
        );
    }
}

#[test]
fn realtime_follows_a_step_at_once_and_monotonic_does_not_notice() {
    let mut publisher = Publisher::new(Host::new(
        2.596_144,
        Reads {
            interrupted: 0.0,
            ..VDSO
        },
    ));
    publisher.settle(3.0);
    let steps = [
        3_600 * SECOND_NS,
        -7_200 * SECOND_NS,
        1_000_000,
        -1_000_000,
        -300_000_000,
        5_000,
        -5_000,
    ];
    for step_ns in steps {
        publisher.run_between(0.3, 2.0);
        publisher.live(5e6);
        let before = publisher.discipline.hres().expect("in force");
        publisher.host.real_offset_ns += step_ns;
        let stepped_at = publisher.host.elapsed_ns;
        let refresh = publisher.step();
        assert!(refresh.published, "{:?}", refresh.decision);
        let after = publisher.discipline.hres().expect("in force");
        let base = after.base_cycles;
        for counter in [base, base + 1, base + 1_000_000, base + u64::from(after.cap_cycles)] {
            assert_eq!(after.at(1, counter), before.at(1, counter));
            assert_eq!(after.at(2, counter), before.at(2, counter));
        }
        assert_eq!(
            after.at(1, base + u64::from(after.cap_cycles) + 1),
            None,
            "a step does not lengthen the cap"
        );
        publisher.host.advance(100_000.0);
        assert!(publisher.host.elapsed_ns - stepped_at < 1e6);
        let error_ns = publisher.real_error_ns().expect("served");
        assert!(error_ns.abs() <= 20, "{error_ns} ns after a step of {step_ns} ns");
        publisher.run_for(0.5);
        let tai = publisher.read(11, publisher.host.counter.whole).expect("served");
        let real = publisher.read(0, publisher.host.counter.whole).expect("served");
        assert_eq!(tai - real, 37_000_000_000);
    }
    publisher.run_for(10.0);
    assert!(publisher.real_error_ns().expect("served").abs() <= 10);
    assert!(publisher.withdrawals.is_empty());
    assert!(publisher.worst_ns() <= 10, "MONOTONIC: {} ns", publisher.worst_ns());
}

#[test]
fn a_step_without_notification_is_found_by_the_next_refresh() {
    let mut publisher = Publisher::new(Host::new(2.596_144, VDSO));
    publisher.settle(3.0);
    for _ in 0..200 {
        let step_ns = publisher.host.random.between(200.0, 1e9) as i64;
        // Backwards too, in which case only REALTIME may go back.
        publisher.live(publisher.discipline.next_window_ns() as f64);
        let back = publisher.host.random.chance(0.5);
        publisher.host.real_offset_ns += if back { -step_ns } else { step_ns };
        let sample = publisher.host.sample();
        let effective_at = publisher.host.counter.whole + 100_000;
        let decision = publisher.discipline.observe(&sample, || effective_at);
        if decision == AnchorDecision::Wait {
            // An interrupted sample; the next one shows the step.
            publisher.host.real_offset_ns -= if back { -step_ns } else { step_ns };
            continue;
        }
        let AnchorDecision::Publish { hres, .. } = decision else {
            panic!("{decision:?}")
        };
        let (sec, nsec) = hres.at(0, effective_at).expect("covered");
        publisher
            .host
            .advance((effective_at - publisher.host.counter.whole) as f64 / publisher.host.ghz);
        let error_ns = (sec * 1_000_000_000 + u64::from(nsec)).wrapping_sub(publisher.host.real_ns()) as i64;
        assert!(error_ns.abs() <= 20, "{error_ns} ns after {step_ns} ns");
    }
}

/// The kernel makes a leap second at its next tick after midnight, and the announcement stays.
#[test]
fn no_read_is_a_second_off_about_a_leap_second() {
    const DAY_NS: i64 = 86_400 * SECOND_NS;
    for (leap, by_ns, early_ns) in [(Leap::Insert, -SECOND_NS, 0), (Leap::Delete, SECOND_NS, SECOND_NS)] {
        for tick_after_ns in [100_000, TICK_AFTER_NS, 30_000_000] {
            let mut publisher = Publisher::new(Host::new(2.596_144, VDSO));
            publisher.late = f64::MIN_POSITIVE;
            publisher.host.tells = true;
            publisher.host.ntp_ppm = 0.0;
            publisher.host.leap = Some(leap);
            let mono_ns = publisher.host.mono_ns() as i64;
            let leap_ns = 20_000 * DAY_NS - early_ns;
            publisher.host.real_offset_ns = leap_ns - mono_ns - 4 * SECOND_NS;
            let mut has_leapt = false;
            let mut refresh_at_ns = 0.0;
            while publisher.host.elapsed_ns < 8e9 {
                if publisher.host.elapsed_ns >= refresh_at_ns {
                    publisher.refresh_now();
                    refresh_at_ns = publisher.host.elapsed_ns + publisher.discipline.next_window_ns() as f64;
                }
                publisher.host.advance(150_000.0);
                if !has_leapt && publisher.host.real_ns() as i64 >= leap_ns + tick_after_ns {
                    has_leapt = true;
                    publisher.was_set_back = by_ns < 0;
                    publisher.host.real_offset_ns += by_ns;
                    publisher.host.tai_offset_s -= by_ns / SECOND_NS;
                }
                let (real_ns, by_page) = publisher.answer(0);
                let error_ns = real_ns.wrapping_sub(publisher.host.real_ns()) as i64;
                // The kernel's answers have a floor below which they do not go, until the step is noticed.
                assert!(error_ns.abs() < 100 || !by_page, "{leap:?}: {error_ns} ns");
                let tai = publisher
                    .host
                    .clock_ns(11)
                    .zip(publisher.read(11, publisher.host.count()));
                let error_ns = tai.map_or(0, |(kernel_ns, ours_ns)| ours_ns.wrapping_sub(kernel_ns) as i64);
                assert!(error_ns.abs() < 100, "{leap:?}: TAI, {error_ns} ns");
            }
            assert!(has_leapt && publisher.real_error_ns().is_some(), "served again");
        }
    }
}

#[test]
fn a_step_in_the_middle_of_a_sample_is_not_half_believed() {
    let mut publisher = Publisher::new(Host::new(2.596_144, VDSO));
    publisher.settle(3.0);
    publisher.live(1e8);
    let mut sample = publisher.host.sample();
    publisher.host.real_offset_ns += 300_000_000;
    sample.tai = publisher.host.sample().tai;
    let effective_at = publisher.host.counter.whole + 100_000;
    assert_eq!(
        publisher.discipline.observe(&sample, || effective_at),
        AnchorDecision::Wait
    );
    assert!(publisher.discipline.next_window_ns() <= 2_000_000, "tries again soon");
    publisher.host.advance(2e6);
    assert!(publisher.step().published);
    publisher.host.advance(100_000.0);
    assert!(publisher.real_error_ns().expect("served").abs() <= 20);
}

#[test]
fn an_hpet_host_follows_a_slew() {
    let mut publisher = Publisher::new(Host::new(2.596_144, HPET));
    publisher.host.ntp_ppm = 0.0;
    publisher.settle(20.0);
    for ppm in [500.0, 0.0, -500.0, 0.0, 5.0, 0.0] {
        publisher.host.ntp_ppm = ppm;
        publisher.run_for(1.0);
        assert!(publisher.worst_ns() <= 51_000, "{} ns", publisher.worst_ns());
        publisher.errors_ns.clear();
        publisher.run_for(20.0);
        assert!(publisher.worst_ns() <= 400, "{} ns at {ppm} ppm", publisher.worst_ns());
    }
    assert!(publisher.withdrawals.is_empty(), "{:?}", publisher.withdrawals);
}

#[test]
fn a_starved_publisher_and_a_slewing_kernel_are_bounded_by_the_cap() {
    let mut publisher = Publisher::new(Host::new(2.596_144, VDSO));
    publisher.host.ntp_ppm = 0.0;
    publisher.settle(3.0);
    for _ in 0..2_000 {
        if publisher.host.random.chance(0.3) {
            publisher.host.ntp_ppm = publisher.host.random.between(-500.0, 500.0);
        }
        let window_ns = publisher.host.random.between(1e6, 1e9);
        publisher.live(window_ns);
        publisher.refresh_now();
    }
    println!("worst {} ns", publisher.worst_ns());
    // The max age, times a change of frequency of 1000 ppm, and the same again because the rate is an average of the
    // two.
    assert!(publisher.worst_ns() <= 800_000, "{} ns", publisher.worst_ns());
    assert!(publisher.withdrawals.is_empty(), "{:?}", publisher.withdrawals);
}

#[test]
fn an_anchor_that_has_just_ended_is_not_undercut_by_the_next() {
    for _ in 0..50 {
        let mut publisher = Publisher::new(Host::new(
            2.596_144,
            Reads {
                interrupted: 0.0,
                ..VDSO
            },
        ));
        publisher.host.ntp_ppm = 0.0;
        publisher.settle(3.0);
        // At its max age the anchor in force is 200 us ahead, and the next one is due less than that later.
        publisher.host.ntp_ppm = -500.0;
        let since_ns = 400e6 + publisher.host.random.between(0.0, 200e3);
        publisher.host.advance(since_ns);
        publisher.refresh_now();
        publisher.run_for(1.0);
        assert!(publisher.error_ns().expect("served").abs() <= 20);
    }
}

#[test]
fn a_turn_of_the_slew_from_one_end_to_the_other_is_believed_without_raw_too() {
    let mut publisher = Publisher::new(Host::new(2.596_144, VDSO));
    publisher.host.has_raw = false;
    publisher.host.ntp_ppm = -500.0;
    publisher.settle(3.0);
    for ppm in [500.0, -500.0, 0.0, 500.0, -500.0] {
        publisher.host.ntp_ppm = ppm;
        publisher.run_for(3.0);
    }
    assert!(publisher.withdrawals.is_empty(), "{:?}", publisher.withdrawals);
}

#[test]
fn a_change_of_the_clocksource_is_over_when_it_is_noticed() {
    let kinds = [VDSO, HPET, ACPI_PM];
    for (from, to) in (0..3).flat_map(|from| (0..3).map(move |to| (from, to))) {
        for ppm in [-200.0, -50.0, 20.0, 90.0, 400.0] {
            let mut publisher = Publisher::new(Host::new(2.596_144, kinds[from]));
            publisher.settle(20.0);
            publisher.host.reads = kinds[to];
            publisher.host.ghz *= 1.0 + ppm * 1e-6;
            let window_ns = publisher.discipline.next_window_ns() as f64;
            publisher.live(window_ns);
            let worst_ns = publisher.worst_ns_of.into_iter().max();
            let most_ns = (window_ns * ppm.abs() * 1e-6 + 1_000.0) as u64;
            assert!(worst_ns <= Some(most_ns), "{from} to {to}, {ppm} ppm: {worst_ns:?} ns");
            publisher.clocksource_changed();
            publisher.worst_ns_of = [0; 5];
            publisher.run_for(20.0);
            // Half of what a read costs.
            let worst_ns = publisher.worst_ns_of;
            assert!(
                worst_ns.iter().all(|ns| *ns <= 700),
                "{from} to {to}, {ppm} ppm: {worst_ns:?} ns"
            );
            assert!(publisher.discipline.raw().is_some());
            assert_eq!(publisher.withdrawals, [Reason::ClocksourceChanged]);
        }
    }
}

#[test]
fn a_counter_that_stops_is_given_up_until_it_runs_again() {
    let mut publisher = Publisher::new(Host::new(2.596_144, VDSO));
    publisher.settle(10.0);
    publisher.host.ghz = 0.0;
    while publisher.withdrawals.is_empty() {
        publisher.refresh();
    }
    assert_eq!(publisher.withdrawals, [Reason::CounterStopped]);
    for _ in 0..100 {
        assert!(!publisher.refresh().published);
    }
    publisher.host.ghz = 2.6;
    publisher.errors_ns.clear();
    publisher.run_for(300.0);
    assert!(publisher.discipline.hres().is_some());
    assert!(publisher.worst_ns() <= 20, "{} ns", publisher.worst_ns());
}

/// A second of sleep may be none by a clock with whole seconds, from which the kernel takes BOOTTIME.
#[test]
fn what_a_counter_does_in_a_suspend_is_not_its_fault_though_boottime_does_not_show_it() {
    let mut publisher = Publisher::new(Host::new(2.596_144, VDSO));
    publisher.settle(3.0);
    for turn in 0..10 {
        publisher.withdrawals.clear();
        publisher.host.counter.add(1e9);
        publisher.refresh();
        assert_eq!(publisher.withdrawals, [Reason::CounterJumped]);
        publisher.suspended();
        let woken_ns = publisher.host.elapsed_ns;
        while publisher.discipline.hres().is_none() {
            publisher.refresh();
        }
        let took_ms = (publisher.host.elapsed_ns - woken_ns) / 1e6;
        assert!(took_ms < 500.0, "served again {took_ms} ms after suspend {turn}");
    }
    // One that nothing explains is a fault.
    publisher.host.counter.add(1e9);
    publisher.run_for(0.5);
    assert!(publisher.discipline.hres().is_none());
}

#[test]
fn a_counter_that_keeps_jumping_is_tried_less_and_less_often() {
    let mut publisher = Publisher::new(Host::new(2.596_144, VDSO));
    publisher.settle(3.0);
    let mut away = Vec::new();
    for _ in 0..5 {
        publisher.host.counter.add(1e9);
        let given_up_at = publisher.host.elapsed_ns;
        publisher.refresh();
        while publisher.discipline.hres().is_none() {
            publisher.refresh();
        }
        away.push(((publisher.host.elapsed_ns - given_up_at) / 1e9).floor());
    }
    assert_eq!(away, [1.0, 2.0, 4.0, 8.0, 16.0]);
}

#[test]
fn a_rate_that_creeps_away_is_given_up_in_the_end() {
    let mut publisher = Publisher::new(Host::new(2.596_144, VDSO));
    publisher.host.has_raw = false;
    publisher.settle(10.0);
    for _ in 0..600 {
        publisher.host.ghz *= 1.000_01;
        publisher.run_for(1.0);
    }
    assert!(publisher.withdrawals.contains(&Reason::RateImplausible));
}

#[test]
fn a_page_of_realtime_alone_holds_no_other_clock() {
    use fastpath_clock::{Config, Discipline};
    use fastpath_page::ClockSet;

    let mut publisher = Publisher::new(Host::new(2.596_144, VDSO));
    publisher.discipline = Discipline::new(Config {
        clocks: ClockSet::REALTIME,
        ..Config::default()
    });
    publisher.run_for(10.0);
    assert_eq!(
        publisher.discipline.hres().map(|hres| hres.clocks),
        Some(ClockSet::REALTIME)
    );
    assert_eq!(publisher.discipline.raw(), None);
    assert!(publisher.real_error_ns().expect("served").abs() <= 10);
    assert_eq!(publisher.error_ns(), None);
}
