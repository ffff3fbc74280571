//! A publisher without a timer: its guest reads at any time, and the host refreshes when a read made a system call.
//! Hours of it, in virtual time. A failure prints its seed: run it again with FASTPATH_SEED.

mod simulated;

use fastpath_page::Reader;
use fastpath_publish::host::{ClockSet, Page, Reason, Refreshed, Relation};
use simulated::host::{ACPI_PM, HPET, VDSO};
use simulated::{Guest, MONOTONIC, REALTIME};

#[test]
fn a_busy_guest_is_served_within_a_millisecond_and_asks_seldom() {
    let page = Box::new(Page::zeroed());
    let mut guest = Guest::new(&page, VDSO, Relation::SAME);
    guest.busy(10_000.0, 0.001);
    assert!(
        guest.errors_ns.len() > 20,
        "{} of {}",
        guest.errors_ns.len(),
        guest.reads
    );
    guest.busy(100_000.0, 20.0);
    println!(
        "worst {} ns, {} traps of {} reads",
        guest.worst_ns(),
        guest.traps,
        guest.reads
    );
    assert!(guest.worst_ns() <= 100, "{} ns", guest.worst_ns());
    guest.forget();
    guest.busy(100_000.0, 60.0);
    println!(
        "worst {} ns, {} traps of {} reads",
        guest.worst_ns(),
        guest.traps,
        guest.reads
    );
    assert!(guest.worst_ns() <= 30, "{} ns", guest.worst_ns());
    assert!(guest.traps <= 200, "{} traps in a minute", guest.traps);
}

#[test]
fn a_host_with_expensive_clock_reads_serves_its_guest_too() {
    for (name, reads, bound_ns) in [("hpet", HPET, 1_000), ("acpi_pm", ACPI_PM, 2_000)] {
        let page = Box::new(Page::zeroed());
        let mut guest = Guest::new(&page, reads, Relation::SAME);
        guest.busy(100_000.0, 60.0);
        guest.forget();
        guest.busy(100_000.0, 60.0);
        println!(
            "{name}: worst {} ns, {} traps of {} reads",
            guest.worst_ns(),
            guest.traps,
            guest.reads
        );
        assert!(guest.worst_ns() <= bound_ns, "{name}: {} ns", guest.worst_ns());
        assert!(
            guest.traps * 20 < guest.reads,
            "{name}: {} traps of {}",
            guest.traps,
            guest.reads
        );
        assert_eq!(guest.publisher.state().withdrawn_reason, None);
    }
}

#[test]
fn reads_at_any_intervals_are_right_or_the_hosts() {
    let page = Box::new(Page::zeroed());
    let mut guest = Guest::new(&page, VDSO, Relation::SAME);
    guest.host(|host| host.wander_per_second = 2e-9);
    guest.busy(20_000.0, 2.0);
    guest.forget();
    for _ in 0..20_000 {
        let (seconds, reads) = guest.host(|host| {
            let magnitude = host.random.between(-6.0, 2.5);
            (10_f64.powf(magnitude), host.random.between(1.0, 20.0) as u32)
        });
        guest.sleep(seconds);
        (0..reads).for_each(|_| guest.read());
    }
    println!(
        "worst {} ns, {} traps of {} reads",
        guest.worst_ns(),
        guest.traps,
        guest.reads
    );
    assert!(guest.worst_ns() <= 250, "{} ns", guest.worst_ns());
    assert_eq!(guest.publisher.state().withdrawn_reason, None);
}

#[test]
fn a_slew_of_500_ppm_costs_one_anchors_life_and_is_followed_from_there() {
    let page = Box::new(Page::zeroed());
    let mut guest = Guest::new(&page, VDSO, Relation::SAME);
    guest.host(|host| host.ntp_ppm = 0.0);
    guest.busy(100_000.0, 10.0);
    for ppm in [500.0, 0.0, -500.0, 0.0] {
        guest.forget();
        guest.host(|host| host.ntp_ppm = ppm);
        guest.busy(100_000.0, 1.5);
        assert!(guest.worst_ns() <= 500_000 + 1_000, "{} ns", guest.worst_ns());
        // 500 us ahead is worked off over the life of an anchor, and the rest in the next.
        guest.busy(100_000.0, 5.0);
        guest.forget();
        guest.busy(100_000.0, 10.0);
        assert!(guest.worst_ns() <= 100, "{} ns at {ppm} ppm", guest.worst_ns());
    }
    assert_eq!(guest.publisher.state().withdrawn_reason, None);
}

