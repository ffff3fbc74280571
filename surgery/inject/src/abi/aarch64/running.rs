//! A thread of a running program that is stopped at any instruction: what the kernel was about to do with it, and where
//! its signal handlers return to.
//!
//! An AArch64 kernel prepares the restart of an interrupted system call before it stops the thread
//! (arch/arm64/kernel/signal.c, do_signal): the program counter is that of the `svc` again, and x0 the first argument. It
//! keeps the call's result, by which it continues a sleep with the rest of its time, and ends a call with EINTR for a
//! handler, for as long as that stop lasts. ptrace shows it at the exit of the call only.

use std::ops::Range;

use fastpath_image::Isa;
use nix::sys::ptrace;
use nix::unistd::Pid;

use super::{INSTRUCTION, Registers, SVC};
use crate::abi::running::{SignalFrame, restart};
use crate::error::{Error, Result};
use crate::target::permissions::may_restart;
use crate::target::tracee::{Stop, Tracee, Until};

/// Calls that return EINTR when the process is stopped and goes on, though no handler ran (signal(7)); those on sockets
/// only with a timeout.
pub const ANSWERS_EINTR: &[i64] = &[
    libc::SYS_epoll_pwait,
    441, // epoll_pwait2
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    292, // io_pgetevents
    libc::SYS_io_uring_enter,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_read,
    libc::SYS_write,
];

/// Calls that make processes, which last until the new one has started.
pub const MAKES_PROCESSES: &[i64] = &[libc::SYS_clone, libc::SYS_clone3];
/// Calls that sleep, whose rest only the kernel knows.
pub const SLEEPS: &[i64] = &[libc::SYS_nanosleep, libc::SYS_clock_nanosleep];

/// Calls that the kernel may continue by restart_syscall; fastpath makes none of them in a program.
const CONTINUED: [i64; 4] = [
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_futex,
    libc::SYS_restart_syscall,
];

/// Whether threads may handle their system calls themselves (prctl(2), PR_SET_SYSCALL_USER_DISPATCH) on a kernel that does not
/// tell a tracer: this ISA's kernels tell.
pub const HIDES_DISPATCHERS: bool = false;

/// Ends the call in which the thread was interrupted, so that `program` has the call's result. Returns false if something
/// else happened: the thread is then in the next stop, with the registers `program`.
pub fn show_call<E: From<Error>>(
    tracee: &Tracee,
    program: &mut Registers,
    wait: impl Fn(&Tracee) -> std::result::Result<Stop, E>,
) -> std::result::Result<bool, E> {
    Ok(!is_at_call(tracee, program) || enter_again(tracee, program, None, wait)?.is_none())
}

/// Lets the thread enter the call at its program counter, and leave it at once: at the exit, `program` has the call's result. If something else happens before it enters, returns the next stop, in which it has the registers
/// `program`; a signal then finds it with the registers `ended`, if there are any.
fn enter_again<E: From<Error>>(
    tracee: &Tracee,
    program: &mut Registers,
    ended: Option<&Registers>,
    wait: impl Fn(&Tracee) -> std::result::Result<Stop, E>,
) -> std::result::Result<Option<Stop>, E> {
    let may_restart = may_restart(tracee, Isa::Aarch64);
    tracee.resume(Until::Syscall, 0)?;
    let mut stop = wait(tracee)?;
    if stop != Stop::Syscall {
        ended.map_or(Ok(()), |ended| tracee.set_registers(ended))?;
        // A thread that job control has stopped has a second stop, for the request that came after the first. No request is
        // left behind: the thread would never come to its call.
        while !matches!(stop, Stop::Interrupt | Stop::Group) {
            tracee.interrupt()?;
            tracee.resume(Until::Event, stop.signal())?;
            stop = wait(tracee)?;
        }
        *program = tracee.registers()?;
        return Ok(Some(stop));
    }
    tracee.interrupt()?;
    let mut entered = tracee.registers()?;
    let first = entered.general.regs[0];
    if !may_restart && i64::from(entered.system_call) == libc::SYS_restart_syscall {
        entered.general.regs[8] = program.general.regs[8];
        tracee.set_registers(&entered)?;
        entered.set_system_call(tracee.pid(), program.general.regs[8] as i32)?;
    }
    tracee.resume(Until::Syscall, 0)?;
    let Stop::Syscall = wait(tracee)? else {
        return Err(Error::Unsupported("a system call of it does not end".into()).into());
    };
    // Until the thread goes on, this register shows that the call ends.
    let x7 = program.general.regs[7];
    *program = tracee.registers()?;
    program.general.regs[7] = x7;
    program.end_call(first, may_restart);
    Ok(None)
}

