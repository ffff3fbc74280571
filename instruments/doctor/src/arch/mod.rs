//! The parts of an examination that differ between ISAs. Each file here has the same names:
//!
//! - `COUNTER_CLOCKSOURCES`: the kernel's clocksources that a vDSO can read
//! - `FUNCTIONS`: the exports of a kernel's vDSO, and the Linux version that added each
//! - `FLAGS`: the CPU's flags in /proc/cpuinfo that the kernel looks for before it trusts the counter
//! - `stated()`: the counter's rate as the CPU states it
//! - `rate_of_log_line()`, `rate_of_cpuinfo()`: the counter's rate as the kernel states it

#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
mod isa;

pub(super) use isa::*;
