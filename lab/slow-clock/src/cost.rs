//! What a read takes: a BPF program that spins at the entry of the clocks' system calls.
//!
//! The whole time passes before the kernel reads its clock. An HPET latches its value in the middle of a read across the
//! bus, so a sampler that takes the middle for the time of the value is right there, and early by half of the time here.
//!
//! Several CPUs do not wait for each other: on an HPET host, the CPUs that read at the same time share one value
//! (`read_hpet`, arch/x86/kernel/hpet.c, Linux 4.9).

use std::io;

use fastpath_os::bpf::asm::*;
use fastpath_os::bpf::{AttachedProgram, attach, helper};

use crate::cgroup::Cgroup;

/// Numbers of clock_gettime and gettimeofday in 64-bit programs (arch/x86/entry/syscalls/syscall_64.tbl).
const CLOCK_GETTIME: i32 = 228;
const GETTIMEOFDAY: i32 = 96;
/// The clock ids that read the clocksource (include/uapi/linux/time.h): REALTIME, MONOTONIC, MONOTONIC_RAW, BOOTTIME,
/// REALTIME_ALARM, BOOTTIME_ALARM, TAI. The others read the last tick or the scheduler's clock.
const CLOCKS: [i32; 7] = [0, 1, 4, 7, 8, 9, 11];
/// Offset of the first argument in the registers of a system call (`di` of struct pt_regs,
/// arch/x86/include/uapi/asm/ptrace.h).
const DI: i32 = 112;
/// Least time that one turn of the loop takes, in nanoseconds: a read of the TSC.
const TURN_NS: u32 = 10;
/// Offset in the stack frame.
const CLOCK: i16 = -8;

/// Makes the clocks' system calls of the cgroup's processes take `ns` longer, for as long as the result lives.
pub fn charge(cgroup: &Cgroup, ns: u32) -> io::Result<AttachedProgram> {
    let cgroup = cgroup.map()?;
    attach(c"sys_enter", &spin(cgroup.fd(), ns))
}

/// Returns the program for the raw tracepoint `sys_enter`, whose arguments are the registers and the number.
fn spin(cgroup: i32, ns: u32) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    asm.load(Width::Double, R7, R1, 8);
    asm.if_is(R7, CLOCK_GETTIME, "reads");
    asm.if_is(R7, GETTIMEOFDAY, "reads");
    asm.exit();

    asm.label("reads");
    asm.load(Width::Double, R6, R1, 0);
    // What the checks take is part of the time.
    asm.call(helper::KTIME_GET_NS);
    asm.mov(R9, R0);
    asm.add(R9, ns as i32);
    asm.map(R1, cgroup);
    asm.set(R2, 0);
    asm.call(helper::CURRENT_TASK_UNDER_CGROUP);
    asm.if_is_not(R0, 1, "done");
    asm.if_is(R7, GETTIMEOFDAY, "slow");
    asm.address(R1, CLOCK);
    asm.set(R2, 4);
    asm.mov(R3, R6);
    asm.add(R3, DI);
    asm.call(helper::PROBE_READ_KERNEL);
    asm.if_is_not(R0, 0, "done");
    asm.load(Width::Word, R1, FP, CLOCK);
    for clock in CLOCKS {
        asm.if_is(R1, clock, "slow");
    }
    asm.goto("done");

    asm.label("slow");
    asm.set(R8, (ns / TURN_NS) as i32 + 1);
    asm.label("turn");
    asm.call(helper::KTIME_GET_NS);
    asm.if_at_least(R0, R9, "done");
    asm.add(R8, -1);
    asm.if_is_not(R8, 0, "turn");
    asm.label("done");
    asm.exit();
    asm.finish()
}
