//! System calls of an ISA, as the kernel's saved registers show them.

use crate::trace::call::Function;

/// A system call's number and its function.
pub(crate) type Number = (u32, Function);

/// Offsets into `struct pt_regs`, and the numbers of both ABIs.
pub(crate) struct Registers {
    pub size: i16,
    pub ip: i16,
    pub sp: i16,
    pub frame: i16,
    /// First argument of a native call, and of one of the 32-bit ABI.
    pub argument: i16,
    pub compat_argument: i16,
}

#[cfg(target_arch = "x86_64")]
mod isa {
    use super::{Function::*, Number, Registers};

    // arch/x86/include/asm/ptrace.h
    pub(crate) const REGISTERS: Registers = Registers {
        size: 168,
        ip: 128,
        sp: 152,
        frame: 32,
        argument: 112,
        compat_argument: 40,
    };
    /// RCX: SYSCALL leaves the return address there, `int $0x80` does not.
    pub(crate) const CX: i16 = 88;
    pub(crate) const CS: i16 = 136;
    /// The code segment of 32-bit programs.
    pub(crate) const USER32_CS: i32 = 0x23;
    /// Set in the numbers of x32 programs.
    pub(crate) const FOREIGN_BIT: u32 = 0x4000_0000;
    // arch/x86/entry/syscalls/syscall_64.tbl
    pub(crate) const NATIVE: &[Number] = &[
        (228, ClockGettime),
        (96, Gettimeofday),
        (201, Time),
        (229, ClockGetres),
        (309, Getcpu),
    ];
    // arch/x86/entry/syscalls/syscall_32.tbl
    pub(crate) const COMPAT: &[Number] = &[
        (265, ClockGettime),
        (403, ClockGettime64),
        (78, Gettimeofday),
        (13, Time),
        (266, ClockGetres),
        (406, ClockGetresTime64),
        (318, Getcpu),
    ];
    pub(crate) const COMPAT_NAME: &str = "i386";
    pub(crate) const AUDIT: u32 = 0xc000_003e;
    pub(crate) const COMPAT_AUDIT: u32 = 0x4000_0003;
}

#[cfg(target_arch = "aarch64")]
mod isa {
    use super::{Function::*, Number, Registers};

    // arch/arm64/include/asm/ptrace.h: x0 to x30, sp, pc, pstate
    pub(crate) const REGISTERS: Registers = Registers {
        size: 272,
        ip: 256,
        sp: 248,
        frame: 232,
        argument: 0,
        compat_argument: 0,
    };
    pub(crate) const PSTATE: i16 = 264;
    /// Set in pstate of 32-bit programs.
    pub(crate) const PSR_MODE32_BIT: i32 = 0x10;
    pub(crate) const FOREIGN_BIT: u32 = 0;
    // include/uapi/asm-generic/unistd.h
    pub(crate) const NATIVE: &[Number] = &[
        (113, ClockGettime),
        (169, Gettimeofday),
        (114, ClockGetres),
        (168, Getcpu),
    ];
    // arch/arm64/tools/syscall_32.tbl
    pub(crate) const COMPAT: &[Number] = &[
        (263, ClockGettime),
        (403, ClockGettime64),
        (78, Gettimeofday),
        (264, ClockGetres),
        (406, ClockGetresTime64),
        (345, Getcpu),
    ];
    pub(crate) const COMPAT_NAME: &str = "arm";
    pub(crate) const AUDIT: u32 = 0xc000_00b7;
    pub(crate) const COMPAT_AUDIT: u32 = 0x4000_0028;
}

pub(crate) use isa::*;
