//! A step of CLOCK_REALTIME is followed at once, and moves no other clock. Needs CAP_SYS_TIME; the steps are of 2 ms,
//! to and fro.
//!
//! "At once" means before the next refresh is due. How soon that is depends on the load of the CPU.

mod clock_lock;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastpath_page::reader::Reader;
use fastpath_page::{ClockSet, Page};
use fastpath_publish::evidence::Trust;
use fastpath_publish::host::init;
use fastpath_publish::{Member, Offsets, Publisher, SharedPage, counter};

const STEP_NS: i64 = 2_000_000;
/// Number of steps that must be followed at once.
const STEPS: u32 = 20;
/// Timeout, longer than a busy machine needs.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest window of a publisher with a timer, and an anchor's max age in windows.
const WINDOW_NS: u64 = 100_000_000;
const CAP_WINDOWS: u64 = 4;

/// Ends the other threads when this one returns or panics: a test that hangs reports nothing.
struct EndOf<'a>(&'a AtomicBool);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_step_of_realtime_is_followed_at_once() {
    let _clock = clock_lock::ClockLock::exclusive();
    if !step(0) {
        return skip("a_step_of_realtime_is_followed_at_once", "it needs CAP_SYS_TIME");
    }
    let (mut publisher, handle) = Publisher::new(ClockSet::ALL, Trust::Invariant).expect("a publisher");
    let page = SharedPage::create().expect("a page");
    page.writer().init(&init::of_this_host());
    let member = Arc::new(Member {
        page,
        clocks: ClockSet::ALL,
        offsets: Offsets::default(),
    });
    handle.add(0, member.clone());
    publisher.watch_for_steps();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = EndOf(&over);
        scope.spawn(|| publisher.run(|| !over.load(Ordering::Relaxed)));
        let begun = Instant::now();
        let until = |mut what: Box<dyn FnMut() -> bool + '_>| {
            while !what() {
                assert!(begun.elapsed() < TIMEOUT, "it never came to that");
                std::thread::sleep(Duration::from_micros(100));
            }
        };
        let page = member.page.page();
        until(Box::new(|| cap_ns(page) >= CAP_WINDOWS * WINDOW_NS * 9 / 10));
        let reader = Reader::new(page);
        let ahead = |clock: i32| {
            let before = kernel(clock);
            let (sec, nsec) = reader.read(clock as u32, counter::read)?;
            let ours = sec as i64 * 1_000_000_000 + i64::from(nsec);
            Some((ours - kernel(clock)).max(0) - (before - ours).max(0))
        };
        let (mut steps, mut followed_at_once) = (0, 0);
        while followed_at_once < STEPS {
            assert!(step(if steps % 2 == 0 { STEP_NS } else { -STEP_NS }));
            steps += 1;
            until(Box::new(|| {
                ahead(libc::CLOCK_REALTIME).is_some_and(|ns| ns.abs() < STEP_NS / 2)
            }));
            followed_at_once += u32::from(came_early(page));
            let mut monotonic = None;
            until(Box::new(|| {
                monotonic = ahead(libc::CLOCK_MONOTONIC);
                monotonic.is_some()
            }));
            assert!(
                monotonic.is_some_and(|ns| ns.abs() < STEP_NS / 2),
                "MONOTONIC moved with REALTIME: {monotonic:?} ns"
            );
            // The next step comes at another moment of a window.
            std::thread::sleep(Duration::from_millis(30));
        }
        println!("{followed_at_once} of {steps} steps were followed before a refresh was due");
    });
}

/// Returns the max age of the newest anchor.
fn cap_ns(page: &Page) -> u64 {
    ns_of(page, page.hres.copy[0].cap_cycles.load(Ordering::Relaxed).into())
}

fn ns_of(page: &Page, cycles: u64) -> u64 {
    let newest = &page.hres.copy[0];
    let mult = newest.mult.load(Ordering::Relaxed);
    ((u128::from(cycles) * u128::from(mult)) >> newest.shift.load(Ordering::Relaxed)) as u64
}

/// Returns whether the newest anchor followed the one before it sooner than a refresh does.
fn came_early(page: &Page) -> bool {
    let [newest, before] = [0, 1].map(|at| page.hres.copy[at].base_cycles.load(Ordering::Relaxed));
    ns_of(page, newest.saturating_sub(before)) < WINDOW_NS * 3 / 4
}

fn kernel(clock: i32) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write.
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
