//! A thread of a running program that is stopped at any instruction: what the kernel was about to do with it, and where
//! its signal handlers return to.

use std::ops::Range;
use std::time::Duration;

use super::Registers;
use crate::abi::running::{SignalFrame, restart};
use crate::target::memory::Memory;
use crate::target::permissions::may_restart;
use crate::target::tracee::{Stop, Tracee};

/// `syscall`
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Calls that return EINTR when the process is stopped and goes on, though no handler ran (signal(7)); those on sockets
/// only with a timeout. None of them has done anything when it returns that, so it may be made again.
pub const ANSWERS_EINTR: &[i64] = &[
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    441, // epoll_pwait2
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    333, // io_pgetevents
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
pub const MAKES_PROCESSES: &[i64] = &[libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3];
/// Calls that sleep, whose rest only the kernel knows.
pub const SLEEPS: &[i64] = &[libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_poll];

/// Whether threads may handle their system calls themselves (prctl(2), PR_SET_SYSCALL_USER_DISPATCH) on a kernel that does not
/// tell a tracer: on those before Linux 6.4.
pub const HIDES_DISPATCHERS: bool = true;

/// Does nothing: a stopped thread's registers have the result of the call in which it was interrupted.
pub fn show_call<E>(
    _tracee: &Tracee,
    _program: &mut Registers,
    _wait: impl Fn(&Tracee) -> Result<Stop, E>,
) -> Result<bool, E> {
    Ok(true)
}

/// Makes a stopped thread go on at `pc`, even if this process dies: the kernel keeps what it does about an interrupted
/// call. Returns the stop that it is then in.
pub fn move_to(tracee: &Tracee, stop: Stop, program: &mut Registers, pc: u64) -> crate::error::Result<Stop> {
    program.set_pc(pc);
    tracee.set_registers(program).map(|()| stop)
}

/// Nothing: a stopped thread's registers show the call in which it was interrupted.
pub type OpenCall = std::convert::Infallible;

/// Returns nothing, for the same reason.
pub fn open_call(_tracee: &Tracee) -> Option<OpenCall> {
    None
}

/// If a stop ended a system call of the thread with EINTR, or would make the kernel continue one by a restart_syscall that a
/// filter of the thread may not allow, makes the kernel repeat the call: a sleep begins anew, but a filter that kills does
/// not. The thread is then in the stop that this returns, with these registers.
pub fn undo_interruption(tracee: &Tracee, stop: Stop, registers: &mut Registers) -> crate::error::Result<Stop> {
    let is_forbidden = || registers.is_restarted() && !may_restart(tracee, crate::abi::for_registers(registers).isa());
    if is_forbidden() {
        registers.repeat_call();
    } else if !registers.undo_interruption() {
        return Ok(stop);
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    registers.bound_wait(Duration::new(now.tv_sec as u64, now.tv_nsec as u32), |address| {
        let word = Memory::open(tracee.process()).ok()?.bytes(address, 8).ok()?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    });
    // The thread may have been killed since its stop.
    let _ = tracee.set_registers(registers);
    Ok(stop)
}

impl Registers {
    /// Changes the program counter.
    pub fn set_pc(&mut self, pc: u64) {
        self.0.rip = pc;
    }

    /// Returns whether a general register holds an address in one of these ranges: a program that has loaded the
    /// address of a thunk may be about to call it. rcx and r11 hold nothing that a program can rely on.
    pub fn point_into(&self, ranges: &[Range<u64>]) -> bool {
        let r = &self.0;
        let words = [
            r.rax, r.rbx, r.rdx, r.rsi, r.rdi, r.rbp, r.r8, r.r9, r.r10, r.r12, r.r13, r.r14, r.r15,
        ];
        words.iter().any(|word| ranges.iter().any(|range| range.contains(word)))
    }

    /// Returns whether the thread is in a system call.
    pub fn is_in_call(&self) -> bool {
        self.0.orig_rax as i64 >= 0
    }

    /// Returns the number and the first argument of the call by whose exit the thread goes back into its own interrupted one:
    /// none, its registers are enough.
    pub fn last_call(&self) -> Option<[u64; 2]> {
        None
    }

    /// Returns the number of the system call that a 64-bit thread is in.
    pub fn call(&self) -> Option<i64> {
        // The upper half may have a note (`super::waits`).
        (self.is_in_call() && !self.is_32_bit()).then_some(i64::from(self.0.orig_rax as u32))
    }

    /// If the thread is in a system call that only a stop ended with EINTR, replaces the result by one with which the
    /// kernel restarts the call. The kernel does so when the thread goes on, even if its tracer is dead; if a handler
    /// runs first, the call returns EINTR as usual. Returns whether it was such a call.
    pub(super) fn undo_interruption(&mut self) -> bool {
        let is_one = self.0.rax as i64 == -i64::from(libc::EINTR)
            && self.call().is_some_and(|number| ANSWERS_EINTR.contains(&number));
        if is_one {
            self.0.rax = restart::NOHAND as u64;
        }
        is_one
    }

    /// Returns whether the kernel will continue the interrupted call by restart_syscall.
    fn is_restarted(&self) -> bool {
        self.is_in_call() && self.0.rax as i64 == restart::RESTARTBLOCK
    }

    /// Makes the kernel repeat the interrupted call with its own number, unless a handler runs first.
    fn repeat_call(&mut self) {
        self.0.rax = restart::NOHAND as u64;
    }

    /// Moves back to the instruction of the interrupted system call, to make it again.
    fn call_again(&mut self) {
        self.0.rip -= SYSCALL.len() as u64;
        self.0.rax = self.0.orig_rax;
        self.0.orig_rax = u64::MAX;
    }

    /// Returns the registers with which the kernel would resume it if no signal came (arch/x86/kernel/signal.c:
    /// arch_do_signal_or_restart).
    pub fn continuing(&self) -> Registers {
        let mut registers = *self;
        if self.is_in_call() {
            match self.0.rax as i64 {
                restart::SYS | restart::NOINTR | restart::NOHAND => registers.call_again(),
                restart::RESTARTBLOCK => {
                    registers.call_again();
                    registers.0.rax = libc::SYS_restart_syscall as u64;
                }
                _ => {}
            }
        }
        registers
    }
}

/// Finds the signal frames (struct rt_sigframe, arch/x86/include/asm/sigframe.h) in the words of a stack, by the word of the segments in
/// struct sigcontext_64 (arch/x86/include/uapi/asm/sigcontext.h): cs 0x33, gs and fs 0, ss 0x2b or, before Linux 4.2, 0.
pub fn signal_frames(words: &[u64]) -> impl Iterator<Item = SignalFrame> + '_ {
    const SEGMENTS: [u64; 2] = [0x002b_0000_0000_0033, 0x33];
    /// Words that are tested together, which takes fewer instructions than one after the other.
    const TOGETHER: usize = 64;
    let is_segments = |word: &u64| SEGMENTS.contains(word);
    let chunks = words.chunks(TOGETHER).enumerate();
    let telling = chunks.filter(move |(_, chunk)| chunk.iter().fold(false, |any, word| any | is_segments(word)));
    let indices = telling.flat_map(|(number, chunk)| number * TOGETHER..number * TOGETHER + chunk.len());
    // rsp, rip, eflags, segments.
    let indices = indices.filter(move |i| *i >= 3 && is_segments(&words[*i]));
    indices.map(|i| SignalFrame::new(words, i, [2, 3, 21]))
}

/// Number of bytes before an address that show whether a call returns there.
pub const BEFORE_BYTES: u64 = 8;

/// Returns whether the bytes before an address in a thunk are the thunk's call of the hook (`instructions::call_door`).
pub fn is_behind_door(before: u64) -> bool {
    before.to_le_bytes().ends_with(&super::instructions::CALL_R11)
}

/// Returns the target of the direct call (`call rel32`) that returns to `at`, if the bytes before that are one.
pub fn called_by(before: u64, at: u64) -> Option<u64> {
    const CALL: u8 = 0xe8;
    let bytes = before.to_le_bytes();
    let relative = i32::from_le_bytes(bytes[4..].try_into().ok()?);
    (bytes[3] == CALL).then(|| at.wrapping_add_signed(relative.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn registers() -> Registers {
        // SAFETY: registers are plain integers, for which all-zero bytes are valid.
        let mut r: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        r.rip = 0x5555_0000_1002;
        r.orig_rax = u64::MAX;
        Registers(r)
    }

    fn interrupted(number: i64, answer: i64) -> Registers {
        let mut registers = registers();
        registers.0.orig_rax = number as u64;
        registers.0.rax = answer as u64;
        registers
    }

    #[test]
    fn an_interrupted_call_goes_on_as_the_kernel_has_it_go_on() {
        for answer in [restart::SYS, restart::NOINTR, restart::NOHAND] {
            let continuing = interrupted(libc::SYS_futex, answer).continuing().0;
            assert_eq!(
                (continuing.rip, continuing.rax),
                (0x5555_0000_1000, libc::SYS_futex as u64)
            );
        }
        let sleep = interrupted(libc::SYS_nanosleep, restart::RESTARTBLOCK).continuing().0;
        assert_eq!(
            (sleep.rip, sleep.rax),
            (0x5555_0000_1000, libc::SYS_restart_syscall as u64)
        );
        let done = interrupted(libc::SYS_read, 7).continuing().0;
        assert_eq!((done.rip, done.rax), (0x5555_0000_1002, 7));
        // Not in a call: a value that looks like a result is the program's own number.
        let none = interrupted(-1, restart::SYS).continuing().0;
        assert_eq!((none.rip, none.rax), (0x5555_0000_1002, restart::SYS as u64));
    }

    #[test]
    fn the_kernel_makes_calls_again_that_a_stop_interrupts() {
        let eintr = -i64::from(libc::EINTR);
        let mut wait = interrupted(libc::SYS_epoll_wait, eintr);
        assert!(wait.undo_interruption());
        assert_eq!(
            (wait.0.orig_rax, wait.0.rax as i64),
            (libc::SYS_epoll_wait as u64, restart::NOHAND)
        );
        assert_eq!(wait.continuing().0.rax, libc::SYS_epoll_wait as u64);
        for (number, answer) in [(libc::SYS_nanosleep, eintr), (libc::SYS_epoll_wait, 0), (-1, eintr)] {
            let mut other = interrupted(number, answer);
            assert!(!other.undo_interruption());
            assert_eq!(other.0.rax as i64, answer);
        }
    }

    #[test]
    fn the_target_of_a_call_is_found_from_its_return_address() {
        // nop; nop; nop; call 0x7000 - 0x20
        let code = [0x90, 0x90, 0x90, 0xe8, 0xe0, 0xff, 0xff, 0xff];
        let called = Decoder::with_ip(64, &code[3..], 0x7000 - 5, DecoderOptions::NONE).decode();
        assert_eq!(called.near_branch_target(), 0x6fe0);
        assert_eq!(called_by(u64::from_le_bytes(code), 0x7000), Some(0x6fe0));
        assert_eq!(called_by(u64::from_le_bytes([0x90; 8]), 0x7000), None);
        let door = super::super::instructions::call_door(0x1234_5678);
        assert!(is_behind_door(u64::from_le_bytes(*door.last_chunk().unwrap())));
        assert!(!is_behind_door(u64::from_le_bytes(code)));
    }

    fn found(words: &[u64]) -> Vec<(u64, u64)> {
        signal_frames(words).map(|frame| (frame.pc, frame.sp)).collect()
    }

    #[test]
    fn the_registers_in_a_signal_frame_are_found() {
        for at in 3..200 {
            for segments in [0x002b_0000_0000_0033, 0x33] {
                let mut words = vec![7; 200];
                words[at - 3..=at].copy_from_slice(&[0x7ffd_0000, 0x7fff_1000, 0x246, segments]);
                assert_eq!(found(&words), [(0x7fff_1000, 0x7ffd_0000)], "{at}");
            }
        }
        assert_eq!(found(&[0x33, 0x33]), []);
    }

    /// The kernel's own frame, in a handler.
    #[test]
    fn the_alternate_stack_in_a_signal_frame_is_found() {
        static FOUND: std::sync::OnceLock<Vec<SignalFrame>> = std::sync::OnceLock::new();
        extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
            // SAFETY: ucontext_t begins where struct ucontext of the frame does, with so many registers in it.
            let words = unsafe { std::slice::from_raw_parts(context.cast::<u64>(), 5 + 19) };
            let _ = FOUND.set(signal_frames(words).collect());
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
            assert_eq!(
                libc::sigaction(libc::SIGRTMIN(), &raw const action, std::ptr::null_mut()),
                0
            );
            assert_eq!(libc::raise(libc::SIGRTMIN()), 0);
            alternate.ss_flags = libc::SS_DISABLE;
            assert_eq!(libc::sigaltstack(&raw const alternate, std::ptr::null_mut()), 0);
        }
        let frames = FOUND.get().expect("that the handler ran");
        let [frame] = frames.as_slice() else {
            panic!("{frames:?}");
        };
        assert_eq!(frame.alternate_stack, Some(start..start + (1 << 16)));
        assert!(
            !frame
                .alternate_stack
                .as_ref()
                .is_some_and(|stack| stack.contains(&frame.sp))
        );
    }
}
