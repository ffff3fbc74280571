//! The latest times that a process's readers were shown, which the kernel's clocks must have reached before the process
//! reads those (`core/image/vdso/page.h`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use fastpath_evidence::{PageCopy, counter};
use fastpath_page::{Clock, PAGE_SIZE, Page, Reader, ahead_ns};

use super::refusal::Answer;
use crate::target::memory::Memory;

/// Most copies of a page that the publisher keeps changing. A change takes less than a microsecond.
const MOST_COPIES: u32 = 100;

/// The floors of the clocks at the moment at which all threads were stopped, and so the last ones.
#[derive(Debug)]
pub struct Floors(Vec<Floor>);

#[derive(Debug)]
struct Floor {
    clock: libc::clockid_t,
    time: (u64, u32),
    /// The clock in the process's time namespace less that in this process's.
    offset_ns: i64,
}

impl Floors {
    /// Reads the floors of a process with stopped threads, by its page at an address; `None` if the page keeps changing.
    pub fn read(pid: i32, page_at: u64) -> Answer<Option<Floors>> {
        let memory = Memory::open(pid)?;
        let copy = || Ok::<_, crate::error::Error>(PageCopy::from_bytes(&memory.bytes(page_at, PAGE_SIZE)?));
        for _ in 0..MOST_COPIES {
            // What the hook has withdrawn is no page, and shows no time. A page between two equal counts is whole.
            let (Some(before), Some(page), Some(after)) = (copy()?, copy()?, copy()?) else {
                return Ok(Some(Floors(Vec::new())));
            };
            if counts(&before) == counts(&after) {
                return Ok(Some(Floors::of_page(pid, &page)));
            }
        }
        Ok(None)
    }

    fn of_page(pid: i32, page: &Page) -> Floors {
        let reader = Reader::new(page);
        let count = counter::of_page(page);
        let floor = |clock: &Clock| {
            Some(Floor {
                clock: clock.id(),
                time: reader.floor(clock.id() as u32, &count)?,
                offset_ns: offset_ns(&pid.to_string(), clock.id()) - offset_ns("self", clock.id()),
            })
        };
        Floors(Clock::SERVED.iter().filter_map(floor).collect())
    }

    /// Returns by how much the floors are later than the kernel's clocks; zero if no read can go back any more.
    pub fn ahead(&self) -> Duration {
        let ahead = |floor: &Floor| ahead_ns(floor.time, kernel_time(floor.clock, floor.offset_ns));
        Duration::from_nanos(self.0.iter().map(ahead).max().unwrap_or(0))
    }
}

fn counts(page: &Page) -> [u32; 2] {
    [&page.hres, &page.raw].map(|latch| latch.copy[0].seq.load(Ordering::Relaxed))
}

/// Reads a clock by a system call: this process's vDSO may be a page's.
fn kernel_time(clock: libc::clockid_t, offset_ns: i64) -> (u64, u32) {
    const NSEC_PER_SEC: i128 = 1_000_000_000;
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call stores a timespec.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut now) };
    let ns = i128::from(now.tv_sec) * NSEC_PER_SEC + i128::from(now.tv_nsec) + i128::from(offset_ns);
    (ns.div_euclid(NSEC_PER_SEC) as u64, ns.rem_euclid(NSEC_PER_SEC) as u32)
}

/// Returns the offset of a clock in the time namespace of a process. The file has that of its children; a process whose
/// children are in another namespace has no page any more.
fn offset_ns(process: &str, clock: libc::clockid_t) -> i64 {
    let name = match clock {
        libc::CLOCK_MONOTONIC | libc::CLOCK_MONOTONIC_RAW => "monotonic",
        libc::CLOCK_BOOTTIME => "boottime",
        _ => return 0,
    };
    let text = std::fs::read_to_string(format!("/proc/{process}/timens_offsets")).unwrap_or_default();
    fastpath_os::parse_time_offsets(&text)
        .find(|(of, ..)| *of == name)
        .map_or(0, |(_, seconds, ns)| {
            seconds.saturating_mul(1_000_000_000).saturating_add(ns)
        })
}
