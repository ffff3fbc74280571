//! Model check of the latch's protocol: every interleaving of a writer and readers, and every value that relaxed loads
//! may see.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p fastpath-page --release --test loom`.
//!
//! Each of these changes to the protocol was made once to see that a test fails:
//! - reader: no `fence(Acquire)` before the recheck, or no recheck -> `a_reader_sees_one_whole_anchor`;
//! - writer: no fence between the odd seq and the new anchor's fields -> `a_reader_sees_one_whole_anchor`;
//! - writer: `copy[1]` rewritten before seq turns its readers away ->
//!   `a_reader_of_the_previous_anchor_never_sees_it_rewritten`;
//! - writer: `copy[1]`'s cap not cut at the new base, or the counter not compared after the readers were redirected ->
//!   `time_never_goes_back_when_a_writer_is_late`.
#![cfg(loom)]

use std::cell::Cell;

use fastpath_page::{Anchor, Base, ClockSet, Page, PublishError, Rate, Reader, Reason, Writer};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

const MONOTONIC_ID: u32 = 1;
const INDEX: usize = 1;

/// Stores of one `publish_hres`: seq, 15 fields of `copy[1]`, seq, 15 fields of `copy[0]`, seq.
const STORES_OF_PUBLISH: u32 = 33;

/// Returns an anchor of which every field differs from that of an anchor with another `number`.
fn anchor(number: u64, base_cycles: u64, cap_cycles: u32) -> Anchor {
    Anchor {
        clocks: ClockSet::MONOTONIC,
        base_cycles,
        rate: Rate {
            mult: 1000 + number as u32,
            shift: number as u32,
        },
        cap_cycles,
        base: [Base {
            sec: 100 * number,
            nsec_shifted: 1_000_000 * number,
        }; 4],
    }
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    // Every known bug of a latch needs one or two preemptions; three would take hours.
    model_with_preemptions(2, run);
}

