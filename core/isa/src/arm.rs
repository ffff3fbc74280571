//! 32-bit Arm, from version 7-A on. Instructions: Arm ARM F5.1.

use crate::bytes::{first_u32, put_u32, u32_at};
use crate::{Counter, IsaFacts, SystemCalls, Unwind, Version};

pub(crate) static FACTS: IsaFacts = IsaFacts {
    name: c"arm",
    rust_name: "arm",
    is_64: false,
    elf_machine: 40,
    unwind: Unwind::ArmExidx,
    calls: CALLS,
    answered: None,
    // svc #0
    system_call: &[0x00, 0x00, 0x00, 0xef],
    prefix: "__vdso_",
    vdso: &[Version {
        name: "LINUX_2.6",
        functions: &[
            "__vdso_clock_gettime",
            "__vdso_clock_gettime64",
            "__vdso_gettimeofday",
            "__vdso_clock_getres",
            "__vdso_clock_getres_time64",
        ],
        weak: &[],
    }],
    forwarded: &["clock_getres_time64"],
    counter: COUNTER,
    has_cpu_number: false,
    clang_target: "arm-linux-gnueabi",
    machine_flags: &["-march=armv7-a", "-marm"],
    image_flags: &["-mfloat-abi=soft", "-funwind-tables"],
    // As AArch64's kernels have.
    largest_page: 64 << 10,
    hot_alignment: 4,
    shared_folder: None,
    // The code adds a distance to an address, modulo 2^32.
    page_reach: ((1 << 32) - 1, "an address has 32 bits"),
    jump_reach: None,
    landing_pads: &[],
    property: None,
    move_page_reference,
    // There is no better one.
    improve_counter_read: |_, _, _| {},
    jump_to_slot,
    jump_target,
};

/// The virtual counter of the generic timer, by coprocessor 15: Arm ARM (DDI 0406) B8, "The Generic Timer". The order
/// of the read is as on AArch64 (`core/image/vdso/arm/counter.h`).
const COUNTER: Counter = Counter {
    // A3.8: orders every access before it, in program order, before every one after it. ARMv7 has no barrier for loads
    // alone.
    load_barrier: "dmb ish",
    // isb; mrrc p15, 1, Rt, Rt2, c14
    read: &[
        (0x6f, 0xff),
        (0xf0, 0xff),
        (0x7f, 0xff),
        (0xf5, 0xff),
        (0x1e, 0xff),
        (0x0f, 0x0f),
        (0x50, 0xf0),
        (0xec, 0xff),
    ],
    trapped: None,
    invariant_source: "the auxiliary vector, HWCAP_EVTSTRM",
    not_invariant: "firmware has not set up the counter (its frequency, CNTFRQ_EL0, is 0)",
};

/// arch/arm/tools/syscall.tbl
const CALLS: SystemCalls = SystemCalls {
    read: 3,
    write: 4,
    close: 6,
    execve: 11,
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
    exit_group: 248,
    clock_settime: 262,
    clock_gettime: 263,
    clock_getres: 264,
    socket: 281,
    connect: 283,
    socketpair: 288,
    getsockopt: 295,
    sendmsg: 296,
    recvmsg: 297,
    openat: 322,
    readlinkat: 332,
    ppoll: 336,
    unshare: 337,
    getcpu: 345,
    prlimit64: 369,
    clock_adjtime: 372,
    setns: 375,
    seccomp: 383,
    memfd_create: 385,
    execveat: 387,
    clock_gettime64: Some(403),
    clock_settime64: Some(404),
    clock_adjtime64: Some(405),
    clock_getres_time64: Some(406),
    time: None,
};

/// Adds to the halves of MOVW and MOVT: imm4:imm12 each.
fn move_page_reference(image: &mut [u8], at: usize, by: i64) {
    let half = |instruction: u32| instruction >> 4 & 0xf000 | instruction & 0xfff;
    let with = |instruction: u32, half: u32| instruction & !0xf_0fff | (half & 0xf000) << 4 | half & 0xfff;
    let (low, high) = (u32_at(image, at), u32_at(image, at + 4));
    let distance = (half(high) << 16 | half(low)).wrapping_add(by as u32);
    put_u32(image, at, with(low, distance & 0xffff));
    put_u32(image, at + 4, with(high, distance >> 16));
}

