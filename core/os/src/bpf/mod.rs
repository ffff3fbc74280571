//! Small BPF programs at the kernel's raw tracepoints: assembled here, loaded by bpf(2), read through a ring. They need
//! neither a compiler nor a C library, so the static build stays one file.

pub mod asm;
pub mod helper;
mod process;
mod ring;
mod sys;

pub use process::PidNamespace;
pub use ring::Ring;
pub use sys::{AttachedProgram, Map, MapKind, attach};
