//! The counting programs, which the kernel runs at every system call.
//!
//! They depend on no layout of kernel structures but `pt_regs`, which is ABI: no BTF, no tracefs, no compiler.

use fastpath_code::TimeCall;
use fastpath_image::Isa;
use fastpath_os::bpf::asm::*;
use fastpath_os::bpf::{PidNamespace, helper};

use crate::trace::arch;
use crate::trace::call::CallAbi;

/// Parameters of the programs.
pub(super) struct Parameters {
    /// Process whose calls are not counted.
    pub own_pid: u32,
    /// PID namespace to number processes in.
    pub namespace: PidNamespace,
    /// Descriptor of the map from site to count.
    pub counts: i32,
    /// Descriptor of a map of two counters: calls that found no room in `counts`, and samples that found none in
    /// `samples`.
    pub lost: i32,
    /// Descriptor of a ring of samples, and the interval of the random samples in calls, a power of two.
    pub samples: Option<(i32, u32)>,
}

/// Size of a site's key: pid, function, abi, clock, 4 bytes each; ip.
pub(super) const KEY_SIZE: u32 = 24;
/// Size of a count: calls, time of the first (ns), comm.
pub(super) const VALUE_SIZE: u32 = 32;
/// Size of a sample's head: key, calls so far, sp, frame pointer, bytes of stack, time. The stack follows.
pub(super) const SAMPLE_HEAD: u32 = 64;
/// Bytes of stack in a sample: libc's frame and its caller's are within; deeper ones if frames are small.
pub(super) const STACK_SIZE: u32 = 2048;
/// Bytes that are read near the top of a stack, where fewer are mapped.
const STACK_AT_LEAST: u32 = 256;
/// Number of a site's first calls, all of which are sampled.
const ALWAYS_SAMPLED: i32 = 64;

const BPF_NOEXIST: i32 = 1;
const BPF_RB_NO_WAKEUP: i32 = 1;

// Layout of the stack frame.
const REGISTERS: i16 = -arch::REGISTERS.size;
const KEY: i16 = REGISTERS - KEY_SIZE as i16;
const VALUE: i16 = KEY - VALUE_SIZE as i16;
const SCRATCH: i16 = VALUE - 8;

const KEY_PID: i16 = KEY;
const KEY_FUNCTION: i16 = KEY + 4;
const KEY_ABI: i16 = KEY + 8;
const KEY_CLOCK: i16 = KEY + 12;
const KEY_IP: i16 = KEY + 16;

fn register(offset: i16) -> i16 {
    REGISTERS + offset
}

/// Returns the program for the raw tracepoint `sys_enter`, whose arguments are the registers and the number.
pub(super) fn at_system_call(parameters: &Parameters) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    asm.load(Width::Double, R7, R1, 8);
    asm.mov(R8, R7);
    asm.and(R8, !arch::FOREIGN_BIT as i32);
    let [native, compat] = [Isa::HOST, arch::COMPAT].map(|isa| TimeCall::numbers(isa).collect::<Vec<_>>());
    for (number, _) in native.iter().chain(&compat) {
        asm.if_is(R8, *number as i32, "candidate");
    }
    asm.exit();

    asm.label("candidate");
    asm.load(Width::Double, R3, R1, 0);
    asm.address(R1, REGISTERS);
    asm.set(R2, i32::from(arch::REGISTERS.size));
    asm.call(helper::PROBE_READ_KERNEL);
    asm.if_is_not(R0, 0, "done");
    asm.load(Width::Double, R6, FP, register(arch::REGISTERS.ip));
    asm.store(Width::Double, FP, KEY_IP, R6);
    arch::branch_on_abi(&mut asm, REGISTERS, SCRATCH);
    numbers(
        &mut asm,
        "native",
        R8,
        &native,
        CallAbi::Native,
        arch::REGISTERS.argument,
    );
    numbers(
        &mut asm,
        "compat",
        R7,
        &compat,
        CallAbi::Compat,
        arch::REGISTERS.compat_argument,
    );
    count(&mut asm, parameters, true);
    asm.finish()
}

/// Returns the program for the raw tracepoint `emulate_vsyscall`, whose argument is the number of the entry. With
/// `sees_callers` it also finds the caller, which requires Linux 5.15 built with BTF.
pub(super) fn at_vsyscall(parameters: &Parameters, sees_callers: bool) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    asm.load(Width::Double, R7, R1, 0);
    asm.store_value(Width::Double, FP, KEY_IP, 0);
    if sees_callers {
        return_from_vsyscall(&mut asm);
    }
    let entries = [(0, TimeCall::Gettimeofday), (1, TimeCall::Time), (2, TimeCall::Getcpu)];
    numbers(&mut asm, "native", R7, &entries, CallAbi::Vsyscall, 0);
    count(&mut asm, parameters, sees_callers);
    asm.finish()
}

/// Computes the registers after the return to the caller of the vsyscall page, whose "functions" push nothing.
fn return_from_vsyscall(asm: &mut Assembler) {
    asm.call(helper::GET_CURRENT_TASK_BTF);
    asm.mov(R1, R0);
    asm.call(helper::TASK_PT_REGS);
    asm.mov(R3, R0);
    asm.address(R1, REGISTERS);
    asm.set(R2, i32::from(arch::REGISTERS.size));
    asm.call(helper::PROBE_READ_KERNEL);
    asm.if_is_not(R0, 0, "done");
    asm.load(Width::Double, R6, FP, register(arch::REGISTERS.sp));
    asm.address(R1, SCRATCH);
    asm.set(R2, 8);
    asm.mov(R3, R6);
    asm.call(helper::PROBE_READ_USER);
    // The kernel cannot return there either: it kills the process.
    asm.if_is_not(R0, 0, "done");
    asm.load(Width::Double, R1, FP, SCRATCH);
    asm.store(Width::Double, FP, KEY_IP, R1);
    asm.add(R6, 8);
    asm.store(Width::Double, FP, register(arch::REGISTERS.sp), R6);
}

