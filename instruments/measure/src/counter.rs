//! The CPU's counter, where this process may read it.

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
