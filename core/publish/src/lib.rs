//! Keeps pages up to date: samples this host's clocks, gives the samples to the discipline, publishes, and implements
//! the failure rules. [`host`] is the part without a thread or an allocation, for those who host guests.
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

pub mod host;
mod keeper;
mod kernel_file;
mod many;
mod namespace;
mod ntp;
mod patrol;
mod publisher;
mod settings;
mod shared_page;
#[cfg(test)]
#[path = "../../../tests/skip.rs"]
mod skip;
mod steps;

pub use fastpath_evidence::{self as evidence, counter};
pub use host::News;
pub use many::{Member, Offsets};
pub use namespace::UnknownOffsets;
pub use patrol::Rhythm;
pub use publisher::{Handle, Publisher};
pub use shared_page::{NotAPage, SharedPage};
