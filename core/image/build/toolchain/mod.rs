//! Makes the ELF file of an image from `vdso/`: [`link`] compiles and links it for one ISA, [`trim`] removes what no
//! process needs.
//!
//! The build of `fastpath-image` uses it, and the tests that compare toolchains.

mod compile;
mod generated;
mod trim;

pub use compile::{Audience, LINKER_VARIABLE, Toolchain, link};
pub use trim::trim;
