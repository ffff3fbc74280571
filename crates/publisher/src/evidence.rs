//! Whether the counter can be believed: what the CPU says, what the kernel allows, and what the CPUs show against each other.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::counter::{self, Features};

/// How long the CPUs read against each other once they all run. The kernel takes 20 ms per pair at boot
/// (arch/x86/kernel/tsc_sync.c); a warp that matters here is one that this finds again at every start.
const WARP_TEST: Duration = Duration::from_micros(200);
/// How long to wait for a busy CPU to take part ...
const ARRIVAL: Duration = Duration::from_millis(20);
/// ... and where the kernel itself runs on the TSC, having compared all CPUs at boot and watched them since.
const ARRIVAL_WHERE_KERNEL_TRUSTS: Duration = Duration::from_millis(2);

/// Why the counter is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// CPUID does not promise one rate.
    #[error("the CPU does not state an invariant TSC (CPUID 8000_0007H, EDX bit 8)")]
    NotInvariant,
    /// PR_SET_TSC.
    #[error("this process may not read the TSC (prctl PR_GET_TSC)")]
    NotReadable,
    /// Two CPUs disagree.
    #[error("the TSCs of two CPUs disagree by {cycles} cycles or more")]
    Warp {
        /// How far the counter was seen to go back.
        cycles: u64,
    },
}

/// What was found.
#[derive(Debug, Clone, Copy)]
pub struct Evidence {
    /// From CPUID.
    pub features: Features,
    /// CPUs that took part in the warp test, of those that this process may use.
    pub cpus_tested: usize,
    /// CPUs that this process may use.
    pub cpus: usize,
}

/// Whether the counter may be read here at all, and promises one rate. To be asked before it is read for anything.
pub fn is_promising() -> Result<Features, Distrust> {
    let mut mode: libc::c_int = 0;
    // SAFETY: PR_GET_TSC stores one int.
    if unsafe { libc::prctl(libc::PR_GET_TSC, &mut mode) } == 0 && mode != libc::PR_TSC_ENABLE {
        return Err(Distrust::NotReadable);
    }
    let features = Features::of_this_cpu();
    if features.invariant {
        Ok(features)
    } else {
        Err(Distrust::NotInvariant)
    }
}

/// Looks at the counter in full, for about half a millisecond on idle CPUs. Starts threads.
pub fn examine() -> Result<Evidence, Distrust> {
    let features = is_promising()?;
    let cpus = allowed_cpus();
    let patience = if kernel_trusts_tsc() {
        ARRIVAL_WHERE_KERNEL_TRUSTS
    } else {
        ARRIVAL
    };
    let tested = warp_test(&cpus, patience)?;
    Ok(Evidence {
        features,
        cpus_tested: tested,
        cpus: cpus.len(),
    })
}

fn kernel_trusts_tsc() -> bool {
    std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .is_ok_and(|name| name.trim() == "tsc")
}

fn allowed_cpus() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count())
        .filter(|cpu| set.is_set(*cpu).unwrap_or(false))
        .collect()
}

/// All CPUs read their counters and compare with the latest value that any of them has published. One that reads less than
/// what was published before it read is behind. Returns how many took part.
fn warp_test(cpus: &[usize], patience: Duration) -> Result<usize, Distrust> {
    if cpus.len() < 2 {
        return Ok(cpus.len());
    }
    let (latest, worst, arrived) = (AtomicU64::new(0), AtomicU64::new(0), AtomicUsize::new(0));
    let begun = Instant::now();
    thread::scope(|scope| {
        for cpu in cpus {
            let (latest, worst, arrived) = (&latest, &worst, &arrived);
            let spawned = thread::Builder::new()
                .stack_size(64 << 10)
                .spawn_scoped(scope, move || {
                    let mut only = CpuSet::new();
                    if only
                        .set(*cpu)
                        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &only))
                        .is_err()
                    {
                        return;
                    }
                    arrived.fetch_add(1, Ordering::AcqRel);
                    while arrived.load(Ordering::Acquire) < cpus.len() && begun.elapsed() < patience {
                        std::hint::spin_loop();
                    }
                    let started = Instant::now();
                    while started.elapsed() < WARP_TEST {
                        for _ in 0..64 {
                            let before = latest.load(Ordering::Acquire);
                            let now = counter::read();
                            if now < before {
                                worst.fetch_max(before - now, Ordering::Relaxed);
                            }
                            latest.fetch_max(now, Ordering::AcqRel);
                        }
                    }
                });
            drop(spawned);
        }
    });
    match worst.into_inner() {
        0 => Ok(arrived.into_inner()),
        cycles => Err(Distrust::Warp { cycles }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_may_not_read_the_counter_is_told_so_without_reading_it() {
        // SAFETY: the child makes system calls only; fork, prctl and waitpid take what they are given here.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let forbidden = libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV) == 0;
                libc::_exit(i32::from(!(forbidden && is_promising() == Err(Distrust::NotReadable))));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert_eq!(status, 0);
        }
    }

    #[test]
    fn one_cpu_alone_needs_no_warp_test() {
        assert_eq!(warp_test(&[0], ARRIVAL), Ok(1));
    }

    #[test]
    fn every_allowed_cpu_takes_part() {
        let cpus = allowed_cpus();
        assert!(!cpus.is_empty());
        if let Ok(tested) = warp_test(&cpus, ARRIVAL) {
            assert!(tested >= 1 && tested <= cpus.len());
        }
    }
}
