//! The parts of an examination that differ between ISAs. Each file here has the same names:
//!
//! - `COUNTER_CLOCKSOURCES`: the kernel's clocksources that a vDSO can read
//! - `FUNCTIONS`: the exports of a kernel's vDSO, and the Linux version that added each
//! - `FLAGS`: the CPU's flags in /proc/cpuinfo that the kernel looks for before it trusts the counter
//! - `stated()`: the counter's rate as the CPU states it
//! - `rate_of_log_line()`, `rate_of_cpuinfo()`: the counter's rate as the kernel states it

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(super) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::*;
