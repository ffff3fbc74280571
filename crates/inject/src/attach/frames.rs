//! Where threads would return to that a signal interrupted: in the signal frames on their stacks.

use crate::abi::running;
use crate::tracee::Tracee;

/// So much of a stack is looked through, from the stack pointer on. Handlers are not deep as a rule: they run on small alternate stacks.
const DEPTH: usize = 64 << 10;
/// A handler on an alternate stack interrupted code on another stack, which may have been a handler too.
const MOST_STACKS: usize = 8;

/// What the stack of a stopped thread says.
pub struct Frames {
    /// Program counters in signal frames.
    pub interrupted: Vec<u64>,
    /// All words of the stack, return addresses among them.
    words: Vec<Vec<u64>>,
}

impl Frames {
    /// Of a thread whose stack pointer is `sp`.
    pub fn of(tracee: &Tracee, sp: u64) -> Frames {
        let mut frames = Frames {
            interrupted: Vec::new(),
            words: Vec::new(),
        };
        let mut seen: Vec<std::ops::Range<u64>> = Vec::new();
        let mut to_see = vec![sp & !7];
        while let Some(at) = to_see.pop() {
            if seen.len() >= MOST_STACKS || seen.iter().any(|range| range.contains(&at)) {
                continue;
            }
            let words = tracee.read_what_is_there(at, DEPTH);
            seen.push(at..at + 8 * words.len() as u64);
            for (pc, sp) in running::interrupted_at(&words) {
                frames.interrupted.push(pc);
                to_see.push(sp & !7);
            }
            frames.words.push(words);
        }
        frames
    }

    /// Whether a word of the stack lies in one of these.
    pub fn mention(&self, ranges: &[std::ops::Range<u64>]) -> bool {
        let mut words = self.words.iter().flatten();
        words.any(|word| ranges.iter().any(|range| range.contains(word)))
    }
}
