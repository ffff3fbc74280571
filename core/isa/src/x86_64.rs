//! x86-64.

use crate::bytes::put_u32;
use crate::{AnsweredCalls, IsaFacts, Property, SystemCalls, Unwind, Version, x86};

pub(crate) static FACTS: IsaFacts = IsaFacts {
    name: c"x86_64",
    rust_name: "x86_64",
    is_64: true,
    elf_machine: 62,
    unwind: Unwind::EhFrame,
    calls: CALLS,
    answered: Some(ANSWERED),
    // syscall
    system_call: &[0x0f, 0x05],
    prefix: "__vdso_",
    vdso: &[Version {
        name: "LINUX_2.6",
        functions: &[
            "__vdso_clock_gettime",
            "__vdso_gettimeofday",
            "__vdso_time",
            "__vdso_clock_getres",
            "__vdso_getcpu",
            "__vdso_getrandom",
            "__vdso_sgx_enter_enclave",
        ],
        weak: &[
            "clock_gettime",
            "gettimeofday",
            "time",
            "clock_getres",
            "getcpu",
            "getrandom",
        ],
    }],
    forwarded: &["getrandom", "sgx_enter_enclave"],
    counter: x86::COUNTER,
    has_cpu_number: true,
    clang_target: "x86_64-linux-gnu",
    machine_flags: &["-m64"],
    // endbr64 at every function: a process that enforces indirect branch tracking calls them through pointers.
    image_flags: &["-fcf-protection=branch", "-mgeneral-regs-only"],
    largest_page: 4096,
    hot_alignment: 8,
    shared_folder: Some("x86"),
    // The displacement has 32 bits, and counts from an instruction in the image.
    page_reach: ((1 << 31) - (1 << 16), "it reaches 2 GiB, less 64 KiB, to either side"),
    // `jmp rel32` reaches two gigabytes.
    jump_reach: Some(0x7f00_0000),
    // endbr64
    landing_pads: &[[0xf3, 0x0f, 0x1e, 0xfa]],
    property: Some(Property {
        // GNU_PROPERTY_X86_FEATURE_1_AND
        kind: 0xc000_0002,
        features: Property::LANDING_PADS | Property::SHADOW_STACK,
        // It goes on behind a guest's system call, where there is no landing pad.
        features_for_hosts: Property::SHADOW_STACK,
    }),
    move_page_reference: x86::move_page_reference,
    improve_counter_read: x86::improve_counter_read,
    jump_to_slot,
    jump_target: x86::jump_target,
};

/// arch/x86/entry/syscalls/syscall_64.tbl
const CALLS: SystemCalls = SystemCalls {
    read: 0,
    write: 1,
    close: 3,
    mmap: 9,
    mprotect: 10,
    munmap: 11,
    rt_sigaction: 13,
    rt_sigprocmask: 14,
    rt_sigreturn: 15,
    pread64: 17,
    getpid: 39,
    socket: 41,
    connect: 42,
    sendmsg: 46,
    recvmsg: 47,
    socketpair: 53,
    getsockopt: 55,
    clone: 56,
    execve: 59,
    wait4: 61,
    kill: 62,
    fcntl: 72,
    gettimeofday: 96,
    prctl: 157,
    adjtimex: 159,
    settimeofday: 164,
    gettid: 186,
    time: Some(201),
    futex: 202,
    clock_settime: 227,
    clock_gettime: 228,
    clock_getres: 229,
    exit_group: 231,
    openat: 257,
    readlinkat: 267,
    ppoll: 271,
    unshare: 272,
    prlimit64: 302,
    clock_adjtime: 305,
    setns: 308,
    getcpu: 309,
    seccomp: 317,
    memfd_create: 319,
    execveat: 322,
    clock_adjtime64: None,
    clock_getres_time64: None,
    clock_gettime64: None,
    clock_settime64: None,
    sigreturn: None,
};

/// The same table.
const ANSWERED: AnsweredCalls = AnsweredCalls {
    getuid: 102,
    getgid: 104,
    geteuid: 107,
    getegid: 108,
    getppid: 110,
    getpgrp: Some(111),
    getresuid: 118,
    getresgid: 120,
    getpgid: 121,
    setfsuid: 122,
    setfsgid: 123,
    getsid: 124,
    getrandom: 318,
};

/// Writes `jmp *distance(%rip)`.
fn jump_to_slot(image: &mut [u8], at: usize, slot_at: usize, _: u64) {
    image[at..at + 2].copy_from_slice(&[0xff, 0x25]);
    put_u32(image, at + 2, (slot_at as u32).wrapping_sub(at as u32 + 6));
}

/// Code for this CPU.
#[cfg(target_arch = "x86_64")]
pub mod cpu {
    pub use crate::x86::cpu::*;

    /// The ISA of this CPU's programs.
    pub const ISA: crate::Isa = crate::Isa::X86_64;
}
