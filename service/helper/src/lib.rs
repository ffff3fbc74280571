//! The helper: the process that `run` and `attach` leave beside the programs that they serve.
//!
//! It gets a page from the host's daemon, or publishes one itself ([`grant`]), serves the programs
//! that are executed ([`fastpath_inject::attendant`]), and ends when no process needs it any more.
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

pub mod attach;
mod attendant;
pub mod grant;
mod log;
mod parent;
pub mod policy;
pub mod process;
pub mod run;
mod scheduling;
pub mod timeline;
mod title;
mod trial;
