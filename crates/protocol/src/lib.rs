//! What fastpathd and its clients say to each other: one packet asks, one answers, descriptors travel with either.
//!
//! C has the same in `include/fastpath-protocol.h`, which says what each field means.

pub mod client;
mod message;
pub mod packet;
pub mod status;

pub use client::{Client, Failure};
pub use message::*;
pub use status::Status;
