//! `fastpath attach`, `fastpath detach` and `fastpath status`.

mod commands;
pub mod served;
mod status;

pub use commands::{attach, detach};
pub use status::status;
