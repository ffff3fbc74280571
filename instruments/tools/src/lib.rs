//! Finds the programs whose clock reads are slow: [`audit`] in files, [`trace`] among running processes. [`program`] is
//! what a program's file tells.
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

pub mod audit;
pub mod program;
pub mod trace;
