//! Windows in which the first byte of each instruction stays as it is.
//!
//! Another tool may put a breakpoint on any instruction of the file, and restore that byte from the file at any time
//! (uprobes do). While it is there, the kernel executes the file's instruction. So one instruction alone changes, behind
//! its first byte, which is a REX prefix: a jump with a REX prefix is a jump. What follows stays as it is in the file, up
//! to the `syscall` and beyond. Restored in any part, this is the file's code or the same jump.
//!
//! | bytes of the instruction | it becomes |
//! |---|---|
//! | 6 or more | `REX jmp rel32` |
//! | 3 to 5 | `REX jmp rel8`, to a *relay*: a `jmp rel32` behind the first byte of padding that nothing executes |
//!
//! If no such instruction is before the `syscall`, but its number is set right before it, and the instruction behind it is
//! `cmp $imm32, %rax`, these two change: `0f 05` to `0f 1f`, with the next two bytes a nop, and `48 3d ..` to `48 90 eb
//! REL8`, a nop and a jump to a relay. If a breakpoint is on the first, the kernel has made the call when the second
//! begins; the thunk knows by rax, which is not the number any more. If a breakpoint is on the second, `0f 1f cc` is a nop,
//! too.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

use crate::rescue::window::{Jump, Reason, Relay};

/// Size of `REX jmp rel8` and of `REX jmp rel32`.
pub(crate) const SHORT: usize = 3;
const LONG: usize = Relay::BYTES;
/// Size of `syscall; cmp $imm32, %rax`, and of the part of it that ends with a short jump.
pub(crate) const COMPARED: usize = 8;
pub(crate) const COMPARED_JUMP: usize = 6;
/// Most instructions before a call that are tried.
const MOST_TRIED: usize = 6;
/// Longest instruction in bytes (Intel SDM, volume 2, 2.3.11).
const LONGEST: usize = 15;
/// What code after an unconditional jump is aligned to; padding ends there.
const ALIGNMENT: u64 = 16;
const PAGE: u64 = 4096;
const INT3: u8 = 0xcc;

/// Knows where instructions begin, and where something may jump to.
pub(crate) trait Decoded {
    /// Returns the beginning of the last instruction before this offset.
    fn previous(&self, offset: usize) -> Option<usize>;
    /// Returns the first offset in the range that something may jump to.
    fn landing_in(&self, range: Range<usize>) -> Option<usize>;
    /// Returns the first offset in the range at which an instruction begins.
    fn begin_in(&self, range: Range<usize>) -> Option<usize>;
    /// Returns whether a function ends before this offset.
    fn is_end(&self, offset: usize) -> bool;
}

/// Code of x86-64.
pub(crate) struct Search<'a, D> {
    pub code: &'a [u8],
    /// Address of its first byte.
    pub address: u64,
    pub decoded: D,
}