fn model_with_preemptions(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

fn publish(writer: &Writer<'_>, anchor: &Anchor, counter: u64) {
    writer.publish_hres(anchor, || counter).expect("in time");
}

#[test]
fn a_reader_sees_one_whole_anchor() {
    model(|| {
        let page = Arc::new(Page::zeroed());
        let (old, new) = (anchor(1, 1_000, 10_000), anchor(2, 2_000, 10_000));
        publish(&Writer::new(&page), &old, 1_500);
        let reader = {
            let page = page.clone();
            thread::spawn(move || Reader::new(&page).read(MONOTONIC_ID, || 2_500))
        };
        publish(&Writer::new(&page), &new, 1_600);
        let seen = reader.join().expect("reader");
        // None: twice disturbed, or the old anchor has ended and the new one is not in yet.
        assert!(
            [None, old.at(INDEX, 2_500), new.at(INDEX, 2_500)].contains(&seen),
            "{seen:?}"
        );
    });
}

#[test]
fn a_reader_of_the_previous_anchor_never_sees_it_rewritten() {
    // One preemption suffices: the reader's, between its counter read and the copy. Two take minutes.
    model_with_preemptions(1, || {
        let page = Arc::new(Page::zeroed());
        let (first, second, third) = (
            anchor(1, 1_000, 10_000),
            anchor(2, 2_000, 10_000),
            anchor(3, 3_000, 10_000),
        );
        publish(&Writer::new(&page), &first, 1_500);
        publish(&Writer::new(&page), &second, 1_600);
        // The counter is ordered after the load of seq, so a reader that finds a seq of the third anchor's writer reads
        // no smaller counter than that writer did. Nothing more is assumed: the load is relaxed.
        let clock = Arc::new(AtomicU64::new(1_900));
        let reader = {
            let (page, clock) = (page.clone(), clock.clone());
            thread::spawn(move || {
                let counter = Cell::new(0);
                let seen = Reader::new(&page).read(MONOTONIC_ID, || {
                    counter.set(clock.load(Ordering::Relaxed));
                    counter.get()
                });
                (seen, counter.get())
            })
        };
        clock.store(2_500, Ordering::Relaxed);
        publish(&Writer::new(&page), &third, 2_500);
        let (seen, counter) = reader.join().expect("reader");
        let expected = if counter < 2_000 {
            first.at(INDEX, counter)
        } else {
            second.at(INDEX, counter)
        };
        assert!([None, expected].contains(&seen), "{seen:?} at {counter}");
    });
}

#[test]
fn a_writer_that_dies_between_any_two_stores_strands_no_reader() {
    for stores in 0..=STORES_OF_PUBLISH {
        model(move || {
            let page = Arc::new(Page::zeroed());
            let (old, new) = (anchor(1, 1_000, 10_000), anchor(2, 2_000, 10_000));
            publish(&Writer::new(&page), &old, 1_500);
            let writer = {
                let page = page.clone();
                thread::spawn(move || {
                    let writer = Writer::new(&page);
                    writer.dies_after(stores);
                    publish(&writer, &new, 1_600);
                })
            };
            let seen = Reader::new(&page).read(MONOTONIC_ID, || 1_700);
            assert!([None, old.at(INDEX, 1_700)].contains(&seen), "{seen:?}");
            writer.join().expect("writer");

            // Dead or done: undisturbed reads answer from the old anchor up to the new base, whichever copy holds it,
            let reader = Reader::new(&page);
            assert_eq!(reader.read(MONOTONIC_ID, || 1_999), old.at(INDEX, 1_999));
            // and from then on from one whole anchor, or fall back to the kernel.
            let seen = reader.read(MONOTONIC_ID, || 2_500);
            let expected = match stores {
                0..=16 => old.at(INDEX, 2_500),
                17..STORES_OF_PUBLISH => None,
                _ => new.at(INDEX, 2_500),
            };
            assert_eq!(seen, expected);

            // The next publisher continues.
            let next = anchor(3, 3_000, 10_000);
            publish(&Writer::new(&page), &next, 2_600);
            assert_eq!(reader.read(MONOTONIC_ID, || 3_500), next.at(INDEX, 3_500));
        });
    }
}

#[test]
fn a_thread_that_is_told_of_a_new_anchor_never_sees_the_old_one() {
    model(|| {
        let page = Arc::new(Page::zeroed());
        let told = Arc::new(AtomicBool::new(false));
        let (old, new) = (anchor(1, 1_000, 10_000), anchor(2, 2_000, 10_000));
        publish(&Writer::new(&page), &old, 1_500);
        let messenger = {
            let (page, told) = (page.clone(), told.clone());
            thread::spawn(move || {
                if Reader::new(&page).read(MONOTONIC_ID, || 2_500) == new.at(INDEX, 2_500) {
                    told.store(true, Ordering::Release);
                }
            })
        };
        let writer = {
            let page = page.clone();
            thread::spawn(move || publish(&Writer::new(&page), &new, 1_600))
        };
        if told.load(Ordering::Acquire) {
            assert_eq!(Reader::new(&page).read(MONOTONIC_ID, || 2_500), new.at(INDEX, 2_500));
        }
        messenger.join().expect("messenger");
        writer.join().expect("writer");
    });
}

#[test]
fn two_readers_of_one_counter_value_get_one_answer() {
    // The new anchor begins exactly where the old one is, and is slower: only its base says which applies.
    let old = anchor(1, 1_000, 10_000);
    let new = old.rebase_with(2_000, Rate { mult: 900, shift: 1 });
    for (counter, expected) in [
        (1_999, old.at(INDEX, 1_999)),
        (2_000, new.at(INDEX, 2_000)),
        (2_500, new.at(INDEX, 2_500)),
    ] {
        model(move || {
            let page = Arc::new(Page::zeroed());
            // As on a machine: a later read of the counter, by any thread, is never smaller.
            let clock = Arc::new(AtomicU64::new(1_900));
            publish(&Writer::new(&page), &old, 1_500);
            let reader = {
                let (page, clock) = (page.clone(), clock.clone());
                thread::spawn(move || {
                    Reader::new(&page).read(MONOTONIC_ID, || clock.fetch_max(counter, Ordering::AcqRel).max(counter))
                })
            };
            let published = Writer::new(&page).publish_hres(&new, || clock.fetch_add(0, Ordering::AcqRel));
            let seen = reader.join().expect("reader");
            match published {
                Ok(()) => assert!([None, expected].contains(&seen), "{seen:?}"),
                Err(PublishError::TooLate { .. }) => {
                    assert!([None, old.at(INDEX, counter)].contains(&seen), "{seen:?}")
                }
                Err(error) => panic!("{error}"),
            }
        });
    }
}

#[test]
fn time_never_goes_back_when_a_writer_is_late() {
    let old = anchor(1, 1_000, 10_000);
    let new = old.rebase_with(2_000, Rate { mult: 500, shift: 1 });
    model(move || {
        let page = Arc::new(Page::zeroed());
        let clock = Arc::new(AtomicU64::new(1_990));
        publish(&Writer::new(&page), &old, 1_500);
        let reader = {
            let (page, clock) = (page.clone(), clock.clone());
            thread::spawn(move || {
                let reader = Reader::new(&page);
                let tick = || clock.fetch_add(40, Ordering::AcqRel) + 40;
                let first = reader.read(MONOTONIC_ID, tick);
                let second = reader.read(MONOTONIC_ID, tick);
                if let (Some(first), Some(second)) = (first, second) {
                    assert!(second >= first, "{first:?} then {second:?}");
                }
            })
        };
        let _ = Writer::new(&page).publish_hres(&new, || clock.fetch_add(0, Ordering::AcqRel));
        reader.join().expect("reader");
    });
}

#[test]
fn a_withdrawn_page_answers_nothing() {
    model(|| {
        let page = Arc::new(Page::zeroed());
        let (old, new) = (anchor(1, 1_000, 10_000), anchor(2, 2_000, 10_000));
        publish(&Writer::new(&page), &old, 1_500);
        publish(&Writer::new(&page), &new, 1_600);
        let reader = {
            let page = page.clone();
            thread::spawn(move || Reader::new(&page).read(MONOTONIC_ID, || 1_900))
        };
        Writer::new(&page).withdraw(Reason::Warp, || 1_900);
        let seen = reader.join().expect("reader");
        assert!([None, old.at(INDEX, 1_900)].contains(&seen), "{seen:?}");
        for counter in [1_900, 2_500] {
            assert_eq!(Reader::new(&page).read(MONOTONIC_ID, || counter), None);
        }
    });
}
