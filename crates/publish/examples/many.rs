//! Cost of many pages: publishes on so many for ten seconds and prints the share of one CPU that it took.
//!
//!     cargo run --release --package fastpath-publish --example many -- 2000

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastpath_page::{ClockSet, Reader};
use fastpath_publish::evidence::Trust;
use fastpath_publish::host::init;
use fastpath_publish::{Member, Offsets, Publisher};
use fastpath_publish::{SharedPage, counter};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pages: u64 = std::env::args().nth(1).map_or(Ok(2_000), |pages| pages.parse())?;
    let (mut publisher, handle) = Publisher::new(ClockSet::ALL, Trust::Invariant)?;
    publisher.watch_for_steps();
    let mut members = Vec::new();
    for id in 0..pages {
        let page = SharedPage::create_to_be_taken_up(1)?;
        page.writer().init(&init::of_this_host());
        let member = Arc::new(Member {
            page,
            clocks: ClockSet::ALL,
            offsets: Offsets::default(),
        });
        handle.add(id, member.clone());
        members.push(member);
    }
    let over = Arc::new(AtomicBool::new(false));
    let theirs = over.clone();
    let thread = std::thread::spawn(move || {
        publisher.run(|| !theirs.load(Ordering::Relaxed));
        cpu_time(libc::CLOCK_THREAD_CPUTIME_ID)
    });
    // The first windows are short.
    std::thread::sleep(Duration::from_secs(2));
    let refreshes = || members[0].page.page().stats.refreshes.load(Ordering::Relaxed);
    let (begun, cpu, published) = (Instant::now(), cpu_time(libc::CLOCK_PROCESS_CPUTIME_ID), refreshes());
    std::thread::sleep(Duration::from_secs(10));
    let cpu = cpu_time(libc::CLOCK_PROCESS_CPUTIME_ID) - cpu;
    let elapsed = begun.elapsed();
    let published = refreshes() - published;
    let fresh = members
        .iter()
        .filter(|member| {
            let reader = Reader::new(member.page.page());
            reader.read(libc::CLOCK_MONOTONIC as u32, counter::read).is_some()
        })
        .count();
    over.store(true, Ordering::Relaxed);
    let _ = thread.join();
    let seconds = elapsed.as_secs_f64();
    println!(
        "{pages} pages, {fresh} of them answering, {:.1} refreshes a second of each: {:.2} % of one CPU, {:.0} ns a page and refresh",
        published as f64 / seconds,
        100.0 * cpu.as_secs_f64() / seconds,
        cpu.as_nanos() as f64 / (pages * published.max(1)) as f64
    );
    Ok(())
}

fn cpu_time(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
