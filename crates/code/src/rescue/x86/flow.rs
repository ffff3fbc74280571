//! Where instructions begin, and where code can jump to.
//!
//! Both are found from every function that the file states, along all branches. An address counts as a *landing* also
//! if only a wrong decoding jumps to it, or a word of data looks like it: a landing too many only leaves a site alone.

use std::cmp::Reverse;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

use super::bits::Bits;
use crate::rescue::file::{File, Part};

/// Most words of one table of relative addresses.
const MOST_TABLE_WORDS: usize = 16 << 10;

/// Most words of all tables, and most instructions, so that a file made for it cannot keep the analysis busy for more
/// than some seconds. Firefox's libxul has 114 Mi words, most of them no tables, and 92 Mi instructions.
const MOST_ALL_TABLE_WORDS: usize = 256 << 20;
const MOST_INSTRUCTIONS: usize = 512 << 20;

/// Result of decoding a file.
pub(crate) struct Flow {
    /// Whether all of it was decoded. If not, nothing is proven.
    pub is_complete: bool,
    /// For each executable part, the offsets at which an instruction begins that is reached from a function.
    begins: Vec<Bits>,
    /// For each executable part, the offsets that something may jump to.
    lands: Vec<Bits>,
    /// For each executable part, the offsets at which a function ends.
    ends: Vec<Bits>,
}

impl Flow {
    pub(crate) fn analyse(file: &File<'_>) -> Flow {
        let bits = || file.code.iter().map(|part| Bits::new(part.bytes.len())).collect();
        let mut search = Search {
            file,
            flow: Flow {
                is_complete: true,
                begins: bits(),
                lands: bits(),
                ends: bits(),
            },
            next: Vec::new(),
            known: bits(),
            tables: Default::default(),
            words_left: MOST_ALL_TABLE_WORDS,
            instructions_left: MOST_INSTRUCTIONS,
        };
        search.land(file.entry);
        file.labels.iter().for_each(|label| search.land(*label));
        for object in &file.objects {
            search.mark(*object);
        }
        if file.is_fixed {
            file.data
                .iter()
                .chain(&file.code)
                .for_each(|part| search.words(part, 0));
        }
        // Tables for switches of i386's position-independent code.
        if let Some(base) = file.global_offsets.filter(|_| search.bits() == 32) {
            file.data
                .iter()
                .chain(&file.code)
                .for_each(|part| search.words(part, base));
        }
        file.code.iter().for_each(|part| search.any_jump(part));
        // The longest first, of those with one start: the others are a part of it.
        let mut functions: Vec<_> = file.functions.iter().map(|f| (f.start, Reverse(f.end))).collect();
        functions.sort_unstable();
        let mut decoded: Vec<(u64, u64)> = Vec::new();
        for (start, Reverse(end)) in functions {
            match start >= end {
                true => search.land(start),
                false => {
                    search.mark(start);
                    if let Some((part, offset)) = file.place(end) {
                        search.flow.ends[part].add(offset);
                    }
                }
            }
            if decoded.last().is_none_or(|(before, _)| *before < start) {
                decoded.push((start, search.straight(start, end)));
            }
        }
        file.code.iter().for_each(|part| search.sweep(part, &decoded));
        search.follow();
        search.flow
    }

    /// Returns whether an instruction that is reached from a function begins at this offset of an executable part.
    pub(crate) fn begins(&self, (part, offset): (usize, usize)) -> bool {
        self.begins[part].has(offset)
    }

    /// Returns the first beginning of an instruction in the range.
    pub(crate) fn begin_in(&self, part: usize, range: std::ops::Range<usize>) -> Option<usize> {
        self.begins[part].first_in(range)
    }

    /// Returns the beginning of the last instruction before this offset.
    pub(crate) fn previous(&self, (part, offset): (usize, usize)) -> Option<usize> {
        /// Longest instruction in bytes (Intel SDM, volume 2, 2.3.11).
        const LONGEST: usize = 15;
        self.begins[part].last_before(offset, LONGEST)
    }

