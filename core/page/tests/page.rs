//! The guarantees of a page to its readers.
#![cfg(not(loom))]

use std::cell::Cell;

use fastpath_page::layout::{ABI, FLAG_CPU_SEGMENT, MAGIC, fields, structs};
use fastpath_page::{
    Anchor, Base, ClockSet, Init, PAGE_SIZE, Page, PageError, PublishError, Rate, Reader, Reason, Stats, Watch,
    Withdrawal, Writer, check, publish_all,
};

fn bytes_of(page: &Page) -> Vec<u8> {
    // SAFETY: a page is plain atomics without padding, and no thread writes to this one.
    let head = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(page).cast::<u8>(), size_of::<Page>()) };
    let mut bytes = head.to_vec();
    bytes.resize(PAGE_SIZE, 0);
    bytes
}

fn initialised() -> Vec<u8> {
    let page = Page::zeroed();
    Writer::new(&page).init(&Init {
        hres_res_ns: 1,
        coarse_res_ns: 4_000_000,
        flags: FLAG_CPU_SEGMENT,
        ..Init::default()
    });
    bytes_of(&page)
}

fn anchor(base_cycles: u64, sec: u64) -> Anchor {
    Anchor {
        clocks: ClockSet::HRES,
        base_cycles,
        rate: Rate {
            mult: 1 << 31,
            shift: 31,
        },
        cap_cycles: 1_000_000,
        base: [Base { sec, nsec_shifted: 0 }; 4],
        utc_error: Default::default(),
    }
}

#[test]
fn an_initialised_page_is_accepted() {
    assert_eq!(check(&initialised()), Ok(()));
}

#[test]
fn a_truncated_page_is_refused() {
    for length in [0, 7, 128, PAGE_SIZE - 1] {
        assert_eq!(
            check(&initialised()[..length]),
            Err(PageError::Truncated { found: length })
        );
    }
}

#[test]
fn garbage_and_a_page_without_a_finished_header_are_refused() {
    assert_eq!(check(&[0; PAGE_SIZE]), Err(PageError::Magic { found: 0 }));
    assert_eq!(check(&[0xff; PAGE_SIZE]), Err(PageError::Magic { found: u64::MAX }));
}

#[test]
fn a_page_of_another_version_or_size_is_refused() {
    let mut page = initialised();
    page[12] ^= 1;
    let expected = size_of::<Page>() as u32;
    assert_eq!(
        check(&page),
        Err(PageError::Size {
            found: expected ^ 1,
            expected
        })
    );
    page[8..12].copy_from_slice(&(ABI + 1).to_ne_bytes());
    let refused = check(&page).expect_err("another version");
    assert_eq!(refused, PageError::Abi { found: ABI + 1 });
    assert_eq!(
        refused.to_string(),
        "the page has layout version 2; this fastpath reads version 1"
    );
}

