//! The CPU's counter, where this process may read it.

use crate::cost::{Effort, ticks_per_call};
use crate::timer::Timer;
use std::sync::atomic::{AtomicBool, Ordering};

pub use fastpath_evidence::counter::{choose_read, is_readable as usable, of_page, read};
pub use fastpath_isa::cpu::{image_read as counter_name, repeat_image_reads as repeat};

static WAS_FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Returns whether this process was forbidden to read the counter before it called [`allow`].
pub fn was_forbidden() -> bool {
    WAS_FORBIDDEN.load(Ordering::Relaxed)
}

/// Forbids this process to read the counter again.
pub fn forbid() {
    // SAFETY: PR_SET_TSC takes an integer. Reads of the counter then end in SIGSEGV, which is no undefined behaviour.
    unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV) };
}

/// Allows this process to read the counter.
pub fn allow() {
    WAS_FORBIDDEN.store(true, Ordering::Relaxed);
    // SAFETY: prctl with integers; it changes the calling thread's permission and nothing else.
    unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_ENABLE) };
}

/// Returns the ticks that one bare ordered read takes; `None` where the counter may not be read.
pub(crate) fn ticks_per_read(timer: &Timer, effort: Effort) -> Option<f64> {
    timer.is_counter().then(|| ticks_per_call(timer, effort, repeat))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Call, Clock, Functions};

    #[test]
    fn a_counter_read_costs_less_than_a_system_call() {
        let timer = Timer::start();
        let Some(counter) = ticks_per_read(&timer, Effort::PROBE) else {
            crate::skip::skip("this process may not read the counter");
            return;
        };
        let raw = Functions::syscalls();
        let syscall = ticks_per_call(&timer, Effort::PROBE, |n| {
            raw.repeat(Call::ClockGettime(Clock::MONOTONIC), n)
        });
        assert!(
            counter < syscall,
            "{counter} ticks for the counter, {syscall} for the system call"
        );
    }
}
