//! One page of the measurements on one host or on many.
//!
//! The page ([`page`]) is a function of data: of the JSON from `probe`, `doctor` and `trace` ([`data`], [`read`]).
//! Nothing here measures, prints or reads files.
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

mod chart;
pub mod data;
mod distribution;
mod judge;
mod nanoseconds;
mod page;
mod read;
#[cfg(test)]
mod samples;
mod words;

pub use distribution::{Bucket, Distribution};
pub use nanoseconds::Nanoseconds;
pub use page::page;
pub use read::{examined, parse, read};