impl<D: Decoded> Search<'_, D> {
    /// Returns the offset of the instruction nearest before the one at `call` that can become a jump, and the jump. Only
    /// instructions that can be moved are between the two.
    pub(crate) fn find(&self, call: usize) -> Result<(usize, Jump), Reason> {
        let mut end = call;
        let mut refused = None;
        for _ in 0..MOST_TRIED {
            let Some((start, instruction)) = self.before(end) else {
                break;
            };
            if instruction.flow_control() != FlowControl::Next {
                break;
            }
            if let Some(at) = self.decoded.begin_in(start + 1..end) {
                return Err(refused.unwrap_or(Reason::Ambiguous(self.address(at))));
            }
            match self.jump(start, end) {
                Ok(jump) => return Ok((start, jump)),
                Err(reason) => refused = refused.or(Some(reason)),
            }
            end = start;
        }
        Err(refused.unwrap_or(Reason::NoRoom))
    }

    /// Returns the end of the `cmp` behind the `syscall` at `call`, and relays for the two; `number` is the call's.
    pub(crate) fn find_at_call(&self, call: usize, number: u32) -> Option<(usize, Vec<Relay>)> {
        let number = [&[0xb8][..], &number.to_le_bytes()].concat();
        let (set, _) = self.before(call)?;
        let end = call + COMPARED;
        let is_form = self.code[set..call] == number && self.code.get(call + 2..)?.starts_with(&[0x48, 0x3d]);
        // The code may come there in no other way: with another number, or with the result of another call.
        let is_alone = self.decoded.landing_in(set + 1..end).is_none()
            && self.decoded.begin_in(set + 1..call).is_none()
            && self.decoded.begin_in(call + 3..end).is_none();
        let relays = self.relays(call, COMPARED_JUMP);
        let is_one = is_form && is_alone && end <= self.code.len() && !self.crosses_page(call, COMPARED);
        (is_one && !relays.is_empty()).then_some((end, relays))
    }

    fn address(&self, offset: usize) -> u64 {
        self.address + offset as u64
    }

    fn decode(&self, offset: usize) -> Instruction {
        let address = self.address(offset);
        Decoder::with_ip(64, &self.code[offset..], address, DecoderOptions::NONE).decode()
    }

    /// Returns the instruction that ends where another begins, and its offset.
    fn before(&self, end: usize) -> Option<(usize, Instruction)> {
        let start = self.decoded.previous(end)?;
        let instruction = self.decode(start);
        (start + instruction.len() == end && !instruction.is_invalid()).then_some((start, instruction))
    }

    /// Returns the jump that this instruction can become.
    fn jump(&self, start: usize, end: usize) -> Result<Jump, Reason> {
        let size = match end - start {
            LONG.. => LONG,
            SHORT.. => SHORT,
            _ => return Err(Reason::FirstByte),
        };
        if !matches!(self.code[start], 0x40..=0x4f) {
            return Err(Reason::FirstByte);
        }
        if let Some(at) = self.decoded.landing_in(start + 1..end) {
            return Err(Reason::Landing(self.address(at)));
        }
        if self.crosses_page(start, size) {
            return Err(Reason::CrossesPage);
        }
        if size == LONG {
            return Ok(Jump::Inside);
        }
        let relays = self.relays(start, SHORT);
        if relays.is_empty() {
            return Err(Reason::FirstByte);
        }
        Ok(Jump::Relay(relays))
    }

    fn crosses_page(&self, offset: usize, bytes: usize) -> bool {
        self.address(offset) / PAGE != self.address(offset + bytes - 1) / PAGE
    }

    /// Returns the paddings within reach of a short jump that ends `behind` bytes after `start`, nearest first: those that
    /// end where code is aligned, or, if there are none, those within a function.
    fn relays(&self, start: usize, behind: usize) -> Vec<Relay> {
        let reach = start.saturating_sub(128)..(start + 128).min(self.code.len());
        let offsets: Vec<usize> = reach.filter(|offset| self.is_behind_end(*offset)).collect();
        let find = |is_end: &dyn Fn(usize, usize) -> bool| {
            let mut relays = Vec::new();
            for offset in &offsets {
                self.padding(*offset, start, |end| is_end(*offset, end), &mut relays);
            }
            relays.retain(|relay| relay.short(behind).is_some());
            relays.sort_by_key(|relay| relay.distance.unsigned_abs());
            relays
        };
        let aligned = find(&|_, end| self.is_aligned(end));
        if !aligned.is_empty() {
            return aligned;
        }
        find(&|offset, end| self.is_jumped_over(offset, end))
    }

    fn is_aligned(&self, offset: usize) -> bool {
        self.address(offset).is_multiple_of(ALIGNMENT)
    }

    /// Returns whether some code before this padding jumps to its end. Compilers align such a place to less within a
    /// function; no function begins with this padding.
    fn is_jumped_over(&self, offset: usize, end: usize) -> bool {
        let mut at = offset;
        while let Some((start, instruction)) = self.before(at)
            && offset - start <= 128
        {
            let is_jump = matches!(
                instruction.flow_control(),
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
            );
            if is_jump && instruction.near_branch_target() == self.address(end) {
                return true;
            }
            at = start;
        }
        false
    }

    /// Returns whether no instruction before this offset continues there.
    fn is_behind_end(&self, offset: usize) -> bool {
        self.before(offset)
            .is_some_and(|(_, instruction)| match instruction.flow_control() {
                FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => true,
                // Of a function that does not return.
                FlowControl::Call => self.decoded.is_end(offset),
                _ => false,
            })
    }

    /// Adds the relays for a jump at `start` in the padding that begins at this offset, if it `may_end` where it ends.
    fn padding(&self, offset: usize, start: usize, may_end: impl Fn(usize) -> bool, relays: &mut Vec<Relay>) {
        let mut found = Vec::new();
        let mut end = offset;
        let mut traps = 0;
        // A function that begins with nops may begin at the end of nops, but none begins with a trap.
        let is_end = |at: usize| at > offset && (self.is_aligned(at) || may_end(at)) && self.code[at] != INT3;
        while end < self.code.len() && !is_end(end) {
            let instruction = self.decode(end);
            let size = instruction.len();
            traps = if instruction.mnemonic() == Mnemonic::Int3 {
                traps + 1
            } else {
                0
            };
            match instruction.mnemonic() {
                Mnemonic::Nop if instruction.memory_displacement64() == 0 && size >= LONG => found.push(end),
                Mnemonic::Nop => {}
                Mnemonic::Int3 if traps == LONG => {
                    found.push(end + 1 - LONG);
                    traps = 0;
                }
                Mnemonic::Int3 => {}
                _ => return,
            }
            end += size;
        }
        if !may_end(end) {
            return;
        }
        for at in found {
            let distance = at as i64 - start as i64;
            let is_free = self.decoded.landing_in(at..at + LONG).is_none() && !self.crosses_page(at, LONG);
            if let (true, Ok(bytes)) = (is_free, self.code[at..at + LONG].try_into()) {
                relays.push(Relay {
                    distance: distance as i16,
                    bytes,
                });
            }
        }
    }
}

