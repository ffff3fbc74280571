//! Loss of a publisher: reads stay right, fall back to the kernel, and are fast again when another publisher comes.

mod clock_lock;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fastpath_host::init;
use fastpath_page::ClockSet;
use fastpath_page::reader::Reader;
use fastpath_publisher::evidence::Trust;
use fastpath_publisher::{Member, Offsets, Publisher, SharedPage, counter};

/// Longer than any anchor's max age.
const CAP_AND_MORE: Duration = Duration::from_millis(1500);

/// Timeout, longer than a busy machine needs.
const TIMEOUT: Duration = Duration::from_secs(60);

fn member() -> Arc<Member> {
    let page = SharedPage::create().expect("a page");
    page.writer().init(&init::of_this_host());
    Arc::new(Member {
        page,
        clocks: ClockSet::ALL,
        offsets: Offsets::default(),
    })
}

/// Starts a child that publishes on `page` until it is killed. Only a child can: the page cannot be mapped writable
/// again.
fn publisher(member: &Arc<Member>) -> i32 {
    // SAFETY: the child runs the publisher and no code of the test harness, and never returns.
    match unsafe { libc::fork() } {
        0 => {
            let made = Publisher::new(ClockSet::ALL, Trust::Invariant);
            if let Ok((mut publisher, handle)) = made {
                handle.add(0, member.clone());
                publisher.run(|| true);
            }
            // SAFETY: _exit ends the child without running any code of the harness.
            unsafe { libc::_exit(0) }
        }
        pid => pid,
    }
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: kill and waitpid of a child of this process access no memory; a null pointer means that the status is not
    // wanted.
    unsafe {
        libc::kill(pid, signal);
        if signal == libc::SIGKILL {
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
    }
}

/// Reads for a while, and checks that every answer lies between two of the kernel's. Returns the number of reads that
/// the page answered, and of all reads.
fn answered(reader: &Reader<'_>, how_long: Duration) -> (u64, u64) {
    let (begun, mut answered, mut asked) = (Instant::now(), 0, 0);
    let mut last = 0;
    while begun.elapsed() < how_long {
        let before = kernel();
        let ours = reader.read(libc::CLOCK_MONOTONIC as u32, counter::read);
        let after = kernel();
        asked += 1;
        let Some((sec, nsec)) = ours else { continue };
        let ours = sec * 1_000_000_000 + u64::from(nsec);
        answered += 1;
        assert!(ours >= last, "{} ns back", last - ours);
        // The bracket of two calls by the kernel's vDSO is 40 ns wide; a reading outside by more than a system call is
        // wrong.
        assert!(ours + 1000 >= before && ours <= after + 1000, "{before} {ours} {after}");
        last = ours;
    }
    (answered, asked)
}

fn kernel() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn wait_until_answered(reader: &Reader<'_>) {
    let begun = Instant::now();
    while reader.read(libc::CLOCK_MONOTONIC as u32, counter::read).is_none() {
        assert!(begun.elapsed() < TIMEOUT, "no anchor in {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn reads_survive_a_publisher_that_is_killed_or_stopped_and_are_fast_again_when_one_returns() {
    let _clock = clock_lock::ClockLock::shared();
    let page = member();
    let reader = Reader::new(page.page.page());
    let mut pid = publisher(&page);
    wait_until_answered(&reader);
    for loss in [libc::SIGKILL, libc::SIGSTOP, libc::SIGKILL] {
        // Some windows of a live publisher.
        answered(&reader, Duration::from_millis(300));
        signal(pid, loss);
        answered(&reader, CAP_AND_MORE);
        let (fast, asked) = answered(&reader, Duration::from_millis(50));
        assert!(
            fast == 0 && asked > 0,
            "{fast} of {asked} reads were answered by a page without a publisher"
        );
        match loss {
            libc::SIGSTOP => signal(pid, libc::SIGCONT),
            _ => pid = publisher(&page),
        }
        wait_until_answered(&reader);
    }
    signal(pid, libc::SIGKILL);
}

#[test]
fn a_publisher_killed_at_any_moment_of_a_refresh_leaves_a_page_that_the_next_one_can_use() {
    let _clock = clock_lock::ClockLock::shared();
    let page = member();
    let reader = Reader::new(page.page.page());
    for nth in 0..40 {
        let pid = publisher(&page);
        // The first windows are 1, 2, 4 ms: it is killed in the middle of many refreshes.
        answered(&reader, Duration::from_micros(500 + 317 * nth));
        signal(pid, libc::SIGKILL);
        answered(&reader, Duration::from_millis(1));
    }
}
