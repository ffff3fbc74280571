//! The protocol between fastpathd and its clients: one packet asks, one answers, descriptors travel with either.
//!
//! `include/fastpath-protocol.h` is the same for C, and describes what each field means.
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

pub mod client;
mod message;
pub mod packet;
pub mod status;

pub use client::{Client, ClientError};
pub use message::*;
pub use status::DaemonStatus;