/// Delays a host for 40 ms at the nth look that it takes at a clock or the counter, while the kernel's clock is slewed.
/// The guest has had the kernel's time until then.
#[test]
fn a_publisher_that_is_held_up_anywhere_takes_no_time_back() {
    let mut held_up = 0;
    for ppm in [500.0, 100_000.0] {
        for nth in 0.. {
            let page = Box::new(Page::zeroed());
            let mut guest = Guest::new(&page, VDSO, Relation::SAME);
            guest.host(|host| host.ntp_ppm = 0.0);
            guest.busy(100_000.0, 3.0);
            // The anchor ends, and the guest makes system calls.
            guest.sleep(5.0);
            guest.source().hold_up(nth, ppm);
            guest.publisher.publish().expect("alone");
            let Some(shown_ns) = guest.source().held_up_until_ns() else {
                break;
            };
            held_up += 1;
            guest.last_ns = guest.last_ns.max(shown_ns);
            guest.busy(100.0, 0.000_01);
        }
    }
    assert!(held_up > 100, "at {held_up} places");
}

#[test]
fn an_anchor_that_is_ahead_is_slowed_while_it_lives() {
    let page = Box::new(Page::zeroed());
    let mut guest = Guest::new(&page, VDSO, Relation::SAME);
    guest.host(|host| host.ntp_ppm = 0.0);
    for _ in 0..20 {
        guest.busy(100_000.0, 8.0);
        guest.host(|host| host.ntp_ppm -= 20.0);
        guest.forget();
        guest.busy(50_000.0, 8.0);
        let (ahead_ns, behind_ns) = guest.errors_ns.iter().fold((0, 0), |(ahead, behind), error_ns| {
            (ahead.max(*error_ns), behind.max(-error_ns))
        });
        assert!(ahead_ns < 21_000, "{ahead_ns} ns");
        assert!(behind_ns < 300, "overshot by {behind_ns} ns");
    }
}

#[test]
fn the_rate_over_a_long_sleep_is_not_taken_for_the_present_one() {
    let page = Box::new(Page::zeroed());
    let mut guest = Guest::new(&page, VDSO, Relation::SAME);
    guest.busy(50_000.0, 3.0);
    guest.forget();
    for _ in 0..100 {
        let (seconds, part, ppm) = guest.host(|host| {
            let magnitude = host.random.between(0.5, 3.0);
            (
                10_f64.powf(magnitude),
                host.random.unit(),
                host.random.between(-5.0, 5.0),
            )
        });
        guest.sleep(seconds * part);
        guest.host(|host| host.ntp_ppm += ppm);
        guest.sleep(seconds * (1.0 - part));
        guest.busy(100_000.0, 3.0);
    }
    println!("worst {} ns", guest.worst_ns());
    assert!(guest.worst_ns() <= 200, "{} ns", guest.worst_ns());
}

#[test]
fn a_withdrawal_takes_no_time_back_even_where_the_page_was_ahead() {
    let page = Box::new(Page::zeroed());
    let mut guest = Guest::new(&page, VDSO, Relation::SAME);
    let mono_ns = |guest: &Guest<'_>| {
        let (sec, nsec) = guest.publisher.read(MONOTONIC as u32)?;
        Some(sec * 1_000_000_000 + u64::from(nsec))
    };
    for _ in 0..20 {
        guest.host(|host| host.ntp_ppm = 0.0);
        guest.busy(100_000.0, 10.0);
        guest.host(|host| host.ntp_ppm = -500.0);
        let mut last_ns = 0;
        // Half an anchor's life later the page is some 200 us ahead.
        for _ in 0..500 {
            guest.host(|host| host.advance(1e6));
            last_ns = mono_ns(&guest).unwrap_or(last_ns);
        }
        guest.publisher.withdraw(Reason::Host(0)).expect("alone");
        for _ in 0..100 {
            guest.publisher.publish().expect("alone");
            guest.host(|host| host.advance(10_000.0));
            if let Some(now_ns) = mono_ns(&guest) {
                assert!(now_ns >= last_ns, "{} ns back", last_ns - now_ns);
                last_ns = now_ns;
            }
        }
    }
}

#[test]
fn a_step_of_realtime_is_found_by_the_next_trap_and_moves_no_other_clock() {
    let page = Box::new(Page::zeroed());
    let mut guest = Guest::new(&page, VDSO, Relation::SAME);
    guest.busy(100_000.0, 10.0);
    for step_ns in [3_600_000_000_000, -7_200_000_000_000, 1_000_000, -1_000_000] {
        guest.host(|host| host.real_offset_ns += step_ns);
        guest.forget();
        guest.busy(100_000.0, 2.5);
        assert!(guest.worst_ns() <= 50, "MONOTONIC moved by {} ns", guest.worst_ns());
        guest.host(|host| host.advance(100_000.0));
        while guest.publisher.read(REALTIME as u32).is_none() {
            guest.read();
        }
        let counter = guest.host(|host| host.counter.whole);
        let (sec, nsec) = Reader::new(&page)
            .read(REALTIME as u32, || counter)
            .expect("just served");
        let error_ns = (sec * 1_000_000_000 + u64::from(nsec)).wrapping_sub(guest.host(|host| host.real_ns())) as i64;
        assert!(error_ns.abs() <= 50, "{error_ns} ns after {step_ns} ns");
    }
}

