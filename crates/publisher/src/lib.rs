//! Keeps pages up to date: samples this host's clocks, gives the samples to the discipline, publishes, and implements
//! the failure rules.
#![cfg_attr(not(test), warn(unused_crate_dependencies))]

mod clocksource;
mod keeper;
mod ntp;
mod patrol;
mod publisher;
mod settings;
mod shared_page;
mod steps;

pub use fastpath_evidence::{self as evidence, counter};
pub use fastpath_host::News;
pub use patrol::Rhythm;
pub use publisher::{Handle, Member, Offsets, Publisher};
pub use shared_page::{NotAPage, SharedPage};
