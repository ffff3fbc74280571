//! Readings of a host's clocks, each between two reads of the counter.

use std::fs::File;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};

use fastpath_clock::{Bracket, Sample};
use fastpath_evidence::counter;

/// Number of attempts per clock and sample. A good one is 85 cycles wide through a healthy vDSO, 370 through the system
/// call; of five, one is neither interrupted nor begins with a cold cache.
const ATTEMPTS: usize = 5;
/// Number of attempts after a step, when the difference of two clocks must be measured in one sample.
const CAREFUL_ATTEMPTS: usize = 25;

/// A source of time.
pub trait Source {
    /// Reads the counter: after all that precedes it in the program, before all that follows it.
    fn counter(&self) -> u64;
    /// Returns the time of a clock, in nanoseconds since its epoch; `None` if there is no such clock.
    fn clock(&self, id: libc::clockid_t) -> Option<u64>;
}

/// Whether clock_gettime of this process may be answered from another publisher's page. A page that follows another one
/// adds its own error to the other's.
static IS_SERVED: AtomicBool = AtomicBool::new(false);

/// Finds out whether fastpath serves this process, as it does each program of a tree: its page is mapped for reading
/// alone. Does not allocate.
pub(super) fn look_whether_served() {
    let mut text = [0; 4096];
    let Ok(mut maps) = File::open("/proc/self/maps") else {
        return;
    };
    // The kernel returns whole lines.
    while let Ok(length @ 1..) = maps.read(&mut text) {
        let is_of_page = |line: &[u8]| {
            let name = fastpath_page::MAPPED_NAME.as_bytes();
            line.windows(6).any(|word| word == b" r--s ") && line.windows(name.len()).any(|word| word == name)
        };
        if text[..length].split(|byte| *byte == b'\n').any(is_of_page) {
            IS_SERVED.store(true, Ordering::Relaxed);
        }
    }
}

/// The CPU's counter and the kernel's clocks: by this process's clock_gettime(2), or by the system call in a process that
/// fastpath served when [`init::of_this_host`](super::init::of_this_host) was called.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThisHost;

impl Source for ThisHost {
    fn counter(&self) -> u64 {
        counter::read()
    }

    fn clock(&self, id: libc::clockid_t) -> Option<u64> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for the write.
        let answer = unsafe {
            match IS_SERVED.load(Ordering::Relaxed) {
                false => libc::clock_gettime(id, &mut time).into(),
                true => libc::syscall(libc::SYS_clock_gettime, id, &mut time),
            }
        };
        (answer == 0).then_some(
            (time.tv_sec as u64)
                .wrapping_mul(1_000_000_000)
                .wrapping_add(time.tv_nsec as u64),
        )
    }
}

/// Reads a clock once.
pub fn bracket(source: &impl Source, clock: libc::clockid_t) -> Option<Bracket> {
    let before = source.counter();
    let time_ns = source.clock(clock)?;
    let after = source.counter();
    Some(Bracket { before, time_ns, after })
}

/// Returns the narrowest bracket of some attempts, which says most precisely when its clock was read. The wide ones
/// were interrupted.
fn best(source: &impl Source, clock: libc::clockid_t, attempts: usize) -> Option<Bracket> {
    let mut best = bracket(source, clock)?;
    for _ in 1..attempts {
        let next = bracket(source, clock)?;
        if next.width_cycles() < best.width_cycles() {
            best = next;
        }
    }
    Some(best)
}

fn take(source: &impl Source, attempts: usize) -> Option<Sample> {
    Some(Sample {
        mono: best(source, libc::CLOCK_MONOTONIC, attempts)?,
        real: best(source, libc::CLOCK_REALTIME, attempts)?,
        raw: best(source, libc::CLOCK_MONOTONIC_RAW, attempts),
        boot: best(source, libc::CLOCK_BOOTTIME, attempts),
        tai: best(source, libc::CLOCK_TAI, attempts),
        ntp: None,
    })
}

/// Takes one sample of all clocks; `None` if MONOTONIC or REALTIME cannot be read.
pub fn sample(source: &impl Source) -> Option<Sample> {
    take(source, ATTEMPTS)
}

/// Takes a sample with more attempts, for the moment after a step.
pub fn careful_sample(source: &impl Source) -> Option<Sample> {
    take(source, CAREFUL_ATTEMPTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_another_publisher_is_found_and_the_kernel_is_read_then() {
        // SAFETY: the name is a C string, and the mapping is never accessed.
        unsafe {
            let page = libc::memfd_create(fastpath_page::MEMFD_NAME.as_ptr(), 0);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, page, 0);
            look_whether_served();
            assert!(!IS_SERVED.load(Ordering::Relaxed), "a page of its own");
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, page, 0);
        }
        look_whether_served();
        assert!(IS_SERVED.load(Ordering::Relaxed));
        let mut at_ns = 0;
        for _ in 0..100 {
            let read_ns = ThisHost.clock(libc::CLOCK_MONOTONIC).expect("MONOTONIC");
            assert!(read_ns >= at_ns);
            at_ns = read_ns;
        }
        assert_eq!(ThisHost.clock(99), None);
    }
}
