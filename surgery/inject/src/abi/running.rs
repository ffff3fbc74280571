//! What is the same for a thread of a running program on every ISA.

use std::ops::Range;

/// Results of interrupted system calls that no program sees (include/linux/errno.h).
pub mod restart {
    pub const SYS: i64 = -512;
    pub const NOINTR: i64 = -513;
    pub const NOHAND: i64 = -514;
    pub const RESTARTBLOCK: i64 = -516;
}

/// What a signal frame says of the code that the signal interrupted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignalFrame {
    /// Index, in the words of the stack, of the word by which it was found.
    pub at: usize,
    pub pc: u64,
    pub sp: u64,
    /// The thread's alternate signal stack (sigaltstack(2)); `None` if that part of the frame is not in the words.
    pub alternate_stack: Option<Range<u64>>,
}

impl SignalFrame {
    /// Returns that of the frame whose word at `at` was found: its alternate stack, ss_sp, is `stack_below` words before.
    pub fn new(words: &[u64], at: usize, [pc_below, sp_below, stack_below]: [usize; 3]) -> SignalFrame {
        // ss_sp, ss_flags, ss_size
        let stack = at.checked_sub(stack_below).map(|at| (words[at], words[at + 2]));
        SignalFrame {
            at,
            pc: words[at - pc_below],
            sp: words[at - sp_below],
            alternate_stack: stack.map(|(start, size)| start..start.saturating_add(size)),
        }
    }
}