/// Sets the registers at the exit of the thread's own call, where the kernel decides how that continues. Returns the stop
/// just after it; `program` has the registers in it.
fn leave_call(tracee: &Tracee, program: &mut Registers) -> Result<Stop> {
    // Every stop cancels the request of another.
    tracee.interrupt()?;
    tracee.set_registers(program)?;
    tracee.resume(Until::Event, 0)?;
    let stop = next_stop(tracee)?;
    *program = tracee.registers()?;
    Ok(stop)
}

fn next_stop(tracee: &Tracee) -> Result<Stop> {
    tracee.next_event(true)?.ok_or(Error::Gone)
}

/// Makes a stopped thread go on at `pc`, even if this process dies. If it waits in a call, `pc` is where it makes that
/// again. Returns the stop that it is then in.
pub fn move_to(tracee: &Tracee, stop: Stop, program: &mut Registers, pc: u64) -> Result<Stop> {
    let waits = |(number, first)| {
        let regs = &program.general.regs;
        regs[8] == number as u64 && regs[0] == first && is_at_call(tracee, program)
    };
    if !tracee.interrupted_call.get().is_some_and(waits) {
        program.general.pc = pc;
        return tracee.set_registers(program).map(|()| stop);
    }
    match enter_again(tracee, program, None, next_stop)? {
        Some(stop) => Ok(stop),
        None => {
            program.general.pc = pc + INSTRUCTION as u64;
            leave_call(tracee, program)
        }
    }
}

/// Number and first argument of a system call.
pub type OpenCall = (i64, u64);

/// Returns the call in which a thread waits: when a stop has ended it with EINTR, nothing shows its first argument.
pub fn open_call(tracee: &Tracee) -> Option<OpenCall> {
    fastpath_os::syscall(format!("{}/task/{}", tracee.process(), tracee.pid()))
}

/// If a stop ended a system call of the thread with EINTR, or would make the kernel continue one by a restart_syscall that a
/// filter of the thread may not allow, makes the kernel repeat the call: a sleep begins anew, but a filter that kills does
/// not. The thread is then in the stop that this returns, with these registers.
pub fn undo_interruption(tracee: &Tracee, stop: Stop, program: &mut Registers) -> Result<Stop> {
    if stop.signal() != 0 || program.is_32_bit {
        return Ok(stop);
    }
    let mut ended = None;
    if let Some((number, first)) = tracee.interrupted_call.get()
        && program.general.regs[8] == number as u64
        && program.general.regs[0] as i64 == -i64::from(libc::EINTR)
        && ANSWERS_EINTR.contains(&number)
    {
        ended = Some(*program);
        program.general.pc -= INSTRUCTION as u64;
        program.general.regs[0] = first;
        tracee.set_registers(program)?;
    } else {
        let call = tracee.interrupted_call.get();
        let is_continued = call.is_some_and(|(number, _)| CONTINUED.contains(&number)) && is_at_call(tracee, program);
        if !is_continued || may_restart(tracee, Isa::Aarch64) {
            return Ok(stop);
        }
    }
    match enter_again(tracee, program, ended.as_ref(), next_stop)? {
        Some(stop) => Ok(stop),
        None => leave_call(tracee, program),
    }
}

/// Returns whether the thread will make a system call next, or once more.
fn is_at_call(tracee: &Tracee, program: &Registers) -> bool {
    let word = ptrace::read(Pid::from_raw(tracee.pid()), program.pc() as ptrace::AddressType);
    !program.is_32_bit && word.is_ok_and(|word| word as u32 == SVC)
}

