//! The CPU's statement, the kernel's permission, and whether reads trap.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::counter::{self, Features};
use crate::cpus;
use crate::verdict::Evidence;
use crate::warp::small_thread;
use fastpath_isa::Isa;

pub(super) fn look() -> Evidence {
    counter::choose_read();
    let is_readable = counter::is_readable();
    Evidence {
        is_readable,
        features: is_readable.then(Features::of_this_cpu),
        ..Evidence::default()
    }
}

/// Returns whether the kernel or the firmware emulates reads of the counter.
pub(super) fn is_trapped() -> bool {
    Isa::HOST.facts().counter.trapped.is_some() && costs().is_of_trapped_reads()
}

/// Returns the CPUs on which the kernel or the firmware answers reads of the counter, as slowly as a system call, of those that
/// this process may use: a hypervisor may set up its virtual CPUs differently. The counter must be readable. Starts a thread,
/// which runs on each CPU in turn; a busy one takes some milliseconds.
pub fn trapped_cpus() -> Vec<usize> {
    if Isa::HOST.facts().counter.trapped.is_none() {
        return Vec::new();
    }
    let traps = |cpu: &usize| cpus::run_on(*cpu).is_ok() && is_trapped();
    let look = move || cpus::allowed().into_iter().filter(traps).collect();
    let looked = small_thread().spawn(look).map(JoinHandle::join);
    looked.map(Result::unwrap_or_default).unwrap_or_default()
}

/// The shortest durations of some reads of the counter, and of as many system calls.
#[derive(Clone, Copy, Debug)]
struct Costs {
    reads: Duration,
    calls: Duration,
}

impl Costs {
    /// Returns whether these are the times of trapped reads. A trapped read is one exception, as a system call is, plus
    /// an emulated instruction; an untrapped one takes a tenth of that.
    fn is_of_trapped_reads(self) -> bool {
        const TRAPPED_PART: f64 = 0.6;
        self.reads.as_secs_f64() > TRAPPED_PART * self.calls.as_secs_f64()
    }
}

fn costs() -> Costs {
    /// Number of reads: enough for some counts of the slowest counters, at 1 MHz.
    const TIMES: u32 = 64;
    let shortest = |work: &dyn Fn()| {
        let time = |_| {
            let start = Instant::now();
            (0..TIMES).for_each(|_| work());
            start.elapsed()
        };
        (0..5).map(time).min().unwrap_or_default()
    };
    Costs {
        // SAFETY: getppid accesses no memory.
        calls: shortest(&|| unsafe {
            libc::syscall(libc::SYS_getppid);
        }),
        reads: shortest(&|| {
            std::hint::black_box(counter::read());
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Distrust, Trust, is_promising};

    #[test]
    fn a_forbidden_counter_is_reported_without_reading_it() {
        // SAFETY: the child makes system calls only; the pointers given to prctl and waitpid are valid.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let forbidden = libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV) == 0;
                let refused = |trust| is_promising(trust) == Err(Distrust::NotReadable);
                let right = forbidden && refused(Trust::Invariant) && refused(Trust::AllowNonInvariant);
                libc::_exit(i32::from(!right));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert_eq!(status, 0);
        }
    }

    #[test]
    fn untrapped_reads_are_distinguished_from_trapped_ones() {
        let is_trapped = |reads: u64, calls: u64| {
            Costs {
                reads: Duration::from_nanos(64 * reads),
                calls: Duration::from_nanos(64 * calls),
            }
            .is_of_trapped_reads()
        };
        // An erratum in the counter: the kernel reads it until two reads agree.
        assert!(is_trapped(1000, 300));
        // The same cost, whichever measurement is the shorter.
        assert!(is_trapped(250, 300));
        assert!(is_trapped(300, 250));
        // Neoverse, and a CPU whose barrier is expensive.
        assert!(!is_trapped(12, 120));
        assert!(!is_trapped(50, 150));
        // Mitigations make calls expensive, and emulation both.
        assert!(!is_trapped(15, 900));
        assert!(!is_trapped(100, 800));
    }

    #[test]
    fn this_counter_is_answered_by_its_cpu() {
        if look().is_readable {
            assert!(!costs().is_of_trapped_reads(), "{:?}", costs());
        }
    }
}
