//! The programs that the cgroup's processes execute: a BPF program reports each one, and it gets the slow vDSO before
//! it runs.
//!
//! Nothing is traced and no signal is sent, so debuggers, job control and fastpath work as on any other host. A thread
//! for each CPU waits for the execs of that CPU, with real-time priority: it runs as soon as the kernel lets another
//! thread run there, and that is before the new program's first instruction. A program is early only if another CPU
//! takes it over in that moment.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use fastpath_os::bpf::asm::*;
use fastpath_os::bpf::{AttachedProgram, Map, MapKind, PidNamespace, Ring, attach, helper};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::cgroup::Cgroup;
use crate::vdso::SlowVdso;

/// Bytes of a CPU's ring: room for 256 execs.
const RING_SIZE: u32 = 4096;
/// BPF_RB_FORCE_WAKEUP, include/uapi/linux/bpf.h.
const WAKE_UP: i32 = 2;
/// Offsets in the stack frame.
const PROCESS: i16 = -8;
const SCRATCH: i16 = -16;

/// Gives each program that a process of the cgroup executes the slow vDSO, for as long as the result lives.
pub fn follow(cgroup: &Cgroup, vdso: SlowVdso) -> io::Result<AttachedProgram> {
    let vdso = Arc::new(vdso);
    let mut rings = Vec::new();
    for cpu in 0..cpus() {
        let map = Map::new(MapKind::Ring, 0, 0, RING_SIZE)?;
        let ring = Ring::new(&map, RING_SIZE)?;
        rings.push(map.fd());
        let vdso = vdso.clone();
        thread::Builder::new().spawn(move || patch_at_execs(cpu, &map, ring, &vdso))?;
    }
    let cgroup = cgroup.map()?;
    attach(
        c"sched_process_exec",
        &report(cgroup.fd(), PidNamespace::own()?, &rings),
    )
}

/// Returns how many CPUs this machine has, present or not.
fn cpus() -> usize {
    // SAFETY: sysconf takes only an integer.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(1) as usize
}

/// Returns the program for the raw tracepoint `sched_process_exec`, which the kernel passes when the new program is
/// mapped. It writes the process's number to the ring of its CPU.
fn report(cgroup: i32, namespace: PidNamespace, rings: &[i32]) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    asm.map(R1, cgroup);
    asm.set(R2, 0);
    asm.call(helper::CURRENT_TASK_UNDER_CGROUP);
    asm.if_is_not(R0, 1, "done");
    namespace.load_pid(&mut asm, SCRATCH, "done");
    asm.store(Width::Double, FP, PROCESS, R0);
    asm.call(helper::GET_SMP_PROCESSOR_ID);
    for cpu in 0..rings.len() {
        asm.if_is(R0, cpu as i32, &format!("cpu {cpu}"));
    }
    asm.goto("done");
    for (cpu, ring) in rings.iter().enumerate() {
        asm.label(format!("cpu {cpu}"));
        asm.map(R1, *ring);
        asm.goto("write");
    }
    asm.label("write");
    asm.address(R2, PROCESS);
    asm.set(R3, 8);
    asm.set(R4, WAKE_UP);
    asm.call(helper::RINGBUF_OUTPUT);
    asm.label("done");
    asm.exit();
    asm.finish()
}

fn patch_at_execs(cpu: usize, map: &Map, mut ring: Ring, vdso: &SlowVdso) {
    if let Err(e) = be_first_on(cpu) {
        eprintln!("slow-clock: real-time priority on CPU {cpu}: {e}; programs may start with fast clocks");
    }
    let mut fds = [PollFd::new(map.as_fd(), PollFlags::POLLIN)];
    loop {
        let _ = poll(&mut fds, PollTimeout::NONE);
        ring.drain(|record| {
            let Some(pid) = record.first_chunk().map(|pid| u64::from_ne_bytes(*pid)) else {
                return;
            };
            if let Err(why) = vdso.give_to(&pid.to_string()) {
                eprintln!("slow-clock: process {pid} keeps fast clocks: {why}");
            }
        });
    }
}

/// Makes this thread run on one CPU, before all others that have no real-time priority.
fn be_first_on(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    // A CPU that is offline executes nothing.
    let _ = sched_setaffinity(Pid::from_raw(0), &set);
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads one sched_param.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
