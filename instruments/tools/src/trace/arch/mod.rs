//! What an ISA differs in: its system calls, as the kernel's saved registers show them, and the registers of a sample.

#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
mod isa;

pub(crate) use isa::*;

/// Offsets into `struct pt_regs`.
pub(crate) struct RegisterOffsets {
    pub size: i16,
    pub ip: i16,
    pub sp: i16,
    pub frame: i16,
    /// First argument of a native call, and of one of the 32-bit ABI.
    pub argument: i16,
    pub compat_argument: i16,
}

/// A thread in a seccomp stop.
pub(crate) struct StoppedThread {
    pub number: u64,
    pub is_compat: bool,
    pub is_vsyscall: bool,
    pub argument: u64,
    pub ip: u64,
    pub sp: u64,
    pub frame: u64,
}
