//! Many pages of one publisher: each is right, and all of them change at one moment.

mod clock_lock;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastpath_page::{ClockSet, Reader};
use fastpath_publish::evidence::Trust;
use fastpath_publish::host::{Reason, init};
use fastpath_publish::{Handle, Member, Offsets, Publisher};
use fastpath_publish::{SharedPage, counter};

const HOUR_NS: i64 = 3_600_000_000_000;

fn member(clocks: ClockSet, offsets: Offsets) -> Arc<Member> {
    let page = SharedPage::create_as(fastpath_page::MEMFD_NAME, Some(1)).expect("a page");
    page.writer().init(&init::of_this_host());
    Arc::new(Member { page, clocks, offsets })
}

fn refreshes(member: &Member) -> u64 {
    member.page.page().stats.refreshes.load(Ordering::Relaxed)
}

fn reason(member: &Member) -> u32 {
    member.page.page().stats.withdrawn_reason.load(Ordering::Relaxed)
}

fn read(member: &Member, clock: libc::clockid_t) -> Option<i64> {
    Reader::new(member.page.page())
        .read(clock as u32, counter::read)
        .map(|(sec, nsec)| sec as i64 * 1_000_000_000 + i64::from(nsec))
}

fn kernel(clock: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Timeout, longer than a busy machine needs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until `what` holds.
fn until(mut what: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < TIMEOUT, "it never came to that");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `work` while a publisher runs.
fn with_publisher(work: impl FnOnce(&Handle)) {
    let (mut publisher, handle) = Publisher::new(ClockSet::ALL, Trust::Invariant).expect("a publisher");
    publisher.watch_for_steps();
    let over = Arc::new(AtomicBool::new(false));
    let theirs = over.clone();
    let thread = std::thread::spawn(move || publisher.run(|| !theirs.load(Ordering::Relaxed)));
    let end = EndOf(&over);
    work(&handle);
    drop(end);
    thread.join().expect("the publisher");
}

struct EndOf<'a>(&'a AtomicBool);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn time_goes_forward_from_page_to_page_and_every_answer_is_the_kernels() {
    let _clock = clock_lock::ClockLock::shared();
    with_publisher(|handle| {
        let members: Vec<_> = (0..300)
            .map(|nth| {
                let offsets = Offsets {
                    monotonic_ns: i64::from(nth % 3) * HOUR_NS,
                    boottime_ns: 0,
                };
                member(ClockSet::ALL, offsets)
            })
            .collect();
        for (id, member) in members.iter().enumerate() {
            handle.add(id as u64, member.clone());
        }
        until(|| {
            members
                .iter()
                .all(|member| read(member, libc::CLOCK_MONOTONIC).is_some())
        });
        let latest = AtomicU64::new(0);
        let answered = AtomicU64::new(0);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (members, latest, answered, over) = (&members, &latest, &answered, &over);
                scope.spawn(move || {
                    let mut at = thread * 100;
                    while !over.load(Ordering::Relaxed) {
                        at = (at + 1) % members.len();
                        let member = &members[at];
                        // No page may show an earlier time than any thread has read before from any page.
                        let shown = latest.load(Ordering::Acquire);
                        let before = kernel(libc::CLOCK_MONOTONIC);
                        let ours = read(member, libc::CLOCK_MONOTONIC);
                        let after = kernel(libc::CLOCK_MONOTONIC);
                        let Some(ours) = ours.map(|ns| ns - member.offsets.monotonic_ns) else {
                            continue;
                        };
                        assert!(ours as u64 >= shown, "{} ns back", shown as i64 - ours);
                        assert!(ours + 1000 >= before && ours <= after + 1000, "{before} {ours} {after}");
                        latest.fetch_max(ours as u64, Ordering::AcqRel);
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let _end = EndOf(&over);
            // Clients come and go meanwhile.
            for id in 1_000..1_100 {
                let guest = member(ClockSet::HRES, Offsets::default());
                handle.add(id, guest.clone());
                until(|| read(&guest, libc::CLOCK_MONOTONIC).is_some());
                handle.remove(id);
            }
            until(|| answered.load(Ordering::Relaxed) > 1_000_000);
        });
    });
}

#[test]
fn each_page_answers_its_own_clocks_with_its_namespaces_offsets() {
    let _clock = clock_lock::ClockLock::shared();
    with_publisher(|handle| {
        let offsets = Offsets {
            monotonic_ns: HOUR_NS + 1,
            boottime_ns: -7_000_000_001,
        };
        let all = member(ClockSet::ALL, Offsets::default());
        let inside = member(ClockSet::ALL, offsets);
        let few = member(ClockSet::REALTIME | ClockSet::MONOTONIC_RAW, offsets);
        for (id, member) in [&all, &inside, &few].into_iter().enumerate() {
            handle.add(id as u64, member.clone());
        }
        until(|| {
            [&all, &inside, &few]
                .iter()
                .all(|member| read(member, libc::CLOCK_MONOTONIC_RAW).is_some())
        });
        for (clock, expected_ns) in [
            (libc::CLOCK_MONOTONIC, offsets.monotonic_ns),
            (libc::CLOCK_MONOTONIC_RAW, offsets.monotonic_ns),
            (libc::CLOCK_BOOTTIME, offsets.boottime_ns),
            (libc::CLOCK_REALTIME, 0),
            (libc::CLOCK_TAI, 0),
        ] {
            let mut difference = None;
            until(|| {
                // Both at one value of the counter, so the difference is exact.
                let at = counter::read();
                let ns = |member: &Member| {
                    Reader::new(member.page.page())
                        .read(clock as u32, || at)
                        .map(|(sec, nsec)| sec as i64 * 1_000_000_000 + i64::from(nsec))
                };
                difference = ns(&inside).zip(ns(&all)).map(|(inside, all)| inside - all);
                difference.is_some()
            });
            assert_eq!(difference, Some(expected_ns), "clock {clock}");
        }
        until(|| read(&few, libc::CLOCK_REALTIME).is_some());
        assert_eq!(read(&few, libc::CLOCK_MONOTONIC), None);
    });
}

#[test]
fn who_scribbles_over_his_page_lies_to_himself_alone() {
    with_publisher(|handle| {
        let [honest, liar] = [0, 1].map(|_| member(ClockSet::ALL, Offsets::default()));
        handle.add(0, honest.clone());
        handle.add(1, liar.clone());
        until(|| read(&liar, libc::CLOCK_MONOTONIC).is_some());
        let latch = &liar.page.page().hres;
        let before = refreshes(&honest);
        // An honest reader is still served.
        until(|| {
            for _ in 0..20 {
                // A publisher that believed an anchor that begins in a hundred years would wait for it.
                for copy in &latch.copy {
                    copy.base_cycles.store(u64::MAX / 4, Ordering::Relaxed);
                    copy.clocks.store(u32::MAX, Ordering::Relaxed);
                }
                latch.copy[0].seq.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(50));
            }
            refreshes(&honest) > before + 20 && read(&honest, libc::CLOCK_MONOTONIC).is_some()
        });
    });
}