    /// Returns whether a function ends before this offset.
    pub(crate) fn is_end(&self, (part, offset): (usize, usize)) -> bool {
        self.ends[part].has(offset)
    }

    /// Returns the first offset in the range that something may jump to.
    pub(crate) fn landing_in(&self, part: usize, range: std::ops::Range<usize>) -> Option<usize> {
        self.lands[part].first_in(range)
    }
}

struct Search<'a, 'f> {
    file: &'a File<'f>,
    flow: Flow,
    /// Landings whose code is not decoded yet.
    next: Vec<u64>,
    /// For each executable part, the offsets that are or were among `next`.
    known: Vec<Bits>,
    /// Addresses of tables of relative addresses that were read.
    tables: std::collections::HashSet<u64>,
    words_left: usize,
    instructions_left: usize,
}

impl Search<'_, '_> {
    fn bits(&self) -> u32 {
        super::bits_of(self.file.isa)
    }

    /// Notes that something may jump to an address.
    fn mark(&mut self, address: u64) -> Option<(usize, usize)> {
        let place = self.file.place(address);
        if let Some((part, offset)) = place {
            self.flow.lands[part].add(offset);
        }
        place
    }

    /// Notes that code jumps to an address, or a pointer names it: an instruction begins there.
    fn land(&mut self, address: u64) {
        if let Some((part, offset)) = self.mark(address)
            && !self.known[part].has(offset)
        {
            self.known[part].add(offset);
            self.next.push(address);
        }
    }

    /// Counts one more instruction and returns whether it may be decoded.
    fn is_affordable(&mut self) -> bool {
        match self.instructions_left.checked_sub(1) {
            Some(left) => self.instructions_left = left,
            None => self.flow.is_complete = false,
        }
        self.flow.is_complete
    }

    /// Decodes from all landings. Most are decoded already, and a decoder takes long to make.
    fn follow(&mut self) {
        while let Some(address) = self.next.pop() {
            let place = self.file.place(address);
            if place.is_some_and(|place| !self.flow.begins(place)) {
                self.straight(address, u64::MAX);
            }
        }
    }

    /// Decodes from `address` to `end`. Without an end, up to an instruction after which another function may begin.
    /// Returns the address up to which it has decoded.
    fn straight(&mut self, address: u64, end: u64) -> u64 {
        let Some((part, first)) = self.file.place(address) else {
            return address;
        };
        let code = &self.file.code[part];
        let mut decoder = Decoder::with_ip(self.bits(), &code.bytes[first..], address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() && decoder.ip() < end && self.is_affordable() {
            let offset = (decoder.ip() - code.address) as usize;
            if self.flow.begins[part].has(offset) {
                // Decoded before, and so is what follows, unless that ended with a jump.
                if end == u64::MAX {
                    break;
                }
                decoder.decode_out(&mut instruction);
                continue;
            }
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                return instruction.ip();
            }
            self.flow.begins[part].add(offset);
            self.targets(&instruction);
            let ends = matches!(
                instruction.flow_control(),
                FlowControl::UnconditionalBranch
                    | FlowControl::IndirectBranch
                    | FlowControl::Return
                    | FlowControl::Exception
            );
            if ends && end == u64::MAX {
                break;
            }
        }
        decoder.ip()
    }

    /// Notes the addresses that an instruction jumps to, or takes.
    fn targets(&mut self, instruction: &Instruction) {
        for operand in 0..instruction.op_count() {
            match instruction.op_kind(operand) {
                OpKind::NearBranch32 | OpKind::NearBranch64 => self.land(instruction.near_branch_target()),
                OpKind::Memory if instruction.is_ip_rel_memory_operand() => {
                    let address = instruction.ip_rel_memory_address();
                    if instruction.mnemonic() == iced_x86::Mnemonic::Lea {
                        self.land(address);
                        self.table(address);
                    }
                }
                // i386: lea table@GOTOFF(%ebx), %eax.
                OpKind::Memory => {
                    if let Some(base) = self.file.global_offsets.filter(|_| self.bits() == 32) {
                        self.mark(base.wrapping_add(instruction.memory_displacement64()) & 0xffff_ffff);
                    }
                }
                OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64 if self.file.is_fixed => {
                    let address = instruction.immediate(operand);
                    if self.file.place(address).is_some() {
                        self.land(address);
                    }
                }
                _ => {}
            }
        }
    }

