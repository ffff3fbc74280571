//! Small BPF programs at the kernel's raw tracepoints: assembled here, loaded by bpf(2), heard by a ring. Neither a compiler nor a library
//! in C is needed, so that the static build stays one file.

pub mod asm;
mod ring;
mod sys;

pub use ring::Ring;
pub use sys::{Attached, Kind, Map, attach};