/// Writes `ldr pc, [pc, #distance]`, which counts from two instructions on, up or down.
fn jump_to_slot(image: &mut [u8], at: usize, slot_at: usize, _: u64) {
    let distance = (slot_at as u32).wrapping_sub(at as u32 + 8) as i32;
    let up = u32::from(distance >= 0) << 23;
    put_u32(image, at, 0xe51f_f000 | up | distance.unsigned_abs() & 0xfff);
}

/// Decodes `b`, which counts from two instructions on.
fn jump_target(code: &[u8], address: u64) -> Option<u64> {
    let instruction = first_u32(code)?;
    let distance = i64::from((instruction << 8) as i32 >> 8) * 4;
    (instruction >> 24 == 0xea).then(|| (address + 8).wrapping_add_signed(distance))
}

/// Code for this CPU.
#[cfg(target_arch = "arm")]
pub mod cpu {
    use core::arch::asm;
    use std::hint::black_box;

    use crate::CpuFeatures;

    /// The ISA of this CPU's programs.
    pub const ISA: crate::Isa = crate::Isa::Arm;

    /// Returns nothing: no instruction reads the counter together with the CPU's number.
    pub fn read_counter_and_cpu() -> Option<(u64, usize)> {
        None
    }

    /// Reads the counter: after all that precedes it in the program, before all that follows it.
    #[inline]
    pub fn read_counter() -> u64 {
        let (low, high): (u32, u32);
        // SAFETY: where the counter is missing or may not be read, the caller does not get here: the verdict on it has
        // refused. No `nomem`: accesses stay on their side.
        unsafe {
            asm!("isb", "mrrc p15, 1, {low}, {high}, c14", "isb", low = out(reg) low, high = out(reg) high,
                options(nostack, preserves_flags));
        }
        u64::from(high) << 32 | u64::from(low)
    }

    /// Makes every earlier store visible to all CPUs before a counter read after it: as on AArch64.
    pub fn complete_stores() {
        // SAFETY: a barrier changes no register and no memory.
        unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    }

    /// Makes so many ordered reads, one after the other, by the instructions that the image uses.
    #[inline(never)]
    pub fn repeat_image_reads(reads: u32) {
        for _ in 0..reads {
            let (low, high): (u32, u32);
            // SAFETY: as in `read_counter`.
            unsafe {
                asm!("isb", "mrrc p15, 1, {low}, {high}, c14", low = out(reg) low, high = out(reg) high,
                    options(nostack, preserves_flags));
            }
            black_box((low, high));
        }
    }

    /// There is one ordered read.
    pub fn choose_read() {}

    /// Returns the instructions of the image's ordered read.
    pub fn image_read() -> &'static str {
        "isb; mrrc p15, 1, c14"
    }

    /// Returns whether there is a counter: [`is_counter_invariant`] says that of an Arm CPU.
    pub fn has_counter() -> bool {
        true
    }

    /// Returns whether there is a generic timer that the kernel runs: then the architecture requires that it ticks at
    /// one rate, and user space may read it. A CPU without one raises an exception at the read, so it must not be
    /// tried.
    pub fn is_counter_invariant() -> bool {
        // HWCAP_EVTSTRM, arch/arm/include/uapi/asm/hwcap.h: the kernel has set up the timer's event stream.
        const HWCAP_EVTSTRM: libc::c_ulong = 1 << 21;
        // SAFETY: getauxval only reads the auxiliary vector.
        unsafe { libc::getauxval(libc::AT_HWCAP) & HWCAP_EVTSTRM != 0 }
    }

    /// Returns nothing: an Arm CPU does not state whether a hypervisor makes it.
    pub fn hypervisor() -> Option<[u8; 12]> {
        None
    }

    /// Returns the CPU's features: none matters.
    pub fn features() -> CpuFeatures {
        CpuFeatures::default()
    }
}