impl Registers {
    /// Notes the first argument of the call whose result this is, if the kernel will make the call again.
    fn end_call(&mut self, first: u64, may_restart: bool) {
        let number = i64::from(self.system_call);
        let result = &mut self.general.regs[0];
        match *result as i64 {
            restart::RESTARTBLOCK if !may_restart => *result = restart::NOHAND as u64,
            restart::SYS | restart::NOINTR | restart::NOHAND | restart::RESTARTBLOCK => {}
            // A handler makes it EINTR again.
            error if error == -i64::from(libc::EINTR) && ANSWERS_EINTR.contains(&number) => {
                *result = restart::NOHAND as u64
            }
            _ => self.system_call = -1,
        }
        self.first = first;
    }

    /// Changes the program counter.
    pub fn set_pc(&mut self, pc: u64) {
        self.general.pc = pc;
    }

    /// Returns whether the thread runs 32-bit code.
    pub fn is_32_bit(&self) -> bool {
        self.is_32_bit
    }

    /// Returns whether a general register holds an address in one of these ranges: a program that has loaded the
    /// address of a thunk may be about to call it. x16 and x17 belong to the code between functions, as thunks are
    /// (AAPCS64).
    pub fn point_into(&self, ranges: &[Range<u64>]) -> bool {
        let r = &self.general.regs;
        let mut words = r[..16].iter().chain(&r[18..]);
        words.any(|word| ranges.iter().any(|range| range.contains(word)))
    }

    /// Returns whether the thread is in a system call whose result these registers show.
    pub fn is_in_call(&self) -> bool {
        self.system_call >= 0
    }

    /// Returns the number and the first argument of the call by whose exit the thread goes back into its own interrupted one, if
    /// it is in one: a call without effect. At its exit, the thread gets the registers that it had at the exit of its own call. The
    /// kernel keeps that call's first argument where ptrace cannot write it, so this one gets the same.
    pub fn last_call(&self) -> Option<[u64; 2]> {
        self.is_in_call().then_some([libc::SYS_getpid as u64, self.first])
    }

    /// Returns the registers with which the kernel would resume it if no signal came.
    pub fn continuing(&self) -> Registers {
        let mut registers = *self;
        if self.is_in_call() {
            let r = &mut registers.general;
            let result = r.regs[0] as i64;
            if let restart::SYS | restart::NOINTR | restart::NOHAND | restart::RESTARTBLOCK = result {
                r.pc -= INSTRUCTION as u64;
                r.regs[0] = self.first;
            }
            if result == restart::RESTARTBLOCK {
                r.regs[8] = libc::SYS_restart_syscall as u64;
            }
        }
        registers
    }
}

/// Finds the signal frames (struct rt_sigframe, arch/arm64/kernel/signal.c) in the words of a stack, by the first record behind
/// the registers: that of the floating-point registers
/// (arch/arm64/include/uapi/asm/sigcontext.h: FPSIMD_MAGIC, and the size of struct fpsimd_context).
pub fn signal_frames(words: &[u64]) -> impl Iterator<Item = SignalFrame> + '_ {
    const FLOATING_POINT: u64 = 0x210 << 32 | 0x4650_8001;
    // sp, pc, pstate, padding. struct ucontext: ss_sp, ss_flags, ss_size; the signal mask in 128 bytes; the fault's address,
    // x0 to x30, these; each of both parts, and the records, are aligned to 16 bytes.
    let indices = (4..words.len()).filter(|i| words[*i] == FLOATING_POINT);
    indices.map(|i| SignalFrame::new(words, i, [3, 4, 56]))
}

/// Number of bytes before an address that show whether a call returns there.
pub const BEFORE_BYTES: u64 = 8;

/// Returns whether the bytes before an address in a thunk are the thunk's call of the hook (`sites::CALL_DOOR`).
pub fn is_behind_door(before: u64) -> bool {
    let [load, call] = super::sites::CALL_DOOR;
    before == u64::from(call) << 32 | u64::from(load)
}

