//! What differs between instruction sets: each file here has the same few names.
//!
//! - `repeat(reads)`: so many ordered reads of the counter, back to back, with the very instructions that the image uses on this CPU
//! - `jump_target(code, at)`: where a function at this address goes at once, if it begins with a jump (behind a landing pad)
//! - `counter_name()`: what those instructions are called in reports

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::{counter_name, jump_target, repeat};
#[cfg(target_arch = "x86_64")]
pub use x86_64::{counter_name, jump_target, repeat};