    /// Reads a table of addresses relative to itself, as compilers make them for switches: up to a word that names no
    /// code.
    fn table(&mut self, base: u64) {
        let parts = self.file.data.iter().chain(&self.file.code);
        let Some(bytes) = parts.filter_map(|part| part.bytes.get(part.offset(base)?..)).next() else {
            return;
        };
        if !self.tables.insert(base) {
            return;
        }
        for word in bytes.chunks_exact(4).take(MOST_TABLE_WORDS) {
            let Some(left) = self.words_left.checked_sub(1) else {
                self.flow.is_complete = false;
                return;
            };
            self.words_left = left;
            let relative = i32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let address = base.wrapping_add_signed(relative.into());
            if self.file.place(address).is_none() {
                return;
            }
            self.land(address);
        }
    }

    /// Notes every address in the words of 8 and 4 bytes of a file, which state it relative to `base`. Constants in
    /// instructions are found by decoding them.
    fn words(&mut self, part: &Part<'_>, base: u64) {
        let skipped = part.address.wrapping_neg() as usize % 4;
        let words = part.bytes.get(skipped..).unwrap_or_default();
        let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let mut words = words.chunks_exact(4).map(word).peekable();
        while let Some(low) = words.next() {
            self.mark(base.wrapping_add(low.into()) & 0xffff_ffff);
            if let Some(high) = words.peek().filter(|high| **high != 0 && base == 0) {
                self.mark(u64::from(*high) << 32 | u64::from(low));
            }
        }
    }

    /// Notes the target of whatever looks like a jump of 32 bits, at any byte: so none is missed, wherever instructions
    /// begin.
    fn any_jump(&mut self, part: &Part<'_>) {
        let is_32_bit = self.bits() == 32;
        for (offset, bytes) in part.bytes.windows(6).enumerate() {
            let word = |at: usize| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            let after = |size: u64, relative: i32| {
                let target = (part.address + offset as u64 + size).wrapping_add_signed(relative.into());
                if is_32_bit { target & 0xffff_ffff } else { target }
            };
            match bytes[..2] {
                [0xe8 | 0xe9, _] => {
                    self.mark(after(5, word(1)));
                }
                [0x0f, 0x80..=0x8f] => {
                    self.mark(after(6, word(2)));
                }
                _ => {}
            }
        }
    }

    /// Notes the targets of all jumps in a part, and the addresses in its constants, as it decodes from its start, and
    /// anew from each function. `decoded`: where each function begins, and up to where it has been decoded.
    fn sweep(&mut self, part: &Part<'_>, decoded: &[(u64, u64)]) {
        let end = part.address + part.bytes.len() as u64;
        let inside = decoded.partition_point(|(start, _)| *start < part.address)
            ..decoded.partition_point(|(start, _)| *start < end);
        let decoded = &decoded[inside];
        let from = std::iter::once(part.address).chain(decoded.iter().map(|(_, to)| *to));
        let to = decoded.iter().map(|(start, _)| *start).chain([end]);
        for (from, to) in from.zip(to) {
            self.gap(part, from, to);
        }
    }

    /// Does so from `from` up to the instruction that `to` is in or behind.
    fn gap(&mut self, part: &Part<'_>, from: u64, to: u64) {
        let Some(code) = part.offset(from).map(|offset| &part.bytes[offset..]) else {
            return;
        };
        let mut decoder = Decoder::with_ip(self.bits(), code, from, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() && decoder.ip() < to && self.is_affordable() {
            decoder.decode_out(&mut instruction);
            for operand in 0..instruction.op_count() {
                match instruction.op_kind(operand) {
                    OpKind::NearBranch32 | OpKind::NearBranch64 => self.mark(instruction.near_branch_target()),
                    OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64 if self.file.is_fixed => {
                        self.mark(instruction.immediate(operand))
                    }
                    _ => None,
                };
            }
        }
    }
}
