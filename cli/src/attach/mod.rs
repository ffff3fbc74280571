//! `fastpath attach`, `fastpath detach` and `fastpath status`.

mod aside;
#[cfg(target_arch = "x86_64")]
mod commands;
mod core_file;
pub mod status;
#[cfg(not(target_arch = "x86_64"))]
mod unavailable;
#[cfg(not(target_arch = "x86_64"))]
use unavailable as commands;

pub use commands::{attach, detach};
pub use status::status;
