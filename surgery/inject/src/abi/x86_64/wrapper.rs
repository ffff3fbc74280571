//! glibc's function for one call: `mov $NR, %eax; syscall; cmp $-4095, %rax; jae 1f; ret; 1:` code that sets errno.
//!
//! Another tool may put a breakpoint on any instruction of it, and restore that byte from the file later (uprobes do).
//! So the first byte of every instruction stays as it is in the file, and every mixture of old and new first bytes works:
//!
//! | offset | in the file | changed | |
//! |---|---|---|---|
//! | 0 | `0f 05` | `0f 1f` | with the next two bytes `nopl -112(%rax)` |
//! | 2 | `48 3d 01 f0` | `48 90 eb REL8` | if a probe has made the call: a nop, and the same jump |
//! | | 6 bytes of padding | `.. e9 REL32` | the relay: a jump to the thunk, behind the first byte |
//!
//! The thunk knows by rax whether a probe has made the call already: then rax is not its number any more. The thunk
//! makes it by the `syscall` of another such function, the *lender*, that continues with the same code: so the call is
//! made from the library, and no thread waits in changed code.

use std::collections::HashSet;

use fastpath_code::rescue::Window;
use fastpath_code::rescue::thunk::{Thunk, changes};
use fastpath_code::rescue::window::{Jump, Relay, WindowKind};
use fastpath_image::Isa;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Mnemonic};

use super::instructions::{JUMP_BYTES, SYSCALL, call_door_over_red_zone, jump_to};
use crate::target::sites::{Doors, WATCHED};

/// Bytes of `syscall` and `cmp`.
const CALL_AND_CHECK: usize = 8;
/// Offset of the `ret` from the `syscall`.
const RET_AT: usize = 10;
const RET: u8 = 0xc3;
/// Offset behind the jump to the relay.
const JUMP_END: usize = 6;
/// Most instructions that set errno.
const MOST_TAIL: usize = 8;

/// A function whose calls are redirected. Offsets are from its `syscall`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrapper {
    /// Number of the call.
    pub nr: u32,
    /// `syscall; cmp`, which are the lender's bytes too.
    window: Window,
    relay: Relay,
    /// Offset of the lender's `syscall`.
    lender: i32,
}

/// A function of this form in a file.
struct Found {
    /// Offset of its `syscall` in the code.
    at: usize,
    nr: Option<u32>,
    /// The code after the `syscall`, comparable with that of another one.
    tail: Vec<u8>,
    /// Offsets of its paddings.
    paddings: Vec<usize>,
}

/// Returns the functions for watched calls among the `syscall` instructions at these offsets of `code`, whose address in
/// the file is `address`: the offset of the `syscall`, and the function.
pub fn find(code: &[u8], address: u64, calls: &[usize]) -> Vec<(usize, Wrapper)> {
    let all: Vec<Found> = calls.iter().filter_map(|at| parse(code, address, *at)).collect();
    let is_watched = |found: &&Found| found.nr.is_some_and(|nr| WATCHED.contains(&nr));
    let mut taken = HashSet::new();
    let wrapper = |found: &Found| {
        let at = found.at;
        let same = all
            .iter()
            .filter(|other| !is_watched(other) && other.tail == found.tail);
        let lender = same.min_by_key(|other| other.at.abs_diff(at))?;
        let relay = |padding: usize| {
            let distance = i8::try_from(padding as i64 - at as i64).ok()?.into();
            let bytes = code.get(padding..padding + Relay::BYTES)?.try_into().ok()?;
            Some(Relay { distance, bytes }).filter(|relay| relay.short(JUMP_END).is_some())
        };
        let free = all.iter().flat_map(|found| &found.paddings);
        let free = free.filter(|padding| relay(**padding).is_some() && !taken.contains(*padding));
        let padding = *free.min_by_key(|padding| padding.abs_diff(at))?;
        let relay = relay(padding)?;
        // The death of fastpath could cut a write across two pages in two.
        let is_in_a_page = |at: usize, bytes: usize| (address + at as u64) % 4096 + bytes as u64 <= 4096;
        if !is_in_a_page(at, CALL_AND_CHECK) || !is_in_a_page(padding, Relay::BYTES) {
            return None;
        }
        taken.insert(padding);
        let wrapper = Wrapper {
            nr: found.nr?,
            window: Window {
                isa: Isa::X86_64,
                kind: WindowKind::Behind,
                address: address + at as u64,
                bytes: code.get(at..at + CALL_AND_CHECK)?.to_vec(),
                call_bytes: SYSCALL.len(),
                jump: Jump::AtCall(vec![relay]),
            },
            relay,
            lender: i32::try_from(lender.at as i64 - at as i64).ok()?,
        };
        Some((at, wrapper))
    };
    all.iter().filter(is_watched).filter_map(wrapper).collect()
}

