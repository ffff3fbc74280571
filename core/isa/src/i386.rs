//! i386: 32-bit programs, under a 64-bit kernel or alone.

use crate::bytes::{put_u32, u32_at};
use crate::{IsaFacts, SystemCalls, Unwind, Version, x86};

pub(crate) static FACTS: IsaFacts = IsaFacts {
    name: c"i386",
    rust_name: "x86",
    is_64: false,
    elf_machine: 3,
    unwind: Unwind::EhFrame,
    calls: CALLS,
    answered: None,
    // int $0x80
    system_call: &[0xcd, 0x80],
    prefix: "__vdso_",
    vdso: &[
        Version {
            name: "LINUX_2.6",
            functions: &[
                "__vdso_clock_gettime",
                "__vdso_clock_gettime64",
                "__vdso_gettimeofday",
                "__vdso_time",
                "__vdso_clock_getres",
                "__vdso_clock_getres_time64",
                "__vdso_getcpu",
            ],
            weak: &[],
        },
        Version {
            name: "LINUX_2.5",
            functions: &["__kernel_vsyscall", "__kernel_sigreturn", "__kernel_rt_sigreturn"],
            weak: &[],
        },
    ],
    forwarded: &["clock_getres_time64"],
    counter: x86::COUNTER,
    has_cpu_number: true,
    clang_target: "i386-linux-gnu",
    machine_flags: &["-m32", "-march=i686"],
    // The code is position independent because it gets addresses from pointers.h. For code that gets them from the
    // compiler, -fPIC would keep the GOT's address in a register, and there is no GOT. The last three flags make it fit
    // a page; the hot code is the same.
    image_flags: &[
        "-mgeneral-regs-only",
        "-fno-pic",
        "-mstack-alignment=8",
        "-falign-functions=1",
        "-Os",
    ],
    largest_page: 4096,
    hot_alignment: 4,
    shared_folder: Some("x86"),
    // The code adds a distance to an address, modulo 2^32.
    page_reach: ((1 << 32) - 1, "an address has 32 bits"),
    jump_reach: None,
    landing_pads: &[],
    property: None,
    move_page_reference: x86::move_page_reference,
    improve_counter_read: x86::improve_counter_read,
    jump_to_slot,
    jump_target: x86::jump_target,
};

/// arch/x86/entry/syscalls/syscall_32.tbl
const CALLS: SystemCalls = SystemCalls {
    read: 3,
    write: 4,
    close: 6,
    execve: 11,
    time: Some(13),
    getpid: 20,
    kill: 37,
    gettimeofday: 78,
    settimeofday: 79,
    munmap: 91,
    wait4: 114,
    sigreturn: Some(119),
    clone: 120,
    adjtimex: 124,
    mprotect: 125,
    prctl: 172,
    rt_sigreturn: 173,
    rt_sigaction: 174,
    rt_sigprocmask: 175,
    pread64: 180,
    mmap: 192,
    // fcntl64
    fcntl: 221,
    gettid: 224,
    futex: 240,
    exit_group: 252,
    clock_settime: 264,
    clock_gettime: 265,
    clock_getres: 266,
    openat: 295,
    readlinkat: 305,
    ppoll: 309,
    unshare: 310,
    getcpu: 318,
    prlimit64: 340,
    clock_adjtime: 343,
    setns: 346,
    seccomp: 354,
    memfd_create: 356,
    execveat: 358,
    socket: 359,
    socketpair: 360,
    connect: 362,
    getsockopt: 365,
    sendmsg: 370,
    recvmsg: 372,
    clock_gettime64: Some(403),
    clock_settime64: Some(404),
    clock_adjtime64: Some(405),
    clock_getres_time64: Some(406),
};

/// Writes a jump to the address that is now in the slot.
fn jump_to_slot(image: &mut [u8], at: usize, slot_at: usize, image_address: u64) {
    let to = u64::from(u32_at(image, slot_at));
    jump(image, at, image_address + at as u64, to);
}

/// Writes `jmp rel32` at `at`, which will be at the address `from`, to the address `to`. It needs no register, so it
/// suits `__kernel_vsyscall`, to which all of them are arguments.
pub fn jump(image: &mut [u8], at: usize, from: u64, to: u64) {
    image[at] = 0xe9;
    put_u32(image, at + 1, to.wrapping_sub(from.wrapping_add(5)) as u32);
}

/// Code for this CPU.
#[cfg(target_arch = "x86")]
pub mod cpu {
    pub use crate::x86::cpu::*;

    /// The ISA of this CPU's programs.
    pub const ISA: crate::Isa = crate::Isa::I386;
}