#[test]
fn an_adopted_page_leaves_reads_to_the_kernel_until_its_refresh() {
    let page = member(ClockSet::ALL, Offsets::default());
    with_publisher(|handle| {
        handle.add(0, page.clone());
        until(|| read(&page, libc::CLOCK_MONOTONIC).is_some());
    });
    // Its anchor outlives the publisher, until its max age.
    assert_ne!(page.page.page().hres.copy[0].clocks.load(Ordering::Relaxed), 0);
    let before = refreshes(&page);
    assert!(before > 0);
    with_publisher(|handle| {
        handle.add(0, page.clone());
        until(|| refreshes(&page) != before);
        until(|| read(&page, libc::CLOCK_MONOTONIC).is_some());
    });
}

#[test]
fn a_page_that_was_ahead_waits_for_the_kernel_and_delays_no_other() {
    const AHEAD_NS: u64 = 500_000_000;
    /// More than a publisher is ahead of the kernel.
    const NEAR_NS: u64 = 20_000_000;
    with_publisher(|handle| {
        // The page of a publisher that was ahead of the kernel when it ended.
        let ahead = member(ClockSet::ALL, Offsets::default());
        let rate = fastpath_page::Rate { mult: 1, shift: 0 };
        let shown_ns = kernel(libc::CLOCK_MONOTONIC) as u64 + AHEAD_NS;
        let anchor = fastpath_page::Anchor {
            clocks: ClockSet::MONOTONIC,
            base_cycles: counter::read(),
            rate,
            cap_cycles: 1_000,
            base: [fastpath_page::Base::from_ns_shifted(u128::from(shown_ns), rate.shift); 4],
            utc_error: Default::default(),
        };
        ahead
            .page
            .writer()
            .publish_hres(&anchor, counter::read)
            .expect("it is new");
        let other = member(ClockSet::ALL, Offsets::default());
        handle.add(1, ahead.clone());
        handle.add(2, other.clone());
        until(|| read(&other, libc::CLOCK_MONOTONIC).is_some());
        until(|| {
            let said = (refreshes(&ahead), reason(&ahead));
            let served_ns = read(&ahead, libc::CLOCK_MONOTONIC);
            if (kernel(libc::CLOCK_MONOTONIC) as u64) < shown_ns - NEAR_NS {
                assert_eq!(
                    said,
                    (0, Reason::NewPublisher.code()),
                    "of a page that answers nothing yet"
                );
                assert_eq!(served_ns, None, "after {shown_ns}");
            }
            served_ns.is_some_and(|served_ns| {
                assert!(served_ns as u64 >= shown_ns, "{served_ns}, after {shown_ns}");
                true
            })
        });
        until(|| refreshes(&ahead) > 0 && reason(&ahead) == 0);
    });
}
