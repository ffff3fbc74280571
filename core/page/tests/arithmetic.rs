//! Edge cases of an anchor's arithmetic, against exact wide arithmetic.
#![cfg(not(loom))]

use fastpath_page::anchor::{MAX_SHIFT, MAX_UTC_ERROR_NS, NSEC_PER_SEC, UtcError, reshift_up};
use fastpath_page::{Anchor, Base, ClockSet, Page, PublishError, Rate, Reader, Writer};
use proptest::prelude::*;

const MONOTONIC_ID: u32 = 1;
const INDEX: usize = 1;

fn rates() -> impl Strategy<Value = Rate> {
    let mults = prop_oneof![Just(u32::MAX), Just(1 << 31), Just(1), 1..=u32::MAX];
    let shifts = prop_oneof![Just(0), Just(MAX_SHIFT), 0..=MAX_SHIFT];
    (mults, shifts)
        .prop_map(|(mult, shift)| Rate { mult, shift })
        .prop_filter("a cap above 0", |rate| rate.max_cap() > 0)
}

fn anchors() -> impl Strategy<Value = Anchor> {
    let sec = prop_oneof![Just(0), 0..1u64 << 33];
    let base_cycles = prop_oneof![Just(0), any::<u64>(), u64::MAX - 1_000..=u64::MAX];
    (rates(), sec, base_cycles, any::<prop::sample::Index>(), 0..3u8).prop_map(
        |(rate, sec, base_cycles, fraction, edge)| {
            let second = NSEC_PER_SEC << rate.shift;
            let nsec_shifted = match edge {
                0 => 0,
                1 => second - 1,
                _ => (fraction.index(usize::MAX) as u128 * u128::from(second) / usize::MAX as u128) as u64,
            };
            let base = [Base { sec, nsec_shifted }; 4];
            Anchor {
                clocks: ClockSet::HRES,
                base_cycles,
                rate,
                cap_cycles: rate.max_cap(),
                base,
                utc_error: Default::default(),
            }
        },
    )
}

/// Returns counts from the base, with the edges of the cap among them.
fn elapsed(anchor: &Anchor, choice: u8, index: prop::sample::Index) -> u64 {
    let cap = u64::from(anchor.cap_cycles);
    match choice {
        0 => 0,
        1 => cap,
        2 => cap.saturating_sub(1),
        _ => index.index(cap as usize + 1) as u64,
    }
}

fn exact(anchor: &Anchor, elapsed_cycles: u64) -> (u64, u32) {
    let rate = anchor.rate;
    let total = u128::from(elapsed_cycles) * u128::from(rate.mult)
        + u128::from(anchor.base[INDEX].nsec_shifted)
        + (u128::from(anchor.base[INDEX].sec * NSEC_PER_SEC) << rate.shift);
    let ns = total >> rate.shift;
    (
        (ns / u128::from(NSEC_PER_SEC)) as u64,
        (ns % u128::from(NSEC_PER_SEC)) as u32,
    )
}

