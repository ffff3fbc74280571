//! `fastpath attach`, `fastpath detach` and `fastpath status`.

#[cfg_attr(not(target_arch = "x86_64"), path = "unavailable.rs")]
mod commands;
pub mod served;
mod status;

pub use commands::{attach, detach};
pub use status::status;