/// Parses the function whose `syscall` is at `at`.
fn parse(code: &[u8], address: u64, at: usize) -> Option<Found> {
    // cmp $-4095, %rax; jae, or cmp $-4096, %rax; ja
    let &[0x0f, 0x05, 0x48, 0x3d, low, 0xf0, 0xff, 0xff, jump, to, RET] = code.get(at..=at + RET_AT)? else {
        return None;
    };
    if !matches!((low, jump), (1, 0x73) | (0, 0x77)) {
        return None;
    }
    let behind = at + RET_AT + 1;
    let error = (at + RET_AT).checked_add_signed(isize::from(to.cast_signed()))?;
    if error < behind {
        return None;
    }
    let number = at.checked_sub(5).and_then(|start| code[start..at].split_first());
    let number = number.filter(|(opcode, _)| **opcode == 0xb8);
    let mut tail = vec![low, jump];
    let mut decoder = decoder(code.get(error..)?, address + error as u64);
    let mut next = error;
    for _ in 0..MOST_TAIL {
        let instruction = decoder.decode();
        let bytes = code.get(next..next + instruction.len())?;
        next += instruction.len();
        tail.extend(bytes);
        if instruction.is_ip_rel_memory_operand() {
            let displacement = decoder.get_constant_offsets(&instruction).displacement_offset();
            let own = tail.len() - bytes.len() + displacement;
            tail.truncate(own);
            tail.extend(instruction.ip_rel_memory_address().to_le_bytes());
        }
        match instruction.flow_control() {
            FlowControl::Next if !instruction.is_invalid() => {}
            FlowControl::Return if instruction.code() == Code::Retnq && bytes.len() == 1 => {
                let between = padding(code, address, behind).filter(|at| at + Relay::BYTES <= error);
                let paddings = between.into_iter().chain(padding(code, address, next)).collect();
                let nr = number.and_then(|(_, nr)| Some(u32::from_le_bytes(nr.try_into().ok()?)));
                return Some(Found { at, nr, tail, paddings });
            }
            _ => return None,
        }
    }
    None
}

/// Returns `at` if a nop with room for a relay is there, behind a `ret`: no instruction gets there.
fn padding(code: &[u8], address: u64, at: usize) -> Option<usize> {
    let bytes = code.get(at..)?;
    let nop = decoder(bytes, address + at as u64).decode();
    let is_nop = nop.mnemonic() == Mnemonic::Nop && nop.len() >= Relay::BYTES && nop.memory_displacement64() == 0;
    is_nop.then_some(at)
}

fn decoder(code: &[u8], address: u64) -> Decoder<'_> {
    Decoder::with_ip(64, code, address, DecoderOptions::NONE)
}

impl Wrapper {
    /// Returns the address of the relay for a `syscall` at `call`.
    pub fn relay_at(&self, call: u64) -> u64 {
        self.relay.address(call)
    }

    /// Returns the bytes that must be in memory, each with its offset from the `syscall`.
    pub fn expected(&self) -> Vec<(i64, Vec<u8>)> {
        vec![
            (0, self.window.bytes.clone()),
            (self.relay.distance.into(), self.relay.bytes.to_vec()),
            (self.lender.into(), self.window.bytes.clone()),
        ]
    }

    /// Returns the thunk at `at` for a `syscall` at `call`; `None` if it is out of a jump's reach. The call is made by the
    /// lender: no thread waits in the thunk.
    pub fn thunk(&self, call: u64, at: u64, doors: Doors) -> Option<Thunk> {
        let lender = call.wrapping_add_signed(self.lender.into());
        let ask = call_door_over_red_zone(doors.c);
        let mut code = vec![0x48, 0x3d]; // cmp $nr, %rax
        code.extend(self.nr.to_le_bytes());
        code.extend([0x75, (ask.len() + JUMP_BYTES) as u8]); // jne
        code.extend(ask);
        for to in [lender, lender + SYSCALL.len() as u64] {
            code.extend(jump_to(at + code.len() as u64, to)?);
        }
        Some(Thunk {
            code,
            changes: changes(&self.window, call, at, Some(&self.relay))?,
            moved: Vec::new(),
            in_call: None,
        })
    }
}
