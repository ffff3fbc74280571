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
//!   `time_never_goes_back_when_a_writer_is_late`;
//! - reader: no second look at the latch after the kernel's answer ->
//!   `a_reader_that_is_stopped_before_it_asks_the_kernel_never_goes_back`;
//! - writer: an anchor that was cut answers again after a change that was too late ->
//!   `time_never_goes_back_where_a_change_is_cancelled`;
//! - writer: an anchor whose readers use the kernel until its base, which is to come ->
//!   `no_anchor_takes_over_from_the_kernel_at_a_later_time`;
//! - writer: no floors in `copy[1]` -> `time_never_goes_back_wherever_a_publisher_stops`;
//! - reader: leaves the page without regard to the floor -> `time_never_goes_back_wherever_a_reader_leaves`;
//! - reader: no floor where the page was withdrawn between its looks ->
//!   `time_never_goes_back_where_another_thread_withdraws_the_page`;
//! - publisher: `forget` at the withdrawal after a sleep, or reader: a limit of floors below the age cap ->
//!   `what_was_shown_after_a_sleep_outlives_the_withdrawal`.
#![cfg(loom)]

use std::cell::Cell;

use fastpath_page::{Anchor, Base, ClockSet, Page, PublishError, Rate, Reader, Reason, Writer, ahead_ns};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

const MONOTONIC_ID: u32 = 1;
const INDEX: usize = 1;

/// Stores of one `publish_hres`: seq, 17 fields of `copy[1]`, seq, 17 fields of `copy[0]`, seq.
const STORES_OF_PUBLISH: u32 = 37;

/// Stores of one `withdraw`: of each latch, two fields of each copy, seq, and both caps; the reason.
const STORES_OF_WITHDRAWAL: u32 = 15;

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
        utc_error: Default::default(),
    }
}

/// Explores `run`, in which the first thread must be the writer: of a store to a word that its thread has loaded, loom
/// does not see that it races with an earlier load by another thread.
fn model(run: impl Fn() + Sync + Send + 'static) {
    // Every known bug of a latch needs one or two preemptions; three would take hours.
    model_with_preemptions(2, run);
}

fn model_with_preemptions(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    // Steps of all threads in one execution: a change that is refused, and made once more, takes more than the usual 1,000.
    builder.max_branches = 4_000;
    // Not one of loom's atomics: it counts the executions.
    let executions = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = executions.clone();
    builder.check(move || {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        run();
    });
    println!(
        "{}: {executions:?} executions",
        std::thread::current().name().unwrap_or("?")
    );
}

fn publish(writer: &Writer<'_>, anchor: &Anchor, counter: u64) {
    writer.publish_hres(anchor, || counter).expect("in time");
}

fn publish_with(writer: &Writer<'_>, anchor: &Anchor, machine: &Machine) -> Result<(), PublishError> {
    fastpath_page::publish_all([writer], Some(anchor), None, 0, || machine.count(), || false)
}

/// Starts a thread that reads the page at this value of the counter.
fn spawn_read(page: &Arc<Page>, counter: u64) -> thread::JoinHandle<Option<(u64, u32)>> {
    let page = page.clone();
    thread::spawn(move || Reader::new(&page).read(MONOTONIC_ID, || counter))
}