proptest! {
    #[test]
    fn a_reader_computes_what_exact_arithmetic_does(anchor in anchors(), choice in 0..4u8, index: prop::sample::Index) {
        let utc_error = UtcError { ns: 1_000, mult: anchor.rate.mult / 2 };
        let anchor = Anchor { utc_error, ..anchor };
        prop_assert!(anchor.is_within_limits());
        let elapsed_cycles = elapsed(&anchor, choice, index);
        let counter = anchor.base_cycles.wrapping_add(elapsed_cycles);
        let page = Page::zeroed();
        Writer::new(&page).publish_hres(&anchor, || counter).expect("a first anchor is never late");
        let expected = Some(exact(&anchor, elapsed_cycles));
        prop_assert_eq!(anchor.at(INDEX, counter), expected);
        prop_assert_eq!(Reader::new(&page).read(MONOTONIC_ID, || counter), expected);
        let grown = u128::from(elapsed_cycles) * u128::from(utc_error.mult);
        let error_ns = 1_001 + (grown >> anchor.rate.shift) as u64;
        let now_ns = expected.map(|(sec, nsec)| sec * NSEC_PER_SEC + u64::from(nsec));
        let utc = now_ns.map(|now_ns| (now_ns.saturating_sub(error_ns), now_ns + error_ns));
        prop_assert_eq!(Reader::new(&page).utc(|| counter), utc);
    }

    #[test]
    fn an_anchor_is_published_exactly_if_it_is_within_the_limits(
        anchor in anchors(), breaks in 0..7u8, beyond in 1u32..1000, offset_ns: i64,
    ) {
        let mut broken = anchor;
        match breaks {
            0 => broken.rate.mult = 0,
            1 => broken.rate.shift = MAX_SHIFT + beyond,
            2 => broken.cap_cycles = anchor.cap_cycles.saturating_add(beyond),
            3 => broken.base[INDEX].nsec_shifted = (NSEC_PER_SEC << anchor.rate.shift) + u64::from(beyond - 1),
            4 => broken.utc_error.mult = anchor.rate.mult.saturating_add(beyond),
            5 => broken.utc_error.ns = MAX_UTC_ERROR_NS + u64::from(beyond - 1),
            _ => broken = anchor.offset_by(INDEX, offset_ns),
        }
        let is_within = match breaks {
            2 => broken.cap_cycles <= anchor.rate.max_cap(),
            4 => broken.utc_error.mult <= anchor.rate.mult,
            _ => breaks == 6,
        };
        let page = Page::zeroed();
        let published = Writer::new(&page).publish_hres(&broken, || broken.base_cycles);
        prop_assert_eq!(published, if is_within { Ok(()) } else { Err(PublishError::OutOfLimits(broken)) });
        prop_assert_eq!(Reader::new(&page).read(MONOTONIC_ID, || broken.base_cycles).is_some(), is_within);
    }

    #[test]
    fn a_counter_before_the_base_or_beyond_the_cap_is_left_to_the_kernel(anchor in anchors(), beyond in 1u64..1 << 40) {
        let page = Page::zeroed();
        let writer = Writer::new(&page);
        writer.publish_hres(&anchor, || anchor.base_cycles).expect("a first anchor is never late");
        let end = anchor.base_cycles.wrapping_add(u64::from(anchor.cap_cycles));
        for counter in [anchor.base_cycles.wrapping_sub(beyond), end.wrapping_add(beyond)] {
            prop_assert_eq!(anchor.at(INDEX, counter), None);
            prop_assert_eq!(Reader::new(&page).read(MONOTONIC_ID, || counter), None);
        }
    }

    #[test]
    fn moving_the_base_changes_no_reading(anchor in anchors(), a: prop::sample::Index, b: prop::sample::Index) {
        let (a, b) = (elapsed(&anchor, 3, a), elapsed(&anchor, 3, b));
        let (moved_by, read_at) = (a.min(b), a.max(b));
        let moved = anchor.rebase(anchor.base_cycles.wrapping_add(moved_by));
        prop_assert!(moved.is_within_limits());
        let counter = anchor.base_cycles.wrapping_add(read_at);
        prop_assert_eq!(moved.at(INDEX, counter), anchor.at(INDEX, counter));
    }

    #[test]
    fn a_change_of_rate_takes_no_time_back(
        anchor in anchors(), rate in rates(), index: prop::sample::Index,
    ) {
        let counter = anchor.base_cycles.wrapping_add(elapsed(&anchor, 3, index));
        let next = anchor.rebase_with(counter, rate);
        prop_assert!(next.is_within_limits());
        let (before, after) = (anchor.ns_shifted_at(INDEX, counter), next.ns_shifted_at(INDEX, counter));
        let (before, after) = (before << (MAX_SHIFT - anchor.rate.shift), after << (MAX_SHIFT - rate.shift));
        prop_assert!(after >= before);
        prop_assert!(after - before < 1 << (MAX_SHIFT - rate.shift));
        // No counter from there on reads before the old anchor.
        prop_assert!(next.at(INDEX, counter) >= anchor.at(INDEX, counter));
    }

    #[test]
    fn a_rate_is_as_precise_as_the_limits_allow(ns_per_cycle_q64 in prop_oneof![1u128 << 40..1 << 75, 1u128 << 60..1 << 66]) {
        let rate = Rate::from_ns_per_cycle_q64(ns_per_cycle_q64).expect("in range");
        prop_assert!(rate.shift <= MAX_SHIFT && rate.mult > 0);
        // One more bit would not fit, and the rounding is to nearest.
        prop_assert!(rate.shift == MAX_SHIFT || rate.mult >= (1 << 31) - 1);
        prop_assert!(rate.ns_per_cycle_q64().abs_diff(ns_per_cycle_q64) <= 1 << (63 - rate.shift));
    }

    #[test]
    fn shifting_rounds_up(value in 0u128..1 << 90, from in 0u32..34, to in 0u32..34) {
        let shifted = reshift_up(value, from, to);
        prop_assert!((shifted << from) >= (value << to));
        prop_assert!((shifted << from) - (value << to) < 1 << from.max(to));
    }
}

#[test]
fn a_rate_that_no_page_can_hold_is_refused() {
    assert_eq!(Rate::from_ns_per_cycle_q64(0), None);
    assert_eq!(Rate::from_ns_per_cycle_q64(1 << 20), None, "a counter of 10^22 Hz");
    assert_eq!(
        Rate::from_ns_per_cycle_q64(1 << 96),
        None,
        "a counter that counts every four seconds"
    );
    assert_eq!(Rate::from_ns_per_cycle_q64(u128::MAX), None);
}

#[test]
fn the_largest_rate_of_two_gigahertz_carries_into_the_next_second() {
    let rate = Rate::from_ns_per_cycle_q64((1 << 63) - (1 << 32)).expect("just above 2 GHz");
    assert_eq!(
        rate,
        Rate {
            mult: u32::MAX - 1,
            shift: MAX_SHIFT
        }
    );
    let base = [Base {
        sec: 41,
        nsec_shifted: (NSEC_PER_SEC << MAX_SHIFT) - 1,
    }; 4];
    let anchor = Anchor {
        clocks: ClockSet::MONOTONIC,
        base_cycles: 0,
        rate,
        cap_cycles: rate.max_cap(),
        base,
        utc_error: Default::default(),
    };
    assert_eq!(anchor.at(INDEX, 0), Some((41, 999_999_999)));
    assert_eq!(anchor.at(INDEX, 1), Some((42, 0)));
    assert_eq!(anchor.at(INDEX, u64::from(anchor.cap_cycles)), Some((42, 999_999_999)));
}
