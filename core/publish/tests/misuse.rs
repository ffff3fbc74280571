//! Concurrent calls, in threads and in signal handlers: one works, the other returns [`Busy`], and readers are not
//! affected.

mod clock_lock;
#[allow(dead_code)]
mod mapped;
mod region;

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fastpath_publish::host::{
    Bracket, Busy, NotPublished, Page, Publisher, PublisherConfig, Refreshed, Sample, ThisHost,
};
use mapped::{Mapped, read};

/// Ends the other threads when this one returns or panics: a test that hangs reports nothing.
struct EndOf<'a>(&'a AtomicBool);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[test]
fn publishers_in_many_threads_never_take_time_back() {
    let mapped = Mapped::new(true, true);
    let publisher = Publisher::new(mapped.page(), ThisHost, PublisherConfig::default());
    let ours = mapped.clock_gettime();
    let running = AtomicBool::new(true);
    let busy = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let _end = EndOf(&running);
        for thread in 0..4 {
            let (publisher, running, busy) = (&publisher, &running, &busy);
            scope.spawn(move || {
                while running.load(Ordering::Relaxed) {
                    let result = match thread {
                        0 => publisher
                            .withdraw(fastpath_publish::host::Reason::Host(0))
                            .map_err(NotPublished::from),
                        1 => publisher.publish_step().map(drop),
                        _ => publisher.publish().map(drop),
                    };
                    busy.fetch_add(u32::from(result == Err(NotPublished::Busy(Busy))), Ordering::Relaxed);
                    std::hint::black_box(publisher.state());
                    std::thread::sleep(Duration::from_micros(if thread == 0 { 5_000 } else { 200 }));
                }
            });
        }
        let begun = Instant::now();
        let mut last = 0;
        while begun.elapsed() < Duration::from_secs(2) {
            let before = read(libc::clock_gettime, libc::CLOCK_MONOTONIC);
            let now = read(ours, libc::CLOCK_MONOTONIC);
            // Mixed with the kernel's answers after each withdrawal: it may lag by the page's error, not more.
            assert!(now + 2_000 >= last, "{} ns back", last - now);
            assert!(now + 2_000 >= before, "{} ns behind the kernel", before - now);
            last = now;
        }
    });
    println!("{} calls met another", busy.into_inner());
}

static PUBLISHER: AtomicPtr<Publisher<'static, ThisHost>> = AtomicPtr::new(std::ptr::null_mut());
static HANDLED: AtomicU32 = AtomicU32::new(0);
static MET: AtomicU32 = AtomicU32::new(0);

extern "C" fn handler(_: libc::c_int) {
    let publisher = PUBLISHER.load(Ordering::Acquire);
    // SAFETY: set before the timer was armed, and never freed.
    let publisher = unsafe { &*publisher };
    let met = publisher.publish() == Err(NotPublished::Busy(Busy));
    publisher.state();
    MET.fetch_add(u32::from(met), Ordering::Relaxed);
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// The handler runs on a small stack of its own, most of the time in the middle of a publication.
#[test]
fn a_signal_handler_may_publish_even_if_it_interrupts_a_publication() {
    let mapped = Mapped::new(false, true);
    let publisher: &'static _ = Box::leak(Box::new(Publisher::new(
        mapped.page(),
        ThisHost,
        PublisherConfig::default(),
    )));
    PUBLISHER.store(std::ptr::from_ref(publisher).cast_mut(), Ordering::Release);
    const STACK: usize = 32 << 10;
    let stack = vec![0xa5_u8; STACK];
    // SAFETY: the stack lives until the timer is disarmed; all structs are valid.
    unsafe {
        let alternative = libc::stack_t {
            ss_sp: stack.as_ptr().cast_mut().cast(),
            ss_flags: 0,
            ss_size: STACK,
        };
        assert_eq!(libc::sigaltstack(&alternative, std::ptr::null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGPROF, &action, std::ptr::null_mut()), 0);
        let every = libc::timeval {
            tv_sec: 0,
            tv_usec: 1_000,
        };
        let timer = libc::itimerval {
            it_interval: every,
            it_value: every,
        };
        // Of this process's CPU time, so that it interrupts the running thread, which is this one.
        assert_eq!(libc::setitimer(libc::ITIMER_PROF, &timer, std::ptr::null_mut()), 0);
    }
    let begun = Instant::now();
    let has_met_many = || HANDLED.load(Ordering::Relaxed) > 200 && MET.load(Ordering::Relaxed) > 0;
    // Takes a fraction of a second of CPU time in most cases.
    while !has_met_many() && begun.elapsed() < Duration::from_secs(60) {
        let result = publisher.publish();
        assert!(
            !matches!(result, Err(NotPublished::NoSample)),
            "busy at most: another thread's handler may be at it"
        );
    }
    // SAFETY: a zeroed timer is disarmed.
    unsafe {
        let none: libc::itimerval = std::mem::zeroed();
        libc::setitimer(libc::ITIMER_PROF, &none, std::ptr::null_mut());
        let off = libc::stack_t {
            ss_sp: std::ptr::null_mut(),
            ss_flags: libc::SS_DISABLE,
            ss_size: 0,
        };
        libc::sigaltstack(&off, std::ptr::null_mut());
    }
    let (handled, met) = (HANDLED.load(Ordering::Relaxed), MET.load(Ordering::Relaxed));
    let used = STACK - stack.iter().take_while(|byte| **byte == 0xa5).count();
    println!("{handled} signals, {met} in the middle of a publication, {used} bytes of stack");
    assert!(has_met_many(), "{handled} signals, {met} met");
    assert!(used < STACK, "the stack overflowed");
    assert!(publisher.state().refreshes > 0);
}

#[test]
fn a_sample_that_cannot_be_one_is_refused_and_changes_nothing() {
    let page = Page::zeroed();
    let publisher = Publisher::new(&page, ThisHost, PublisherConfig::default());
    let bracket = |before, time_ns, after| Bracket { before, time_ns, after };
    let good = bracket(1 << 40, 1 << 50, (1 << 40) + 80);
    let sample = |mono, real, raw| Sample {
        mono,
        real,
        raw,
        boot: None,
        tai: None,
        ntp: None,
    };
    let zero = bracket(0, 0, 0);
    let backward = bracket((1 << 40) + 1, 1 << 50, 1 << 40);
    let at_its_epoch = bracket(1 << 40, 0, (1 << 40) + 80);
    for bad in [zero, backward, at_its_epoch] {
        for sample in [
            sample(bad, good, None),
            sample(good, bad, None),
            sample(good, good, Some(bad)),
        ] {
            assert_eq!(publisher.publish_sample(&sample), Err(NotPublished::Impossible));
            assert_eq!(publisher.publish_step_sample(&sample), Err(NotPublished::Impossible));
        }
    }
    assert_eq!(
        publisher.publish_sample(&sample(good, good, None)),
        Ok(Refreshed::Waiting)
    );
}
