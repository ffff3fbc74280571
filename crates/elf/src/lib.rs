//! Reads the ELF file of a vDSO without trusting a byte of it ([`Elf`]), names the instruction sets ([`Isa`]), and checks what an image of
//! fastpath must satisfy ([`check`]).
//!
//! `fastpath-image` uses it twice: in its build, which checks the images that it makes, and at run time.

pub mod check;
mod elf;
mod isa;

pub use elf::*;
pub use isa::Isa;