/// Returns the target of the direct call (`bl`) that returns to `at`, if the bytes before that are one.
pub fn called_by(before: u64, at: u64) -> Option<u64> {
    let instruction = (before >> 32) as u32;
    let distance = i64::from((instruction << 6) as i32 >> 6) * INSTRUCTION as i64;
    (instruction >> 26 == 0x25).then(|| at.wrapping_sub(INSTRUCTION as u64).wrapping_add_signed(distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interrupted(number: i64, result: i64) -> Registers {
        let mut registers = Registers::zeroed();
        registers.general.pc = 0x5555_1004;
        (registers.general.regs[0], registers.general.regs[8]) = (result as u64, number as u64);
        registers.system_call = number as i32;
        registers.end_call(3, true);
        registers
    }

    #[test]
    fn an_interrupted_call_goes_on_as_the_kernel_has_it_go_on() {
        let goes_on = |number, result| {
            let r = interrupted(number, result).continuing().general;
            (r.pc, r.regs[0] as i64, r.regs[8] as i64)
        };
        for result in [restart::SYS, restart::NOINTR, restart::NOHAND] {
            assert_eq!(goes_on(libc::SYS_ppoll, result), (0x5555_1000, 3, libc::SYS_ppoll));
        }
        let eintr = -i64::from(libc::EINTR);
        assert_eq!(
            goes_on(libc::SYS_epoll_pwait, eintr),
            (0x5555_1000, 3, libc::SYS_epoll_pwait)
        );
        let sleep = goes_on(libc::SYS_nanosleep, restart::RESTARTBLOCK);
        assert_eq!(sleep, (0x5555_1000, 3, libc::SYS_restart_syscall));
        for (number, result) in [(libc::SYS_nanosleep, eintr), (libc::SYS_read, 7)] {
            assert_eq!(goes_on(number, result), (0x5555_1004, result, number));
            assert!(!interrupted(number, result).is_in_call());
        }
        // Not in a call: a value that looks like a result is the program's own.
        assert_eq!(goes_on(-1, restart::SYS), (0x5555_1004, restart::SYS, -1));
    }

    #[test]
    fn the_target_of_a_call_is_found_from_its_return_address() {
        // nop; bl .-0x20
        let code = 0x97ff_fff8_d503_201f;
        assert_eq!(called_by(code, 0x7000), Some(0x6fdc));
        assert_eq!(called_by(0x17ff_fff8_d503_201f, 0x7000), None, "b");
        assert!(!is_behind_door(code));
    }

    /// The kernel's own frame, in a handler.
    #[test]
    fn the_registers_and_the_alternate_stack_in_a_signal_frame_are_found() {
        static FOUND: std::sync::OnceLock<(Vec<SignalFrame>, [u64; 2])> = std::sync::OnceLock::new();
        extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
            // SAFETY: the kernel gives a handler with SA_SIGINFO the context, and the records behind it.
            let (words, own) = unsafe {
                let registers = &(*context.cast::<libc::ucontext_t>()).uc_mcontext;
                let words = std::slice::from_raw_parts(context.cast::<u64>(), 60);
                (words, [registers.pc, registers.sp])
            };
            let _ = FOUND.set((signal_frames(words).collect(), own));
        }
        let mut stack = vec![0_u8; 1 << 16];
        let start = stack.as_mut_ptr() as u64;
        // SAFETY: the structures are plain data; the stack outlives its use by the handler, which only reads its frame.
        unsafe {
            let mut alternate: libc::stack_t = std::mem::zeroed();
            (alternate.ss_sp, alternate.ss_size) = (stack.as_mut_ptr().cast(), stack.len());
            assert_eq!(libc::sigaltstack(&raw const alternate, std::ptr::null_mut()), 0);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_flags = libc::SA_ONSTACK | libc::SA_SIGINFO;
            action.sa_sigaction = handler as extern "C" fn(_, _, _) as usize;
            let set = libc::sigaction(libc::SIGRTMIN(), &raw const action, std::ptr::null_mut());
            assert_eq!((set, libc::raise(libc::SIGRTMIN())), (0, 0));
            alternate.ss_flags = libc::SS_DISABLE;
            assert_eq!(libc::sigaltstack(&raw const alternate, std::ptr::null_mut()), 0);
        }
        let (frames, own) = FOUND.get().expect("that the handler ran");
        let [frame] = frames.as_slice() else {
            panic!("{frames:?}");
        };
        assert_eq!([frame.pc, frame.sp], *own);
        assert_eq!(frame.alternate_stack, Some(start..start + (1 << 16)));
    }
}