/// Where instructions begin near a call, in code of which no function is known: where all decodings agree that begin at
/// one of so many bytes that an instruction begins at one of them.
pub(crate) struct Agreed<'a> {
    /// Address of the code.
    address: u64,
    /// First offset that it knows of.
    from: usize,
    begins: Vec<bool>,
    /// Addresses at which functions end, in order.
    ends: &'a [u64],
}

impl Agreed<'_> {
    /// Decodes around the instruction at `call`.
    pub(crate) fn around<'a>(code: &[u8], address: u64, call: usize, ends: &'a [u64]) -> Agreed<'a> {
        /// Bytes before the call, and behind it, in which instructions are looked for.
        const BEFORE: usize = 160;
        const BEHIND: usize = 160;
        /// Bytes after which decodings have fallen into step.
        const STEP: usize = 32;
        let from = call.saturating_sub(BEFORE);
        let end = (call + BEHIND).min(code.len());
        let first = from.saturating_sub(STEP + LONGEST);
        let mut decoder = Decoder::new(64, &code[first..end], DecoderOptions::NONE);
        let mut behind = |at: usize| match decoder.set_position(at) {
            Ok(()) if !decoder.decode().is_invalid() => decoder.position(),
            _ => at + 1,
        };
        let mut one = vec![false; end - first];
        let mut at = 0;
        while at < one.len() {
            one[at] = true;
            at = behind(at);
        }
        let mut begins = one.clone();
        // The first byte of all code begins an instruction.
        let others = if first == 0 { 0..0 } else { 1..LONGEST };
        for mut at in others {
            // Both decodings are the same from an instruction on that begins in both.
            while one.get(at) == Some(&false) {
                let next = behind(at);
                begins[at + 1..next].fill(false);
                at = next;
            }
        }
        begins.drain(..from - first);
        Agreed {
            address,
            from,
            begins,
            ends,
        }
    }
}

impl Decoded for Agreed<'_> {
    fn previous(&self, offset: usize) -> Option<usize> {
        let last = (offset.checked_sub(self.from)?).min(self.begins.len());
        let found = (last.saturating_sub(LONGEST)..last).rev().find(|at| self.begins[*at])?;
        Some(self.from + found)
    }

    fn landing_in(&self, _: Range<usize>) -> Option<usize> {
        None
    }

    fn begin_in(&self, mut range: Range<usize>) -> Option<usize> {
        range.find(|at| at.checked_sub(self.from).and_then(|at| self.begins.get(at)) == Some(&true))
    }

    fn is_end(&self, offset: usize) -> bool {
        self.ends.binary_search(&(self.address + offset as u64)).is_ok()
    }
}
