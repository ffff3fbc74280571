//! The call frame information of a kernel's vDSO for x86-64: unwinders look nowhere else for the code there.

use std::ops::Range;

use fastpath_image::elf::{Elf, u32_at};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, OpAccess, Register};
use object::elf::PT_GNU_EH_FRAME;

/// What is said about one function.
pub struct Frames {
    /// Offsets of the function's code in the vDSO.
    pub function: Range<u64>,
    /// Its instructions.
    pub code: Vec<Instruction>,
    /// Offset of its description.
    pub at: u64,
    /// Offset of the CIE.
    pub cie: u64,
    /// Offsets of the instructions that describe its frames.
    pub program: Range<usize>,
    /// Whether the function begins with the frame of every function: the return address is what `rsp` points to.
    pub is_usual: bool,
}

/// An instruction of a program (DWARF 5, 6.4.2), and the offset in the function from which on it applies.
struct Row<'p> {
    at: usize,
    bytes: &'p [u8],
}

const NOP: u8 = 0x00;
const ADVANCE_1: u8 = 0x02;
const ADVANCE_2: u8 = 0x03;
const DEF_CFA: u8 = 0x0c;
const DEF_CFA_REGISTER: u8 = 0x0d;
const DEF_CFA_OFFSET: u8 = 0x0e;
/// Two bits, with an operand in the other six.
const ADVANCE: u8 = 0x40;
const OFFSET: u8 = 0x80;

/// Numbers of registers (System V ABI for x86-64, 3.6.2).
const RBP: u8 = 6;
const RSP: u8 = 7;

