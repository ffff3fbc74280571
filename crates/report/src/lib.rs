//! One page of what was measured, on one host or on many.
//!
//! Everything is a function of data: of the JSON that `probe`, `doctor` and `trace` give ([`data`], [`read`]) to the page ([`page`]).
//! Nothing here measures, prints or reads files.

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
pub use read::{parse, read};
