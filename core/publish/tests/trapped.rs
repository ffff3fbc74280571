//! The advice to a host about a system call of its guest, and the effect of a guest that makes false statements.

mod simulated;

use fastpath_publish::host::{Advice, Page, Refreshed, Relation, Trap};
use simulated::host::{Random, VDSO};
use simulated::{Guest, IMAGE, MONOTONIC, REALTIME, SYSTEM_CALLS};

const GETCPU: i32 = -1;
const PROCESS_CPUTIME: i32 = 2;

/// Returns a guest whose page holds an anchor that lives for about a second.
fn served(page: &Page) -> Guest<'_> {
    let mut guest = Guest::new(page, VDSO, Relation::SAME);
    guest.busy(100_000.0, 5.0);
    while guest.publisher.read(MONOTONIC as u32).is_none() {
        guest.read();
    }
    guest
}

fn trap(guest: &Guest<'_>, pc: u64, clock_id: i32, answered_ns: Option<u64>) -> Advice {
    guest.publisher.trapped(&Trap {
        system_calls: &SYSTEM_CALLS,
        image_address: IMAGE,
        pc,
        clock_id,
        answered_ns,
    })
}

const SITE: u64 = IMAGE + SYSTEM_CALLS[1];

#[test]
fn a_page_without_an_anchor_is_to_be_seeded() {
    let page = Box::new(Page::zeroed());
    let guest = Guest::new(&page, VDSO, Relation::SAME);
    assert_eq!(trap(&guest, SITE, MONOTONIC, None), Advice::Seed);
    assert_eq!(
        guest.publisher.publish(),
        Ok(Refreshed::Waiting),
        "one sample knows no rate"
    );
    assert_eq!(
        trap(&guest, SITE, MONOTONIC, None),
        Advice::LeaveAlone,
        "a second sample at once would not either"
    );
    // Brackets of 30 ns tell the rate well enough at the third sample.
    for (wait_ns, refreshed) in [(100_000.0, Refreshed::Waiting), (200_000.0, Refreshed::Published)] {
        guest.host(|host| host.advance(wait_ns));
        assert_eq!(trap(&guest, SITE, MONOTONIC, None), Advice::Seed);
        assert_eq!(guest.publisher.publish(), Ok(refreshed));
    }
    guest.host(|host| host.advance(1_000.0));
    assert_eq!(trap(&guest, SITE, MONOTONIC, None), Advice::LeaveAlone);
}

#[test]
fn an_anchor_that_is_too_old_is_to_be_refreshed() {
    let page = Box::new(Page::zeroed());
    let mut guest = served(&page);
    assert_eq!(trap(&guest, SITE, MONOTONIC, None), Advice::LeaveAlone);
    guest.sleep(1.1);
    assert_eq!(trap(&guest, SITE, MONOTONIC, None), Advice::Refresh);
    assert_eq!(trap(&guest, SITE, REALTIME, None), Advice::Refresh);
    assert_eq!(guest.publisher.publish(), Ok(Refreshed::Published));
    assert_eq!(trap(&guest, SITE, MONOTONIC, None), Advice::LeaveAlone);
}

#[test]
fn an_anchor_more_than_100_ms_from_the_hosts_answer_is_to_be_refreshed() {
    let page = Box::new(Page::zeroed());
    let guest = served(&page);
    guest.host(|host| host.advance(2e6));
    for (clock_id, now_ns) in [
        (MONOTONIC, guest.host(|host| host.mono_ns())),
        (REALTIME, guest.host(|host| host.real_ns())),
    ] {
        let answered = |ns: i64| Some(now_ns.wrapping_add_signed(ns));
        for (off_ns, advice) in [
            (0, Advice::LeaveAlone),
            (99_000_000, Advice::LeaveAlone),
            (-99_000_000, Advice::LeaveAlone),
            (101_000_000, Advice::Refresh),
            (-101_000_000, Advice::Refresh),
        ] {
            assert_eq!(
                trap(&guest, SITE, clock_id, answered(off_ns)),
                advice,
                "{clock_id}: {off_ns} ns"
            );
        }
    }
}

#[test]
fn calls_that_are_none_of_the_images_or_about_no_served_clock_are_left_alone() {
    let page = Box::new(Page::zeroed());
    let guest = Guest::new(&page, VDSO, Relation::SAME);
    // The page is unseeded, so a call that counted would return `Seed`.
    for pc in [
        0,
        IMAGE,
        SITE - 1,
        SITE + 1,
        SITE - 2,
        SYSTEM_CALLS[1],
        SITE + 4096,
        u64::MAX,
    ] {
        assert_eq!(trap(&guest, pc, MONOTONIC, None), Advice::LeaveAlone, "{pc:#x}");
    }
    for clock_id in [GETCPU, PROCESS_CPUTIME, 3, 5, 6, 12, 31, 32, 33, i32::MAX, i32::MIN] {
        assert_eq!(trap(&guest, SITE, clock_id, None), Advice::LeaveAlone, "{clock_id}");
    }
    assert_eq!(trap(&guest, SITE, MONOTONIC, None), Advice::Seed);
}

#[test]
fn a_guest_that_lies_changes_nothing_and_costs_few_samples() {
    let page = Box::new(Page::zeroed());
    let mut guest = served(&page);
    let mut random = Random::seeded();
    let begun_ns = guest.host(|host| host.elapsed_ns);
    let mut samples = 0;
    while guest.host(|host| host.elapsed_ns) < begun_ns + 10e9 {
        // The guest knows where the image's system calls are, and goes there with any registers, as often as it can.
        let pc = if random.chance(0.7) { SITE } else { random.next() };
        let clock_id = if random.chance(0.7) {
            MONOTONIC
        } else {
            random.next() as i32
        };
        let before = image_of(&page);
        let advice = trap(&guest, pc, clock_id, None);
        assert_eq!(image_of(&page), before, "trapped() only looks");
        if advice != Advice::LeaveAlone {
            samples += 1;
            guest.publisher.publish().expect("alone");
        }
        guest.host(|host| host.advance(20_000.0));
        guest.read();
    }
    assert!(samples <= 11, "{samples} samples in 10 s");
    assert!(guest.worst_ns() <= 50, "{} ns", guest.worst_ns());
}

#[test]
fn an_answer_that_stays_far_off_costs_a_sample_in_a_millisecond_at_most() {
    let page = Box::new(Page::zeroed());
    let guest = served(&page);
    let mut samples = 0;
    for _ in 0..1_000 {
        // A host that answers from another clock than it publishes.
        if trap(&guest, SITE, MONOTONIC, Some(1)) != Advice::LeaveAlone {
            samples += 1;
            guest.publisher.publish().expect("alone");
        }
        guest.host(|host| host.advance(10_000.0));
    }
    assert!(samples <= 11, "{samples} samples in 10 ms");
}

#[test]
fn a_host_whose_clock_was_set_back_is_not_waited_for() {
    let page = Box::new(Page::zeroed());
    let mut guest = served(&page);
    guest.sleep(5.0);
    // The host was restored from a snapshot.
    guest.host(|host| host.mono = simulated::host::Accumulator::new(1_000_000_000));
    assert_eq!(trap(&guest, SITE, MONOTONIC, None), Advice::Refresh);
}

/// Returns all that readers see.
fn image_of(page: &Page) -> Vec<u8> {
    let bytes: *const Page = page;
    // SAFETY: a page is plain memory, and no thread writes it now.
    unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size_of::<Page>()) }.to_vec()
}
