//! Puts the code of a thunk together.

use iced_x86::{Decoder, DecoderOptions, Instruction};

use super::copy::{copied, encoded};
use super::window::JUMP_BYTES;
use super::{BITS, inside};
use crate::rescue::change::{Change, Thunk, ThunkPlace};
use crate::rescue::window::Jump;

pub(crate) struct Builder<'w> {
    pub place: ThunkPlace<'w>,
    pub code: Vec<u8>,
}

impl<'w> Builder<'w> {
    pub(crate) fn new(place: ThunkPlace<'w>) -> Builder<'w> {
        Builder {
            place,
            code: Vec::new(),
        }
    }

    pub(crate) fn here(&self) -> u64 {
        self.place.at + self.code.len() as u64
    }

    /// Returns the distance of a jump or call of 32 bits.
    pub(crate) fn distance(&self, from: u64, to: u64) -> Option<[u8; 4]> {
        let distance = to.wrapping_sub(from.wrapping_add(JUMP_BYTES as u64)) as i64;
        Some(i32::try_from(distance).ok()?.to_le_bytes())
    }

    /// Returns `jmp rel32`.
    fn jump(&self, from: u64, to: u64) -> Option<[u8; JUMP_BYTES]> {
        let [a, b, c, d] = self.distance(from, to)?;
        Some([0xe9, a, b, c, d])
    }

    pub(crate) fn jump_to(&mut self, to: u64) -> Option<()> {
        let jump = self.jump(self.here(), to)?;
        self.code.extend(jump);
        Some(())
    }

    /// Appends copies of instructions of the window, from this offset on. Returns the offsets of each, and of its copy.
    pub(crate) fn copy(&mut self, from: usize) -> Option<Vec<(u16, u16)>> {
        let bytes = &self.place.window.bytes[from..];
        if bytes.is_empty() {
            return Some(Vec::new());
        }
        let first = self.place.address + from as u64;
        let decoder = Decoder::with_ip(BITS, bytes, first, DecoderOptions::NONE);
        let instructions: Vec<Instruction> = decoder.into_iter().collect();
        let offsets = instructions.iter().map(|i| (i.ip() - self.place.address) as usize);
        let base = self.code.len();
        if !instructions.iter().any(Instruction::is_invalid)
            && let Ok(copies) = copied(bytes, first, self.here(), |target| target)
        {
            self.code.extend(copies);
            return Some(offsets.map(|at| (at as u16, (base + at - from) as u16)).collect());
        }
        let (code, copies) = encoded(BITS, &instructions, self.here()).ok()?;
        self.code.extend(code);
        let moved = offsets.zip(copies);
        Some(moved.map(|(from, to)| (from as u16, (base + to) as u16)).collect())
    }

    /// Makes this the target of the short jump whose distance is at this offset.
    pub(crate) fn land(&mut self, distance: usize) -> Option<()> {
        self.code[distance] = i8::try_from(self.code.len() - (distance + 1)).ok()? as u8;
        Some(())
    }

    /// Returns the thunk. A window that keeps first bytes moves no thread: those behind its first instruction continue
    /// there.
    pub(crate) fn finish(self, mut moved: Vec<(u16, u16)>, in_call: Option<(u16, u16)>) -> Option<Thunk> {
        let is_first = self.place.window.jump == Jump::First;
        moved.retain(|(from, _)| *from > 0 && is_first);
        let changes = changes(self.place)?;
        Some(Thunk {
            code: self.code,
            changes,
            moved,
            in_call,
        })
    }
}

/// Returns the changes of a window with which it goes to `place.at`.
pub(crate) fn changes(place: ThunkPlace<'_>) -> Option<Vec<Change>> {
    let jump = |from: u64| Builder::new(place).jump(from, place.at);
    let (at, bytes) = (place.address, &place.window.bytes);
    let first = *bytes.first()?;
    let relay = || {
        let relay = place.relay?;
        let from = relay.address(at);
        let jump = [&relay.bytes[..1], &jump(from + 1)?].concat();
        Some((relay, Change::new(from, &relay.bytes, jump)))
    };
    Some(match place.window.jump {
        Jump::First => vec![Change::new(at, bytes.get(..JUMP_BYTES)?, jump(at)?)],
        Jump::Inside => {
            let replacement = [&[first][..], &jump(at + 1)?].concat();
            vec![Change::new(at, bytes.get(..replacement.len())?, replacement)]
        }
        Jump::Relay(_) => {
            let (relay, change) = relay()?;
            let replacement = [first, 0xeb, relay.short(inside::SHORT)?];
            vec![change, Change::new(at, bytes.get(..inside::SHORT)?, replacement)]
        }
        Jump::AtCall(_) => {
            let (relay, change) = relay()?;
            let compare = bytes.get(2..inside::COMPARED_JUMP)?;
            let replacement = [compare[0], 0x90, 0xeb, relay.short(inside::COMPARED_JUMP)?];
            vec![
                change,
                Change::new(at + 2, compare, replacement),
                Change::new(at, bytes.get(..2)?, [first, 0x1f]),
            ]
        }
    })
}
