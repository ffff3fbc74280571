//! A thread of a running program that is stopped at any instruction: what the kernel was about to do with it, and where
//! its signal handlers return to.

use super::Registers;

/// Results of interrupted system calls that no program sees (include/linux/errno.h).
mod restart {
    pub const SYS: i64 = -512;
    pub const NOINTR: i64 = -513;
    pub const NOHAND: i64 = -514;
    pub const RESTARTBLOCK: i64 = -516;
}

/// `syscall`
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Calls that return EINTR when the process is stopped and goes on, though no handler ran (signal(7)); those on sockets
/// only with a timeout. None of them has done anything when it returns that, so it may be made again.
const ANSWERS_EINTR: [i64; 20] = [
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

/// Returns whether a call of this number may return EINTR though no handler ran.
pub fn answers_eintr(number: i64) -> bool {
    ANSWERS_EINTR.contains(&number)
}

impl Registers {
    /// Changes the program counter.
    pub fn set_pc(&mut self, pc: u64) {
        self.0.rip = pc;
    }

    /// Returns whether a general register holds an address in one of these ranges: a program that has loaded the
    /// address of a thunk may be about to call it. rcx and r11 hold nothing that a program can rely on.
    pub fn point_into(&self, ranges: &[std::ops::Range<u64>]) -> bool {
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

    /// Returns the number of the system call that a 64-bit thread is in.
    pub fn call(&self) -> Option<i64> {
        // The upper half may have a note (`super::waits`).
        (self.is_in_call() && !self.is_32_bit()).then_some(i64::from(self.0.orig_rax as u32))
    }

    /// If the thread is in a system call that only a stop ended with EINTR, replaces the result by one with which the
    /// kernel restarts the call. The kernel does so when the thread goes on, even if its tracer is dead; if a handler
    /// runs first, the call returns EINTR as usual. Returns whether it was such a call.
    pub fn undo_interruption(&mut self) -> bool {
        let is_one = self.0.rax as i64 == -i64::from(libc::EINTR) && self.call().is_some_and(answers_eintr);
        if is_one {
            self.0.rax = restart::NOHAND as u64;
        }
        is_one
    }

    /// Returns whether the kernel will continue the interrupted call by restart_syscall.
    pub fn is_restarted(&self) -> bool {
        self.is_in_call() && self.0.rax as i64 == restart::RESTARTBLOCK
    }

    /// Makes the kernel repeat the interrupted call with its own number, unless a handler runs first.
    pub fn repeat_call(&mut self) {
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

/// Finds the registers of code that a signal interrupted, in the words of a stack: struct sigcontext_64
/// (arch/x86/include/uapi/asm/sigcontext.h), recognized by the word of the segments: cs 0x33, gs and fs 0, ss 0x2b or,
/// before Linux 4.2, 0. Returns the program counter and the stack pointer in each.
pub fn interrupted_at(words: &[u64]) -> impl Iterator<Item = (u64, u64)> + '_ {
    const SEGMENTS: [u64; 2] = [0x002b_0000_0000_0033, 0x33];
    /// Words that are tested together, which takes fewer instructions than one after the other.
    const TOGETHER: usize = 64;
    let is_segments = |word: &u64| SEGMENTS.contains(word);
    let chunks = words.chunks(TOGETHER).enumerate();
    let telling = chunks.filter(move |(_, chunk)| chunk.iter().fold(false, |any, word| any | is_segments(word)));
    let indices = telling.flat_map(|(number, chunk)| number * TOGETHER..number * TOGETHER + chunk.len());
    let indices = indices.filter(move |i| *i >= 3 && is_segments(&words[*i]));
    // rsp, rip, eflags, segments.
    indices.map(|i| (words[i - 2], words[i - 3]))
}

/// Number of bytes before an address that show whether a call returns there.
pub const BEFORE_BYTES: u64 = 8;

/// Returns whether the bytes before an address in a thunk are the thunk's call of the hook (`sites::call_door`).
pub fn is_behind_door(before: u64) -> bool {
    before.to_le_bytes().ends_with(&super::sites::CALL_R11)
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
    fn only_calls_that_answer_eintr_by_a_mere_stop_are_left_to_the_kernel_to_make_again() {
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
        let door = super::super::sites::call_door(0x1234_5678);
        assert!(is_behind_door(u64::from_le_bytes(*door.last_chunk().unwrap())));
        assert!(!is_behind_door(u64::from_le_bytes(code)));
    }

    #[test]
    fn the_registers_in_a_signal_frame_are_found() {
        let mut words = vec![7; 64];
        words[20..24].copy_from_slice(&[0x7ffd_0000, 0x7fff_1000, 0x246, 0x002b_0000_0000_0033]);
        assert_eq!(interrupted_at(&words).collect::<Vec<_>>(), [(0x7fff_1000, 0x7ffd_0000)]);
        words[20 + 3] = 0x33;
        assert_eq!(interrupted_at(&words).count(), 1);
        assert_eq!(interrupted_at(&[0x33, 0x33]).count(), 0);
        for at in 3..200 {
            let mut words = vec![7; 200];
            words[at - 3..=at].copy_from_slice(&[0x7ffd_0000, 0x7fff_1000, 0x246, 0x33]);
            assert_eq!(
                interrupted_at(&words).collect::<Vec<_>>(),
                [(0x7fff_1000, 0x7ffd_0000)],
                "{at}"
            );
        }
    }
}