/// Registers that a function's caller finds unchanged.
const KEPT: [Register; 6] = [
    Register::RBX,
    Register::RBP,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

/// The table of all functions with call frames in an image (LSB 5.0, 10.6.2: `.eh_frame_hdr`).
pub struct Table {
    /// Offset of `.eh_frame`.
    frames: u64,
    /// Offset of each function, and of its description, in order.
    pub entries: Vec<(u64, u64)>,
}

impl Table {
    /// Version 1; the first offset is from itself, the table's are from its start, each with four bytes; the table is in order.
    const HEADER: u32 = 0x3b03_1b01;
    /// Offset of the number of functions.
    pub const COUNT_AT: usize = 8;

    /// Reads the table of an image; `None` if there is none, or it has another form than that of the linkers.
    pub fn read(image: &[u8]) -> Option<Table> {
        /// More than any vDSO has functions.
        const MOST: u32 = 1000;
        let header = Elf::parse(image).ok()?.segments_of(PT_GNU_EH_FRAME).next()?.offset;
        let word = |at: u64| u32_at(image, at);
        if word(header)? != Table::HEADER {
            return None;
        }
        let relative = |at: u64, to: u64| Some(to.wrapping_add_signed(i64::from(word(at)?.cast_signed())));
        let entry = |index: u32| {
            let at = header + 12 + 8 * u64::from(index);
            Some((relative(at, header)?, relative(at + 4, header)?))
        };
        Some(Table {
            frames: relative(header + 4, header + 4)?,
            entries: (0..word(header + Table::COUNT_AT as u64)?.min(MOST))
                .map(entry)
                .collect::<Option<_>>()?,
        })
    }

    /// Returns the size of a table of so many functions, in bytes.
    pub fn size(functions: usize) -> u64 {
        12 + 8 * functions as u64
    }

    /// Returns the bytes of the table as it is at the offset `at`.
    pub fn bytes(&self, at: u64) -> Option<Vec<u8>> {
        let distance = |to: u64, from: u64| i32::try_from(to.wrapping_sub(from).cast_signed()).ok();
        let mut bytes = Table::HEADER.to_le_bytes().to_vec();
        bytes.extend(distance(self.frames, at + 4)?.to_le_bytes());
        bytes.extend((self.entries.len() as u32).to_le_bytes());
        for (function, frames) in &self.entries {
            bytes.extend(distance(*function, at)?.to_le_bytes());
            bytes.extend(distance(*frames, at)?.to_le_bytes());
        }
        Some(bytes)
    }
}

/// Reads the frames of all functions of a vDSO that is mapped at `base`.
pub fn read(vdso: &[u8], base: u64) -> Option<Vec<Frames>> {
    let word = |at: u64| u32_at(vdso, at);
    let frames = |(start, at): &(u64, u64)| {
        let end = at.checked_add(4)?.checked_add(word(*at)?.into())?;
        let cie = at.checked_add(4)?.checked_sub(word(at + 4)?.into())?;
        let size = word(at + 12)?;
        // The length of the augmentation data, of which there are none.
        let has_none = vdso.get(*at as usize + 16) == Some(&0);
        let program = *at as usize + 17..end as usize;
        let is_sound = (at + 8).wrapping_add_signed(i64::from(word(at + 8)?.cast_signed())) == *start
            && vdso.get(program.clone()).is_some();
        let function = *start..start.checked_add(size.into())?;
        let code = vdso.get(*start as usize..function.end as usize).unwrap_or_default();
        is_sound.then(|| Frames {
            function,
            code: Decoder::with_ip(64, code, base.wrapping_add(*start), DecoderOptions::NONE)
                .iter()
                .collect(),
            at: *at,
            cie,
            program,
            is_usual: has_none && is_usual(vdso, cie as usize),
        })
    };
    // A program under `run` has the image's functions in the table, too, with descriptions elsewhere.
    let entries = Table::read(vdso)?.entries;
    let of_vdso = entries.iter().filter(|(_, at)| *at < vdso.len() as u64);
    of_vdso.map(frames).collect()
}

/// Returns whether the CIE here is the one that gcc and clang write.
fn is_usual(vdso: &[u8], at: usize) -> bool {
    /// CIE id and version; augmentation "zR"; factors 1 and -8; return address in column 16; relative addresses of four
    /// bytes; the CFA is rsp + 8, and the return address right below it.
    const USUAL: [u8; 18] = *b"\0\0\0\0\x01zR\0\x01\x78\x10\x01\x1b\x0c\x07\x08\x90\x01";
    let length = u32_at(vdso, at as u64).map_or(0, |length| length as usize);
    let contents = vdso.get(at + 4..at + 4 + length);
    contents
        .and_then(|contents| contents.strip_prefix(&USUAL))
        .is_some_and(is_padding)
}

fn is_padding(program: &[u8]) -> bool {
    program.iter().all(|byte| *byte == NOP)
}

impl Frames {
    /// Offset in a description of the distance to its function.
    pub const START_AT: u64 = 8;

    /// Returns the frames of the function with exactly this code.
    pub fn find(all: &[Frames], code: Range<u64>) -> Option<&Frames> {
        all.iter().find(|frames| frames.is_usual && frames.function == code)
    }

    /// Returns whether the function has no frame of its own, and calls no other.
    pub fn has_none(&self, vdso: &[u8]) -> bool {
        let program = vdso.get(self.program.clone());
        self.is_usual && program.is_some_and(is_padding) && self.calls().next().is_none()
    }

    /// Returns the instructions that call other functions.
    pub fn calls(&self) -> impl Iterator<Item = &Instruction> {
        let is_call = |i: &&Instruction| i.is_call_near() || i.is_call_near_indirect();
        self.code.iter().filter(is_call)
    }

    /// Returns the program that describes code without a frame of its own in the place of this function, but for the first
    /// `displaced` instructions of `function`, which are copied to the offset `thunk_at`, and are followed by a jump.
    /// `None` if it would be longer than this function's.
    pub fn with_thunk(&self, vdso: &[u8], thunk_at: usize, function: &Frames, displaced: &[u8]) -> Option<Vec<u8>> {
        let rows = rows(vdso.get(function.program.clone())?, displaced.len())?;
        if !describe(&rows, displaced) {
            return None;
        }
        self.padded(encoded(&rows, thunk_at)?)
    }

    /// Returns the description of a copy of this function's first instructions `code` at the address `copy`, and of the jump
    /// behind them, as it is at the address `at`, with a usual CIE at the address `cie`.
    pub fn of_copy(&self, vdso: &[u8], code: &[u8], copy: Range<u64>, at: u64, cie: u64) -> Option<Vec<u8>> {
        let rows = rows(vdso.get(self.program.clone())?, code.len())?;
        if !self.is_usual || !describe(&rows, code) {
            return None;
        }
        let words = [at + 4 - cie, copy.start.wrapping_sub(at + 8), copy.end - copy.start];
        let words = words.map(|word| (word as u32).to_le_bytes());
        // No augmentation data.
        let mut description = [words.as_flattened(), &[0], &encoded(&rows, 0)?].concat();
        description.resize(description.len().next_multiple_of(8) + 4, NOP);
        let length = description.len() as u32;
        Some([&length.to_le_bytes()[..], &description].concat())
    }

    fn padded(&self, mut program: Vec<u8>) -> Option<Vec<u8>> {
        (program.len() <= self.program.len()).then(|| {
            program.resize(self.program.len(), NOP);
            program
        })
    }
}

/// Returns the program with these rows, of code that stands `thunk_at` bytes behind the function's start.
fn encoded(rows: &[Row<'_>], thunk_at: usize) -> Option<Vec<u8>> {
    let mut program = Vec::new();
    let mut reached = 0;
    for row in rows {
        let at = thunk_at + row.at;
        match at - reached {
            0 => {}
            distance @ 1..64 => program.push(ADVANCE | distance as u8),
            distance @ 64..256 => program.extend([ADVANCE_1, distance as u8]),
            distance => {
                program.push(ADVANCE_2);
                program.extend(u16::try_from(distance).ok()?.to_le_bytes());
            }
        }
        reached = at;
        program.extend(row.bytes);
    }
    Some(program)
}

/// Returns the rows up to this offset in the function; `None` if an instruction is none of those that describe pushes.
fn rows(program: &[u8], last: usize) -> Option<Vec<Row<'_>>> {
    let mut rows = Vec::new();
    let (mut at, mut rest) = (0, program);
    while let Some(&first) = rest.first() {
        let (length, distance) = match first {
            NOP => (1, 0),
            ADVANCE_1 => (2, usize::from(*rest.get(1)?)),
            ADVANCE_2 => (3, usize::from(u16::from_le_bytes([*rest.get(1)?, *rest.get(2)?]))),
            DEF_CFA_REGISTER | DEF_CFA_OFFSET => (2, 0),
            DEF_CFA => (3, 0),
            _ if first & 0xc0 == ADVANCE => (1, usize::from(first & 0x3f)),
            _ if first & 0xc0 == OFFSET => (2, 0),
            _ => return None,
        };
        let bytes = rest.get(..length)?;
        // Operands of more than one byte.
        if distance == 0 && bytes[1..].iter().any(|byte| *byte >= 0x80) {
            return None;
        }
        at += distance;
        if at > last {
            break;
        }
        if distance == 0 && first != NOP {
            rows.push(Row { at, bytes });
        }
        rest = &rest[length..];
    }
    Some(rows)
}

/// Returns whether rows describe the frames at each of these instructions, the first of a function, and after the last.
/// Compilers are late with rows, but no unwinder would then find the caller.
fn describe(rows: &[Row<'_>], code: &[u8]) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    // Distances from the CFA down to rsp, and down to rbp.
    let (mut depth, mut rbp) = (8u8, None);
    let mut pushed: Vec<(u8, u8)> = Vec::new();
    let (mut cfa, mut saved) = ((RSP, 8), Vec::new());
    let mut rows = rows.iter().peekable();
    loop {
        while let Some(row) = rows.next_if(|row| row.at <= decoder.position()) {
            match *row.bytes {
                [DEF_CFA, register, offset] => cfa = (register, offset),
                [DEF_CFA_REGISTER, register] => cfa.0 = register,
                [DEF_CFA_OFFSET, offset] => cfa.1 = offset,
                [offset, factored] if offset & 0xc0 == OFFSET => saved.push((offset & 0x3f, factored.wrapping_mul(8))),
                _ => return false,
            }
        }
        let is_right = match cfa {
            (RSP, offset) => offset == depth,
            (RBP, offset) => rbp == Some(offset),
            _ => false,
        };
        let has_rbp = rbp.is_none() || saved.iter().any(|(register, _)| *register == RBP);
        if !is_right || !has_rbp || !saved.iter().all(|place| pushed.contains(place)) {
            return false;
        }
        if !decoder.can_decode() {
            return true;
        }
        let instruction = decoder.decode();
        match instruction.code() {
            Code::Push_r64 => {
                depth += 8;
                pushed.extend(number_of(instruction.op0_register()).map(|number| (number, depth)));
            }
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64
                if (instruction.op0_register(), instruction.op1_register()) == (Register::RBP, Register::RSP) =>
            {
                rbp = Some(depth);
            }
            _ if keeps_frame(&mut factory, &instruction) => {}
            _ => return false,
        }
    }
}

fn number_of(register: Register) -> Option<u8> {
    Some(match register {
        Register::RBX => 3,
        Register::RBP => RBP,
        Register::R12 => 12,
        Register::R13 => 13,
        Register::R14 => 14,
        Register::R15 => 15,
        _ => return None,
    })
}

/// Returns whether an instruction changes neither the stack pointer nor a register that a caller finds unchanged.
pub fn keeps_frame(factory: &mut InstructionInfoFactory, instruction: &Instruction) -> bool {
    let reads = [
        OpAccess::Read,
        OpAccess::CondRead,
        OpAccess::None,
        OpAccess::NoMemAccess,
    ];
    let is_part = |register: Register| {
        let whole = register.full_register();
        whole == Register::RSP || KEPT.contains(&whole)
    };
    let mut used = factory.info(instruction).used_registers().iter();
    !instruction.is_invalid() && used.all(|used| reads.contains(&used.access()) || !is_part(used.register()))
}