#[test]
fn the_header_says_what_it_was_given() {
    let page = initialised();
    let word = |at: usize| u32::from_ne_bytes(page[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(&page[..8], &MAGIC.to_le_bytes());
    assert_eq!((word(16), word(20), word(24)), (1, 4_000_000, FLAG_CPU_SEGMENT));
}

#[test]
fn the_layout_table_covers_every_byte_of_every_struct() {
    for of in structs() {
        let mut end = 0;
        for field in fields().iter().filter(|field| field.struct_name == of.name) {
            assert_eq!(field.offset, end, "{} {}", of.name, field.field);
            end += field.size;
        }
        assert_eq!(end, of.size, "{}", of.name);
    }
}

#[test]
fn a_new_anchor_answers_from_its_base_on_and_the_one_before_it_until_then() {
    let page = Page::zeroed();
    let (writer, reader) = (Writer::new(&page), Reader::new(&page));
    writer.publish_hres(&anchor(1_000, 10), || 1_000).expect("first");
    writer.publish_hres(&anchor(2_000, 20), || 1_500).expect("second");
    assert_eq!(reader.read(1, || 1_999), Some((10, 999)));
    assert_eq!(reader.read(1, || 2_000), Some((20, 0)));
    assert_eq!(reader.read(1, || 999), None, "before both");
}

#[test]
fn clocks_that_an_anchor_does_not_hold_are_left_to_the_kernel() {
    let page = Page::zeroed();
    let mut only_monotonic = anchor(1_000, 10);
    only_monotonic.clocks = ClockSet::MONOTONIC;
    Writer::new(&page)
        .publish_hres(&only_monotonic, || 1_000)
        .expect("first");
    let reader = Reader::new(&page);
    assert!(reader.read(1, || 1_500).is_some());
    for id in [0, 2, 3, 4, 5, 6, 7, 8, 9, 11, 31, 32, 1 << 20, u32::MAX] {
        assert_eq!(reader.read(id, || 1_500), None, "clock {id}");
    }
}

#[test]
fn the_raw_clock_has_an_anchor_of_its_own() {
    let page = Page::zeroed();
    let mut raw = anchor(1_000, 77);
    raw.clocks = ClockSet::MONOTONIC_RAW;
    let (writer, reader) = (Writer::new(&page), Reader::new(&page));
    publish_all([&writer], None, Some(&raw), 0, || 1_000, || false).expect("first");
    assert_eq!(reader.read(4, || 1_005), Some((77, 5)));
    assert_eq!(reader.read(1, || 1_005), None);
    assert_eq!((writer.hres(), writer.raw()), (None, Some(raw)));
}

#[test]
fn a_late_anchor_is_refused_on_all_pages() {
    // The counter passes the new base before publishing begins; when one page was cut there, or both.
    for in_time in [0, 2, 3] {
        let pages = [Page::zeroed(), Page::zeroed()];
        let writers = pages.each_ref().map(Writer::new);
        publish_all(&writers, Some(&anchor(1_000, 10)), None, 0, || 1_000, || false).expect("first");
        let looks = Cell::new(0);
        let look = || match looks.replace(looks.get() + 1) {
            look if look < in_time => 1_900,
            _ => 2_000,
        };
        let refused = publish_all(&writers, Some(&anchor(2_000, 20)), None, 0, look, || false);
        let (counter, base_cycles) = (2_000, 2_000);
        if in_time == 0 {
            assert_eq!(refused, Err(PublishError::TooLate { counter, base_cycles }));
        } else {
            assert_eq!(refused, Err(PublishError::Ended { counter, base_cycles }));
        }
        for reader in pages.each_ref().map(Reader::new) {
            // A reader of either page may have had the kernel's time since it was cut.
            let answer = (in_time == 0).then_some((10, 1_000));
            assert_eq!(reader.read(0, || 2_000), answer);
            assert_eq!(reader.floor(0, || 2_000), Some((10, 1_000)));
        }
        // The next takes over from the old one, or from the kernel.
        let now = if in_time == 0 { 2_600 } else { 3_000 };
        publish_all(&writers, Some(&anchor(3_000, 30)), None, 0, || now, || false).expect("the next");
    }
}

#[test]
fn an_anchor_may_begin_in_the_past_where_nobody_reads_the_old_one_any_more() {
    let page = Page::zeroed();
    let (writer, reader) = (Writer::new(&page), Reader::new(&page));
    writer.publish_hres(&anchor(1_000, 10), || 1_000).expect("first");
    writer
        .publish_hres(&anchor(1_002_000, 20), || 1_500_000)
        .expect("the first has ended at 1 001 000");
    assert_eq!(reader.read(0, || 1_500_000), Some((20, 498_000)));
}

#[test]
fn an_anchor_is_refused_while_the_one_in_force_has_not_begun() {
    let page = Page::zeroed();
    let writer = Writer::new(&page);
    writer.publish_hres(&anchor(1_000, 10), || 1_000).expect("first");
    writer.publish_hres(&anchor(2_000, 20), || 1_500).expect("second");
    let refused = writer.publish_hres(&anchor(3_000, 30), || 1_999);
    assert_eq!(
        refused,
        Err(PublishError::TooEarly {
            counter: 1_999,
            base_cycles: 2_000
        })
    );
    assert_eq!(Reader::new(&page).read(0, || 1_999), Some((10, 999)));
}

#[test]
fn a_withdrawn_page_says_why_and_answers_again_after_the_next_anchor() {
    let page = Page::zeroed();
    let (writer, reader) = (Writer::new(&page), Reader::new(&page));
    writer.publish_hres(&anchor(1_000, 10), || 1_000).expect("first");
    writer.withdraw(Reason::RateImplausible, || 1_500);
    assert_eq!(reader.read(0, || 1_500), None);
    assert_eq!(reader.stats().withdrawn_reason, Some(Reason::RateImplausible));
    writer
        .publish_hres(&anchor(1_600, 20), || 1_700)
        .expect("no reader uses the old one");
    let stats = Stats {
        refreshes: 2,
        residual_ns: -4,
        publisher_pid: 1,
        withdrawn_reason: None,
    };
    writer.set_stats(&stats);
    assert_eq!(reader.read(0, || 1_700), Some((20, 100)));
    assert_eq!(reader.stats(), stats);
}

#[test]
fn the_set_of_clocks_lists_its_ids() {
    assert_eq!(ClockSet::ALL.iter().collect::<Vec<_>>(), [0, 1, 4, 7, 11]);
    assert!(ClockSet::HRES.contains(ClockSet::TAI) && !ClockSet::HRES.contains(ClockSet::MONOTONIC_RAW));
    assert_eq!(ClockSet::of_id(5), ClockSet::NONE);
    assert_eq!(ClockSet::of_id(99), ClockSet::NONE);
}

#[test]
fn an_anchor_is_refused_where_a_reader_could_still_look_ahead_past_its_base() {
    let page = Page::zeroed();
    let writers = [Writer::new(&page)];
    publish_all(&writers, Some(&anchor(1_000, 10)), None, 100, || 1_000, || false).expect("first");
    let refused = publish_all(&writers, Some(&anchor(2_000, 20)), None, 100, || 1_900, || false);
    assert!(matches!(refused, Err(PublishError::TooLate { .. })), "{refused:?}");
    publish_all(&writers, Some(&anchor(2_000, 20)), None, 100, || 1_899, || false).expect("in time");
}

#[test]
fn a_page_remembers_its_last_withdrawals_and_how_many_there_were() {
    let page = Page::zeroed();
    let (writer, reader) = (Writer::new(&page), Reader::new(&page));
    assert_eq!(reader.history().count(), 0);
    let nth = |nth: u32| Withdrawal {
        boottime_ns: 1_000 * u64::from(nth),
        reason: Reason::Host(nth),
        ahead_ns: nth.is_multiple_of(2).then_some(-i64::from(nth)),
    };
    for count in 1..=20 {
        writer.note_withdrawal(&nth(count));
        assert_eq!(reader.withdrawals(), u64::from(count));
        let expected: Vec<_> = (count.saturating_sub(7).max(1)..=count).map(nth).collect();
        assert_eq!(reader.history().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_page_says_how_its_counter_is_watched() {
    let page = Page::zeroed();
    assert_eq!(Reader::new(&page).watch(), Watch::default());
    let watch = Watch {
        warp_tests: 3,
        warp_within_cycles: Some(90),
        allows_non_invariant: true,
    };
    Writer::new(&page).set_watch(&watch);
    assert_eq!(Reader::new(&page).watch(), watch);
}

#[test]
fn what_an_anchor_showed_last_is_a_floor_that_outlives_it() {
    let page = Page::zeroed();
    let (writer, reader) = (Writer::new(&page), Reader::new(&page));
    assert_eq!(reader.floor(1, || 1_000), None);
    writer.publish_hres(&anchor(1_000, 10), || 1_000).expect("first");
    assert_eq!(reader.floor(1, || 1_500), Some((10, 500)), "what it shows now");
    assert_eq!(
        reader.floor(1, || 5_000_000),
        Some((10, 1_000_000)),
        "what it showed last"
    );
    assert_eq!(reader.floor(4, || 1_500), None, "of no other clock");
    // A count is a nanosecond here, and a reader may look ahead by 2000 of them.
    writer.withdraw(Reason::RateImplausible, || 1_500);
    assert_eq!(reader.read(1, || 1_500), None);
    assert_eq!(reader.floor(1, || 5_000_000), Some((10, 2_500)));
    writer.forget(ClockSet::REALTIME);
    assert_eq!(reader.floor(0, || 5_000_000), None);
    assert_eq!(reader.floor(1, || 5_000_000), Some((10, 2_500)));
}

#[test]
fn an_anchor_that_begins_before_what_a_withdrawn_one_showed_is_refused() {
    let page = Page::zeroed();
    let writer = Writer::new(&page);
    writer.publish_hres(&anchor(1_000, 10), || 1_000).expect("first");
    writer.withdraw(Reason::RateImplausible, || 500_000);
    // It showed 501 us at 502 000.
    let mut below = anchor(600_000, 10);
    below.base = [Base {
        sec: 10,
        nsec_shifted: 400_000 << 31,
    }; 4];
    assert_eq!(writer.publish_hres(&below, || 600_000), Err(PublishError::BelowFloor));
    let mut above = below;
    above.base = [Base {
        sec: 10,
        nsec_shifted: 600_000 << 31,
    }; 4];
    assert_eq!(writer.publish_hres(&above, || 600_000), Ok(()));
    // The clock was set back by an hour, which voids the floor.
    writer.withdraw(Reason::RateImplausible, || 700_000);
    let mut another_time = anchor(800_000, 5);
    another_time.clocks = ClockSet::REALTIME;
    assert_eq!(writer.publish_hres(&another_time, || 800_000), Ok(()));
}

#[test]
fn a_clock_that_was_set_is_the_kernels_until_the_next_anchor() {
    let page = Page::zeroed();
    let (writer, reader) = (Writer::new(&page), Reader::new(&page));
    writer.publish_hres(&anchor(1_000, 10), || 1_000).expect("first");
    writer.forget(ClockSet::REALTIME | ClockSet::TAI);
    assert_eq!(reader.read(0, || 1_500), None);
    assert_eq!(reader.read(1, || 1_500), Some((10, 500)));
    writer.publish_hres(&anchor(2_000, 20), || 1_600).expect("the next");
    assert_eq!(reader.read(0, || 1_700), None, "not by the anchor before, either");
    assert_eq!(reader.read(0, || 2_000), Some((20, 0)));
}

#[test]
fn a_change_keeps_away_from_the_base_of_the_anchor_in_force() {
    let page = Page::zeroed();
    let writers = [Writer::new(&page)];
    publish_all(&writers, Some(&anchor(1_000, 10)), None, 100, || 1_000, || false).expect("first");
    // A reader on a CPU whose counter is a little behind may still be before that base.
    let refused = publish_all(&writers, Some(&anchor(9_000, 20)), None, 100, || 1_099, || false);
    assert!(matches!(refused, Err(PublishError::TooEarly { .. })), "{refused:?}");
    publish_all(&writers, Some(&anchor(9_000, 20)), None, 100, || 1_100, || false).expect("late enough");
}

#[test]
fn every_reason_has_a_code_that_is_not_zero_and_reads_as_a_sentence() {
    for code in [1, 2, 3, 5, 6, 7, 1000, 1001, 0x1_0000, u32::MAX, 999] {
        let reason = Reason::from_code(code).expect("a reason");
        assert_eq!(reason.code(), code);
        assert!(reason.to_string().len() > 10, "{reason}");
    }
    assert_eq!(Reason::from_code(0), None);
    assert_eq!(Reason::from_code(8), Some(Reason::Unknown(8)));
    assert_eq!(Reason::from_code(0x1_0005), Some(Reason::Host(5)));
}
