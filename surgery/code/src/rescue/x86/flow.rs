//! Where instructions begin near system calls, and where code can jump to.
//!
//! Every jump of 32 bits, and every address that code takes, is looked for at each byte of the file, since where
//! instructions begin is not known. Functions near a site are decoded, along all branches. An address counts as a
//! *landing* also if only a wrong decoding jumps to it, or a word of data looks like it: a landing too many only leaves
//! a site alone.

use std::cmp::Reverse;
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

use super::BITS;
use super::bits::Bits;
use crate::calls::word;
use crate::rescue::file::{File, Part};

/// Most words of one table of relative addresses.
const MOST_TABLE_WORDS: usize = 16 << 10;

/// Most words of all tables for each byte of code, and a few for a small file, and most instructions: so that a file made for it
/// cannot keep the analysis busy for more than some seconds. Firefox's libxul has 114 Mi words in 184 MB, most of them no tables,
/// and 92 Mi instructions.
const MOST_TABLE_WORDS_PER_BYTE: usize = 2;
const MOST_TABLE_WORDS_OF_ALL: usize = 1 << 20;
const MOST_INSTRUCTIONS: usize = 128 << 20;

/// Bytes before and behind a site that are examined: up to 7 instructions (15 bytes each), a relay within a short jump
/// (127 bytes) of one of them, and code within a short jump of the relay.
const REACH: u64 = 512;

/// Result of decoding a file near some addresses. Nothing is known of the rest.
pub(crate) struct Flow {
    /// Whether all that is near was decoded. If not, nothing is proven.
    pub is_complete: bool,
    /// For each executable part, the offsets at which an instruction begins that is reached from a function.
    begins: Vec<Bits>,
    /// For each executable part, the offsets that something may jump to.
    lands: Vec<Bits>,
    /// For each executable part, the offsets at which a function ends.
    ends: Vec<Bits>,
}

impl Flow {
    pub(crate) fn around(file: &File<'_>, sites: impl IntoIterator<Item = u64>) -> Flow {
        let bits = || file.code.iter().map(|part| Bits::new(part.bytes.len())).collect();
        let near = near(file, sites);
        let size = file.code.iter().map(|part| part.bytes.len()).sum::<usize>();
        let mut search = Search {
            file,
            undecoded: undecoded(file, &near),
            near,
            flow: Flow {
                is_complete: true,
                begins: bits(),
                lands: bits(),
                ends: bits(),
            },
            next: Vec::new(),
            tables: Default::default(),
            words_left: MOST_TABLE_WORDS_OF_ALL + MOST_TABLE_WORDS_PER_BYTE * size,
            instructions_left: MOST_INSTRUCTIONS,
        };
        search.land(file.entry);
        file.labels.iter().for_each(|label| search.land(*label));
        for object in &file.objects {
            search.mark(*object);
        }
        if file.is_fixed {
            file.data.iter().for_each(|part| search.words(part, 4));
            // Constants of instructions are at any byte.
            file.code.iter().for_each(|part| search.words(part, 1));
        }
        file.code.iter().for_each(|part| search.relative_addresses(part));
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
                let to = match search.is_near(&(start..end)) {
                    true => search.straight(start, end),
                    false => end.max(start),
                };
                decoded.push((start, to));
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
    pub(crate) fn begin_in(&self, part: usize, range: Range<usize>) -> Option<usize> {
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
    pub(crate) fn landing_in(&self, part: usize, range: Range<usize>) -> Option<usize> {
        self.lands[part].first_in(range)
    }
}

/// Returns the functions near these sites, and the bytes near them that are in none; in order, none overlapping.
fn near(file: &File<'_>, sites: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
    let around = |site: u64| site.saturating_sub(REACH)..site.saturating_add(REACH);
    let near = merged(sites.into_iter().map(around).collect());
    let is_near = |function: &&Range<u64>| overlaps(&near, function);
    let functions = file.functions.iter().filter(is_near).cloned().collect::<Vec<_>>();
    merged([near, functions].concat())
}

/// Returns the offsets in each executable part of all addresses in these ranges.
fn undecoded(file: &File<'_>, near: &[Range<u64>]) -> Vec<Bits> {
    let offsets_in = |part: &Part<'_>| {
        let mut offsets = Bits::new(part.bytes.len());
        let end = part.address + part.bytes.len() as u64;
        for range in near {
            let inside = range.start.max(part.address)..range.end.min(end);
            inside.for_each(|address| offsets.add((address - part.address) as usize));
        }
        offsets
    };
    file.code.iter().map(offsets_in).collect()
}

/// Returns ranges in order, those that overlap as one.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|range, before| {
        let is_one = range.start <= before.end;
        if is_one {
            before.end = before.end.max(range.end);
        }
        is_one
    });
    ranges
}

/// Returns whether a range overlaps one of these, which are in order.
fn overlaps(ranges: &[Range<u64>], range: &Range<u64>) -> bool {
    let next = ranges.partition_point(|other| other.end <= range.start);
    ranges.get(next).is_some_and(|other| other.start < range.end)
}

