//! The CPU's counter, read in order. One file per family of ISAs with the same definitions.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "arm")]
mod arm;
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
mod x86;

#[cfg(target_arch = "aarch64")]
pub use aarch64::{Features, read};
#[cfg(target_arch = "arm")]
pub use arm::{Features, read};
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
pub use x86::{Features, read};

/// Returns whether this process may read the counter: a process can have asked the kernel to fault it (PR_SET_TSC; on
/// Arm from Linux 6.12).
pub fn is_readable() -> bool {
    let mut mode: libc::c_int = 0;
    // A kernel without PR_GET_TSC forbids nothing.
    // SAFETY: PR_GET_TSC stores one int.
    unsafe { libc::prctl(libc::PR_GET_TSC, &mut mode) != 0 || mode == libc::PR_TSC_ENABLE }
}