/// At `label`, writes the function, the ABI and the clock to the key and branches to `count`, or to `done` if the
/// number is none of these.
fn numbers(
    asm: &mut Assembler,
    label: &str,
    number: Register,
    numbers: &[(u32, TimeCall)],
    abi: CallAbi,
    argument: i16,
) {
    asm.label(label);
    asm.store_value(Width::Word, FP, KEY_ABI, abi as i32);
    for (number_of, function) in numbers {
        asm.if_is(number, *number_of as i32, &format!("{label} {}", function.name()));
    }
    asm.goto("done");
    for (_, function) in numbers {
        asm.label(format!("{label} {}", function.name()));
        asm.store_value(Width::Word, FP, KEY_FUNCTION, *function as i32);
        if function.takes_a_clock() {
            asm.load(Width::Word, R1, FP, register(argument));
            asm.store(Width::Word, FP, KEY_CLOCK, R1);
        } else {
            asm.store_value(Width::Word, FP, KEY_CLOCK, 0);
        }
        asm.goto("count");
    }
}

fn count(asm: &mut Assembler, parameters: &Parameters, has_registers: bool) {
    asm.label("count");
    parameters.namespace.load_pid(asm, SCRATCH, "done");
    asm.if_is(R0, parameters.own_pid as i32, "done");
    asm.store(Width::Word, FP, KEY_PID, R0);
    lookup(asm, parameters);
    asm.if_is_not(R0, 0, "known");

    asm.store_value(Width::Double, FP, VALUE, 1);
    asm.call(helper::KTIME_GET_NS);
    asm.store(Width::Double, FP, VALUE + 8, R0);
    asm.store_value(Width::Double, FP, VALUE + 16, 0);
    asm.store_value(Width::Double, FP, VALUE + 24, 0);
    asm.address(R1, VALUE + 16);
    asm.set(R2, 16);
    asm.call(helper::GET_CURRENT_COMM);
    asm.map(R1, parameters.counts);
    asm.address(R2, KEY);
    asm.address(R3, VALUE);
    asm.set(R4, BPF_NOEXIST);
    asm.call(helper::MAP_UPDATE);
    asm.set(R7, 1);
    asm.if_is(R0, 0, "sample");
    // Another thread was first, or there is no room.
    lookup(asm, parameters);
    asm.if_is_not(R0, 0, "known");
    count_lost(asm, parameters, 0);

    asm.label("known");
    asm.set(R1, 1);
    asm.atomic_add(R0, 0, R1);
    asm.load(Width::Double, R7, R0, 0);
    asm.label("sample");
    if let (Some((ring, one_in)), true) = (parameters.samples, has_registers) {
        sample(asm, parameters, ring, one_in);
    }
    asm.label("done");
    asm.exit();
}

fn lookup(asm: &mut Assembler, parameters: &Parameters) {
    asm.map(R1, parameters.counts);
    asm.address(R2, KEY);
    asm.call(helper::MAP_LOOKUP);
}

fn count_lost(asm: &mut Assembler, parameters: &Parameters, which: i32) {
    asm.store_value(Width::Word, FP, SCRATCH, which);
    asm.map(R1, parameters.lost);
    asm.address(R2, SCRATCH);
    asm.call(helper::MAP_LOOKUP);
    asm.if_is(R0, 0, "done");
    asm.set(R1, 1);
    asm.atomic_add(R0, 0, R1);
    asm.goto("done");
}

/// Takes a sample. R7 is the number of calls of this site so far.
fn sample(asm: &mut Assembler, parameters: &Parameters, ring: i32, one_in: u32) {
    asm.if_at_most(R7, ALWAYS_SAMPLED, "take");
    asm.call(helper::GET_PRANDOM);
    asm.and(R0, one_in as i32 - 1);
    asm.if_is_not(R0, 0, "done");
    asm.label("take");
    asm.map(R1, ring);
    asm.set(R2, (SAMPLE_HEAD + STACK_SIZE) as i32);
    asm.set(R3, 0);
    asm.call(helper::RINGBUF_RESERVE);
    asm.if_is_not(R0, 0, "reserved");
    count_lost(asm, parameters, 1);
    asm.label("reserved");
    asm.mov(R8, R0);
    for word in 0..3 {
        asm.load(Width::Double, R1, FP, KEY + 8 * word);
        asm.store(Width::Double, R8, 8 * word, R1);
    }
    asm.store(Width::Double, R8, 24, R7);
    asm.load(Width::Double, R9, FP, register(arch::REGISTERS.sp));
    asm.store(Width::Double, R8, 32, R9);
    asm.load(Width::Double, R1, FP, register(arch::REGISTERS.frame));
    asm.store(Width::Double, R8, 40, R1);
    asm.call(helper::KTIME_GET_NS);
    asm.store(Width::Double, R8, 56, R0);
    for size in [STACK_SIZE, STACK_AT_LEAST] {
        asm.store_value(Width::Double, R8, 48, size as i32);
        asm.mov(R1, R8);
        asm.add(R1, SAMPLE_HEAD as i32);
        asm.set(R2, size as i32);
        asm.mov(R3, R9);
        asm.call(helper::PROBE_READ_USER);
        asm.if_is(R0, 0, "submit");
    }
    asm.store_value(Width::Double, R8, 48, 0);
    asm.label("submit");
    asm.mov(R1, R8);
    // No wake-up: the reader polls often enough.
    asm.set(R2, BPF_RB_NO_WAKEUP);
    asm.call(helper::RINGBUF_SUBMIT);
}
