//! What differs between instruction sets when a host is examined: each file here has the same few names.
//!
//! - `COUNTER_CLOCKSOURCES`: the kernel's clocksources that a vDSO can read
//! - `FUNCTIONS`: what a kernel's vDSO exports, and since which Linux
//! - `FLAGS`: the CPU's flags in /proc/cpuinfo that the kernel wants to see before it trusts the counter
//! - `stated()`: what the CPU itself says about its counter
//! - `rate_of_log_line()`, `rate_of_cpuinfo()`: the counter's rate as the kernel states it

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(super) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::*;