struct Search<'a, 'f> {
    file: &'a File<'f>,
    /// The addresses to examine, in order.
    near: Vec<Range<u64>>,
    flow: Flow,
    /// Landings near sites whose code is not decoded yet.
    next: Vec<u64>,
    /// For each executable part, the offsets near sites that neither are nor were among `next`.
    undecoded: Vec<Bits>,
    /// Addresses of tables of relative addresses that were read.
    tables: std::collections::HashSet<u64>,
    words_left: usize,
    instructions_left: usize,
}

impl Search<'_, '_> {
    fn is_near(&self, range: &Range<u64>) -> bool {
        overlaps(&self.near, range)
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
            && self.undecoded[part].remove(offset)
        {
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
        let mut decoder = Decoder::with_ip(BITS, &code.bytes[first..], address, DecoderOptions::NONE);
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
            if let Some(target) = target(&instruction) {
                self.land(target);
            }
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

    /// Reads a table of addresses relative to itself, as compilers make them for switches: up to a word that names no
    /// code.
    fn table(&mut self, base: u64) {
        let parts = self.file.data.iter().chain(&self.file.code);
        let Some(bytes) = parts.filter_map(|part| part.bytes.get(part.offset(base)?..)).next() else {
            return;
        };
        for (index, word) in bytes.chunks_exact(4).take(MOST_TABLE_WORDS).enumerate() {
            let Some(left) = self.words_left.checked_sub(1) else {
                self.flow.is_complete = false;
                return;
            };
            self.words_left = left;
            let relative = i32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let address = base.wrapping_add_signed(relative.into());
            // Most bases have no table, and need not be remembered.
            if self.file.place(address).is_none() || (index == 0 && !self.tables.insert(base)) {
                return;
            }
            self.land(address);
        }
    }

    /// Notes every address in the words of 8 and 4 bytes of a part: those at multiples of `step` bytes.
    fn words(&mut self, part: &Part<'_>, step: usize) {
        let skipped = part.address.wrapping_neg() as usize % step;
        let words = part.bytes.get(skipped..).unwrap_or_default();
        for at in (0..words.len()).step_by(step) {
            let Some(low) = word(words, at) else { break };
            self.mark(low.into());
            if let Some(high) = word(words, at + 4).filter(|high| *high != 0) {
                self.mark(u64::from(high) << 32 | u64::from(low));
            }
        }
    }

    /// Notes the target of whatever looks like a jump of 32 bits, or an address relative to it, at any byte: so none is
    /// missed, wherever instructions begin.
    fn relative_addresses(&mut self, part: &Part<'_>) {
        let opcodes =
            memchr::memchr3_iter(0xe8, 0xe9, 0x8d, part.bytes).chain(memchr::memchr2_iter(0x0f, 0xc7, part.bytes));
        for offset in opcodes {
            let bytes = &part.bytes[offset..];
            let (size, is_lea) = match (bytes[0], bytes.get(1)) {
                (0xe8 | 0xe9, _) => (5, false),
                // xbegin is the last.
                (0x0f, Some(0x80..=0x8f)) | (0xc7, Some(0xf8)) => (6, false),
                // lea, relative to the instruction's end.
                (0x8d, Some(operands)) if operands & 0xc7 == 0x05 => (6, true),
                _ => continue,
            };
            let Some(relative) = word(bytes, size - 4) else {
                continue;
            };
            let end = part.address + (offset + size) as u64;
            let target = end.wrapping_add_signed(relative.cast_signed().into());
            self.land(target);
            if is_lea {
                self.table(target);
            }
        }
    }

    /// Notes the targets of all jumps near sites, as a part is decoded from its start, and anew from each function.
    /// `decoded`: where each function begins, and up to where it has been decoded.
    fn sweep(&mut self, part: &Part<'_>, decoded: &[(u64, u64)]) {
        let end = part.address + part.bytes.len() as u64;
        let inside = decoded.partition_point(|(start, _)| *start < part.address)
            ..decoded.partition_point(|(start, _)| *start < end);
        let decoded = &decoded[inside];
        let from = std::iter::once(part.address).chain(decoded.iter().map(|(_, to)| *to));
        let to = decoded.iter().map(|(start, _)| *start).chain([end]);
        for (from, to) in from.zip(to) {
            if self.is_near(&(from..to)) {
                self.gap(part, from, to);
            }
        }
    }

    /// Does so from `from` up to the instruction that `to` is in or behind.
    fn gap(&mut self, part: &Part<'_>, from: u64, to: u64) {
        let Some(code) = part.offset(from).map(|offset| &part.bytes[offset..]) else {
            return;
        };
        let mut decoder = Decoder::with_ip(BITS, code, from, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() && decoder.ip() < to && self.is_affordable() {
            decoder.decode_out(&mut instruction);
            if let Some(target) = target(&instruction) {
                self.mark(target);
            }
        }
    }
}

/// Returns the address that an instruction jumps to.
fn target(instruction: &Instruction) -> Option<u64> {
    let is_near = matches!(instruction.op0_kind(), OpKind::NearBranch32 | OpKind::NearBranch64);
    is_near.then(|| instruction.near_branch_target())
}
