//! The CPU's counter, read in order. One file per ISA with the same definitions.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{Features, read};