#[test]
fn a_reader_sees_one_whole_anchor() {
    model(|| {
        let page = Arc::new(Page::zeroed());
        let (old, new) = (anchor(1, 1_000, 10_000), anchor(2, 2_000, 10_000));
        publish(&Writer::new(&page), &old, 1_500);
        let reader = spawn_read(&page, 2_500);
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
    const MIDDLE: u32 = STORES_OF_PUBLISH / 2;
    for stores in 0..=STORES_OF_PUBLISH {
        // A writer that does not die gets two in `a_reader_sees_one_whole_anchor`.
        model_with_preemptions(1, move || {
            let page = Arc::new(Page::zeroed());
            let (old, new) = (anchor(1, 1_000, 10_000), anchor(2, 2_000, 10_000));
            publish(&Writer::new(&page), &old, 1_500);
            let reader = spawn_read(&page, 1_700);
            let writer = Writer::new(&page);
            writer.dies_after(stores);
            publish(&writer, &new, 1_600);
            let seen = reader.join().expect("reader");
            assert!([None, old.at(INDEX, 1_700)].contains(&seen), "{seen:?}");

            // Dead or done: undisturbed reads answer from the old anchor up to the new base, whichever copy holds it,
            let reader = Reader::new(&page);
            assert_eq!(reader.read(MONOTONIC_ID, || 1_999), old.at(INDEX, 1_999));
            // and from then on from one whole anchor, or fall back to the kernel.
            let seen = reader.read(MONOTONIC_ID, || 2_500);
            // The store in the middle tells readers of the old anchor's shorter life; the last one, of the new anchor.
            let expected = match stores {
                0..=MIDDLE => old.at(INDEX, 2_500),
                ..STORES_OF_PUBLISH => None,
                _ => new.at(INDEX, 2_500),
            };
            assert_eq!(seen, expected);

            // The next publisher continues.
            let next = anchor(3, 3_000, 10_000);
            let writer = Writer::new(&page);
            // Where the old anchor ends at a base that no anchor follows, not before the next base.
            if let Err(PublishError::TooEarly { .. }) = writer.publish_hres(&next, || 2_600) {
                publish(&writer, &next, 3_000);
            }
            assert_eq!(reader.read(MONOTONIC_ID, || 3_500), next.at(INDEX, 3_500));
        });
    }
}

#[test]
fn a_thread_that_is_told_of_a_new_anchor_never_sees_the_old_one() {
    // Two preemptions take more than minutes, with three threads.
    model_with_preemptions(1, || {
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
        let listener = {
            let page = page.clone();
            thread::spawn(move || {
                if told.load(Ordering::Acquire) {
                    assert_eq!(Reader::new(&page).read(MONOTONIC_ID, || 2_500), new.at(INDEX, 2_500));
                }
            })
        };
        publish(&Writer::new(&page), &new, 1_600);
        messenger.join().expect("messenger");
        listener.join().expect("listener");
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
                Err(PublishError::TooLate { .. } | PublishError::Ended { .. }) => {
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
        let reader = spawn_read(&page, 1_900);
        Writer::new(&page).withdraw(Reason::Warp, || 1_900);
        let seen = reader.join().expect("reader");
        assert!([None, old.at(INDEX, 1_900)].contains(&seen), "{seen:?}");
        for counter in [1_900, 2_500] {
            assert_eq!(Reader::new(&page).read(MONOTONIC_ID, || counter), None);
        }
    });
}

/// The counter, and the kernel's clock: a nanosecond a count, until it is slewed or the machine sleeps.
struct Machine {
    counter: AtomicU64,
    /// How far the kernel's clock was slewed forward since the start.
    slewed_ns: AtomicU64,
    /// Counts during which the kernel's clock was asleep.
    slept_cycles: AtomicU64,
}

impl Machine {
    fn new(counter: u64) -> Machine {
        Machine {
            counter: AtomicU64::new(counter),
            slewed_ns: AtomicU64::new(0),
            slept_cycles: AtomicU64::new(0),
        }
    }

    /// Reads the counter. A later read, by any thread, is greater.
    fn count(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn kernel_ns(&self) -> u64 {
        let counter = self.count();
        counter + self.slewed_ns.load(Ordering::Acquire) - self.slept_cycles.load(Ordering::Acquire)
    }

    /// Slews the kernel forward within the next `ns`.
    fn slew(&self, ns: u64) {
        self.counter.fetch_add(ns, Ordering::AcqRel);
        self.slewed_ns.store(ns / 10, Ordering::Release);
    }

    /// Sleeps while the counter goes on. No program runs meanwhile, so the two change in one step for it.
    fn sleep(&self, cycles: u64) {
        self.slept_cycles.store(cycles, Ordering::Release);
        self.counter.fetch_add(cycles, Ordering::AcqRel);
    }

    /// Reads the clock twice, as a program does.
    fn read_twice(&self, page: &Page) {
        let reader = Reader::new(page);
        let read = || reader.answer(MONOTONIC_ID, || self.count(), || (0, self.kernel_ns() as u32));
        let first = read();
        let second = read();
        assert!(second >= first, "{first:?} then {second:?}");
    }

    /// Reads the clock, and once more after the page was taken away: only after the kernel has reached the floor.
    fn read_and_leave(&self, page: &Page) {
        let kernel = || (0, self.kernel_ns() as u32);
        let last = Reader::new(page).answer(MONOTONIC_ID, || self.count(), kernel);
        self.await_floor(page);
        let next = kernel();
        assert!(next >= last, "{last:?} then {next:?}");
    }

    /// Waits until the kernel's clock has reached the floor.
    fn await_floor(&self, page: &Page) {
        if let Some(floor) = Reader::new(page).floor(MONOTONIC_ID, || self.count()) {
            while ahead_ns(floor, (0, self.kernel_ns() as u32)) > 0 {
                self.counter.fetch_add(300, Ordering::AcqRel);
            }
        }
    }
}

/// Starts a thread that reads a machine's clock in one of these ways.
fn spawn(page: &Arc<Page>, machine: &Arc<Machine>, read: fn(&Machine, &Page)) -> thread::JoinHandle<()> {
    let (page, machine) = (page.clone(), machine.clone());
    thread::spawn(move || read(&machine, &page))
}

/// Returns an anchor that shows the counter's value as nanoseconds.
fn anchor_at(base_cycles: u64, cap_cycles: u32) -> Anchor {
    Anchor {
        clocks: ClockSet::MONOTONIC,
        base_cycles,
        rate: Rate { mult: 1, shift: 0 },
        cap_cycles,
        base: [Base {
            sec: 0,
            nsec_shifted: base_cycles,
        }; 4],
        utc_error: Default::default(),
    }
}

#[test]
fn a_reader_that_is_stopped_before_it_asks_the_kernel_never_goes_back() {
    // The first anchor of a page; one after an anchor that has ended; one after an anchor that was withdrawn.
    for before in 0..3 {
        // One preemption suffices: the reader's, before it asks the kernel.
        model_with_preemptions(1, move || {
            let (page, machine) = (Arc::new(Page::zeroed()), Arc::new(Machine::new(2_000)));
            let writer = Writer::new(&page);
            if before > 0 {
                publish(&writer, &anchor_at(1_000, 500), 1_100);
            }
            if before > 1 {
                writer.withdraw(Reason::Warp, || 1_600);
            }
            let reader = spawn(&page, &machine, Machine::read_twice);
            let new = anchor_at(2_000, 10_000);
            publish_with(&writer, &new, &machine).expect("in time");
            machine.slew(1_000);
            reader.join().expect("reader");
        });
    }
}

#[test]
fn time_never_goes_back_where_a_change_is_cancelled() {
    model(|| {
        let (page, machine) = (Arc::new(Page::zeroed()), Arc::new(Machine::new(2_000)));
        publish(&Writer::new(&page), &anchor_at(1_000, 10_000), 1_100);
        // The kernel's clock is ahead of what readers are shown, and the new anchor steps forward to it.
        machine.slew(1_000);
        let new = anchor_at(3_000 + 6, 10_000).offset_by(INDEX, 100);
        let reader = spawn(&page, &machine, Machine::read_twice);
        let _ = publish_with(&Writer::new(&page), &new, &machine);
        reader.join().expect("reader");
    });
}

/// Beside each step of a refresh and of a withdrawal, at which the publisher may also stop, a thread reads in this way.
fn model_each_step(preemptions: usize, read: fn(&Machine, &Page), may_be_late: bool) {
    for (withdraws, stores) in [(false, STORES_OF_PUBLISH), (true, STORES_OF_WITHDRAWAL)] {
        for stores in 0..=stores {
            model_with_preemptions(preemptions, move || {
                let (page, machine) = (Arc::new(Page::zeroed()), Arc::new(Machine::new(2_000)));
                publish(&Writer::new(&page), &anchor_at(1_000, 1_500), 1_100);
                // The kernel's clock is behind what readers are shown until 2,500.
                machine.sleep(300);
                let reader = spawn(&page, &machine, read);
                let writer = Writer::new(&page);
                writer.dies_after(stores);
                if withdraws {
                    writer.withdraw(Reason::Suspended, || machine.count());
                } else {
                    let published = publish_with(&writer, &anchor_at(2_400, 10_000), &machine);
                    let is_late = matches!(
                        published,
                        Err(PublishError::TooLate { .. } | PublishError::Ended { .. })
                    );
                    assert!(published.is_ok() || may_be_late && is_late, "{published:?}");
                }
                machine.counter.fetch_add(300, Ordering::AcqRel);
                reader.join().expect("reader");
            });
        }
    }
}

#[test]
fn time_never_goes_back_wherever_a_publisher_stops() {
    model_each_step(2, Machine::read_twice, false);
}

#[test]
fn time_never_goes_back_wherever_a_reader_leaves() {
    // Too late if the reader has waited for longer.
    model_each_step(1, Machine::read_and_leave, true);
}

#[test]
fn time_never_goes_back_where_another_thread_withdraws_the_page() {
    model(|| {
        let (page, machine) = (Arc::new(Page::zeroed()), Arc::new(Machine::new(2_000)));
        publish(&Writer::new(&page), &anchor_at(1_000, 1_500), 1_100);
        // The anchor has ended, and the kernel's clock is behind what readers are shown.
        machine.sleep(600);
        let reader = spawn(&page, &machine, Machine::read_twice);
        machine.await_floor(&page);
        // As if another page was mapped, with another count and nothing in it.
        page.hres.copy[0].floors.store(0, Ordering::Release);
        page.hres.copy[0].seq.fetch_add(2, Ordering::Release);
        reader.join().expect("reader");
    });
}

#[test]
fn no_anchor_takes_over_from_the_kernel_at_a_later_time() {
    model(|| {
        let (page, machine) = (Arc::new(Page::zeroed()), Arc::new(Machine::new(2_000)));
        let writer = Writer::new(&page);
        publish(&writer, &anchor_at(1_000, 1_010), 1_100);
        let reader = spawn(&page, &machine, Machine::read_twice);
        // The anchor in force ends at 2,010.
        let new = anchor_at(2_100, 10_000);
        let published = publish_with(&writer, &new, &machine);
        assert!(matches!(published, Err(PublishError::TooEarly { .. })), "{published:?}");
        machine.slew(95);
        reader.join().expect("reader");
    });
}

#[test]
fn what_was_shown_after_a_sleep_outlives_the_withdrawal() {
    for slept_cycles in [300_000_000, 399_000_000, 5_000_000_000] {
        model(move || {
            let (page, machine) = (Arc::new(Page::zeroed()), Arc::new(Machine::new(2_000)));
            let writer = Writer::new(&page);
            publish(&writer, &anchor_at(1_000, 400_000_000), 1_100);
            machine.sleep(slept_cycles);
            let reader = spawn(&page, &machine, Machine::read_twice);
            writer.withdraw(Reason::Suspended, || machine.count());
            reader.join().expect("reader");
        });
    }
}
