//! A step of CLOCK_REALTIME is followed at once, and moves no other clock. Needs CAP_SYS_TIME; the steps are of 2 ms, to and fro.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastpath_page::ClockSet;
use fastpath_page::reader::Reader;
use fastpath_publisher::evidence::Trust;
use fastpath_publisher::{Publisher, counter};

const STEP_NS: i64 = 2_000_000;
const STEPS: u32 = 20;

/// Ends the other threads when this one is through, or has failed: a test that hangs says nothing.
struct EndOf<'a>(&'a AtomicBool);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[test]
fn a_step_of_realtime_is_followed_at_once() {
    if !step(0) {
        return skip("a_step_of_realtime_is_followed_at_once", "it needs CAP_SYS_TIME");
    }
    let mut publisher = Publisher::new(ClockSet::ALL, Trust::Invariant).expect("a publisher");
    let (page, seeded) = (publisher.page(), publisher.seeded());
    publisher.watch_for_steps();
    let running = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let _end = EndOf(&running);
        scope.spawn(|| publisher.run(|| running.load(Ordering::Relaxed)));
        while !seeded() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Windows have grown to 100 ms by then: what follows a step sooner heard of it.
        std::thread::sleep(Duration::from_millis(500));
        let reader = Reader::new(page.page());
        let read = |id: i32| {
            reader
                .read(id as u32, counter::read)
                .map(|(sec, nsec)| sec as i64 * 1_000_000_000 + i64::from(nsec))
        };
        let mut delays = Vec::new();
        for nth in 0..STEPS {
            let begun = Instant::now();
            let before = read(libc::CLOCK_MONOTONIC).expect("MONOTONIC is served");
            assert!(step(if nth % 2 == 0 { STEP_NS } else { -STEP_NS }));
            let stepped = Instant::now();
            while read(libc::CLOCK_REALTIME)
                .is_none_or(|ours| (ours - kernel(libc::CLOCK_REALTIME)).abs() > STEP_NS / 2)
            {
                assert!(stepped.elapsed() < Duration::from_secs(5), "the step is never followed");
                std::hint::spin_loop();
            }
            delays.push(stepped.elapsed());
            let after = read(libc::CLOCK_MONOTONIC).expect("MONOTONIC is served");
            let elapsed = (after - before) as u128;
            assert!(
                after >= before && elapsed < begun.elapsed().as_nanos() + 1_000_000,
                "MONOTONIC moved with REALTIME"
            );
            std::thread::sleep(Duration::from_millis(30));
        }
        delays.sort();
        let median = delays[delays.len() / 2];
        println!(
            "followed after {median:?} (median), {:?} (worst of {STEPS})",
            delays[delays.len() - 1]
        );
        // A publisher that only looks every 100 ms would need 50 ms in the median.
        assert!(median < Duration::from_millis(10), "{delays:?}");
    });
}

fn kernel(clock: i32) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid timespec.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Sets CLOCK_REALTIME forward or back (clock_adjtime(2), ADJ_SETOFFSET).
fn step(ns: i64) -> bool {
    // SAFETY: timex is plain old data for which all zeroes is valid.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    timex.modes = libc::ADJ_SETOFFSET | libc::ADJ_NANO;
    timex.time.tv_sec = ns.div_euclid(1_000_000_000);
    timex.time.tv_usec = ns.rem_euclid(1_000_000_000);
    // SAFETY: a valid timex.
    unsafe { libc::clock_adjtime(libc::CLOCK_REALTIME, &mut timex) >= 0 }
}

fn skip(name: &str, reason: &str) {
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("FASTPATH_SKIPS")
        && let Ok(mut file) = std::fs::File::options().append(true).create(true).open(path)
    {
        let _ = file.write_all(format!("{name}: {reason}\n").as_bytes());
    }
}
