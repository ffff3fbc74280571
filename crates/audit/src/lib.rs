//! Finds programs that will never take the fast path to a clock, without running them: `fastpath audit`.
//!
//! [`judge()`] examines one ELF file; [`audit`] examines files, directories and container images. The audit reads files
//! and never maps or unpacks them. It trusts nothing in them: every table, every stream and every list has a limit
//! ([`Limits`]).
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

mod archive;
mod bytes;
mod calls;
mod elf;
mod facts;
mod judge;
mod layers;
mod report;
mod rules;
mod sarif;
mod walk;

pub use bytes::{Bytes, OnDisk};
pub use calls::{By, Call, Site};
pub use elf::Kind;
pub use facts::{Lookups, Runtime};
pub use judge::{Judged, calls_for_time, judge};
pub use layers::{Limits, of_bytes};
pub use report::{Finding, Program, Report, Summary, Unjudged};
pub use rules::{Level, Rule};
pub use sarif::sarif;
pub use walk::{Options, Progress, audit};