#[test]
fn a_host_that_learns_of_a_step_follows_it_at_once() {
    let page = Box::new(Page::zeroed());
    let mut guest = Guest::new(&page, VDSO, Relation::SAME);
    guest.busy(100_000.0, 10.0);
    while guest.publisher.read(MONOTONIC as u32).is_none() {
        guest.read();
    }
    guest.host(|host| host.real_offset_ns -= 5_000_000_000);
    assert_eq!(guest.publisher.publish_step(), Ok(Refreshed::Published));
    guest.host(|host| host.advance(100_000.0));
    let counter = guest.host(|host| host.counter.whole);
    let (sec, nsec) = Reader::new(&page).read(REALTIME as u32, || counter).expect("in force");
    let error_ns = (sec * 1_000_000_000 + u64::from(nsec)).wrapping_sub(guest.host(|host| host.real_ns())) as i64;
    assert!(error_ns.abs() <= 50, "{error_ns} ns");
}

#[test]
fn a_suspend_and_a_jump_are_noticed_before_the_next_anchor() {
    let suspended: fn(&mut simulated::host::Host) = |host| {
        host.boot_offset_ns += 60_000_000_000;
        host.real_offset_ns += 60_000_000_000;
    };
    let jumped: fn(&mut simulated::host::Host) = |host| host.counter.add(1e10);
    for (harm, reason) in [(suspended, Reason::Suspended), (jumped, Reason::CounterJumped)] {
        let page = Box::new(Page::zeroed());
        let mut guest = Guest::new(&page, VDSO, Relation::SAME);
        guest.busy(100_000.0, 10.0);
        guest.sleep(5.0);
        guest.host(harm);
        guest.read();
        assert_eq!(guest.publisher.state().withdrawn_reason, Some(reason));
        guest.forget();
        guest.busy(100_000.0, 10.0);
        assert!(guest.errors_ns.len() > 1_000, "served again");
        assert!(guest.worst_ns() <= 100, "{} ns", guest.worst_ns());
    }
}

#[test]
fn a_withdrawal_by_the_host_ends_with_the_next_refresh_and_takes_no_time_back() {
    let page = Box::new(Page::zeroed());
    let mut guest = Guest::new(&page, VDSO, Relation::SAME);
    guest.busy(100_000.0, 10.0);
    for _ in 0..1_000 {
        let wait_ns = guest.host(|host| host.random.between(100.0, 1e7));
        guest.busy(wait_ns / 10.0, wait_ns / 1e9);
        guest.publisher.withdraw(Reason::Host(1)).expect("alone");
        let state = guest.publisher.state();
        assert_eq!(
            (state.clocks, state.withdrawn_reason),
            (ClockSet::NONE, Some(Reason::Host(1)))
        );
        let published = guest.publisher.publish();
        assert!(
            matches!(published, Ok(Refreshed::Published | Refreshed::Waiting)),
            "{published:?}"
        );
    }
    assert!(guest.worst_ns() <= 100, "{} ns", guest.worst_ns());
}

#[test]
fn a_guest_with_a_counter_of_its_own_is_served_in_its_counts() {
    let relations = [
        Relation::new(1, 0, 1_u64.wrapping_neg() << 40),
        // A guest of 2.0 GHz, by Intel's ratio and by AMD's; and one that is twice as fast.
        Relation::new(((2.0 / 2.596_144) * (1_u64 << 48) as f64) as u64, 48, 12_345),
        Relation::new(((2.0 / 2.596_144) * (1_u64 << 32) as f64) as u64, 32, 1 << 63),
        Relation::new(2, 0, 0),
    ];
    for relation in relations {
        let page = Box::new(Page::zeroed());
        let mut guest = Guest::new(&page, VDSO, relation.expect("a relation"));
        guest.busy(100_000.0, 5.0);
        guest.forget();
        guest.busy(100_000.0, 20.0);
        assert!(guest.worst_ns() <= 30, "{relation:?}: {} ns", guest.worst_ns());
        assert!(guest.traps <= 80, "{relation:?}: {} traps", guest.traps);
    }
}
