//! Reads the ELF file of a vDSO without trusting a byte of it ([`Elf`]), and checks what an image of fastpath must
//! satisfy ([`check`]).
//!
//! `fastpath-image` uses it twice: in its build, which checks the images that it makes, and at run time.
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

pub mod check;
mod elf;

pub use elf::*;
pub use fastpath_isa::{Isa, Unwind};
