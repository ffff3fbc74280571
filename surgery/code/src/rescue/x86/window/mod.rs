//! The bytes beside a `syscall` that a jump can replace.

use std::ops::Range;

use crate::CallKind;
use fastpath_isa::Isa;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register};
use memchr::memmem;

use super::flow::Flow;
use super::{BITS, inside};
use crate::rescue::file::File;
use crate::rescue::window::{Jump, Reason, Window, WindowKind};

/// Size of `jmp rel32`.
pub(crate) const JUMP_BYTES: usize = 5;
/// Size of `syscall`.
const SYSCALL_BYTES: usize = 2;
const PAGE: u64 = 4096;

/// Code before or behind a `syscall` whose number is an argument. Each is the code of one library's function for any
/// system call.
struct Shape {
    before: &'static [u8],
    behind: &'static [u8],
}

const SHAPES: [Shape; 3] = [
    // glibc, syscall(): mov rdi,rax; rsi,rdi; rdx,rsi; rcx,rdx; r8,r10; r9,r8; 8(rsp),r9
    Shape {
        before: &[
            0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca, 0x4d, 0x89, 0xc2, 0x4d, 0x89, 0xc8,
            0x4c, 0x8b, 0x4c, 0x24, 0x08,
        ],
        behind: &[],
    },
    // musl, syscall(), as compilers make it: mov 16(rdx),rsi; 24(rdx),rdx
    Shape {
        before: &[0x48, 0x8b, 0x72, 0x10, 0x48, 0x8b, 0x52, 0x18],
        behind: &[],
    },
    // Go, all calls: cmp $-4095, rax; jbe
    Shape {
        before: &[],
        behind: &[0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x76],
    },
];

/// Returns the offsets of the `syscall` instructions in `code` whose number is an argument.
pub(crate) fn dynamic(code: &[u8]) -> Vec<usize> {
    let is_dynamic = |at: &usize| {
        SHAPES
            .iter()
            .any(|shape| code[..*at].ends_with(shape.before) && code[at + SYSCALL_BYTES..].starts_with(shape.behind))
    };
    memmem::find_iter(code, &SYSCALL).filter(is_dynamic).collect()
}

const SYSCALL: [u8; SYSCALL_BYTES] = [0x0f, 0x05];

/// Returns the offsets of the bytes that can be a `syscall` instruction.
pub(crate) fn all(code: &[u8]) -> impl Iterator<Item = usize> {
    memmem::find_iter(code, &SYSCALL)
}

/// Returns the number of the system call at this address, if an instruction shortly before loads it.
pub(crate) fn number(file: &File<'_>, flow: &Flow, address: u64) -> Option<u32> {
    let place = file.place(address)?;
    Search { file, flow, place }.number()
}

/// Returns the window before the `syscall` at the offset `call`, in code of which no function is known.
pub(crate) fn find_by_bytes(code: &[u8], address: u64, call: usize, ends: &[u64]) -> Result<Window, Reason> {
    let decoded = inside::Agreed::around(code, address, call, ends);
    let search = inside::Search { code, address, decoded };
    let (start, jump) = search.find(call)?;
    Ok(Window {
        isa: Isa::X86_64,
        kind: WindowKind::Before,
        address: address + start as u64,
        bytes: code[start..call].to_vec(),
        call_bytes: SYSCALL_BYTES,
        jump,
    })
}

/// Returns the window of the site at `address`.
/// `keeps_first`: the first byte of each instruction stays.
pub(crate) fn find(
    file: &File<'_>,
    flow: &Flow,
    address: u64,
    by: CallKind,
    keeps_first: bool,
) -> Result<Window, Reason> {
    if !flow.is_complete {
        return Err(Reason::TooLarge);
    }
    let begins = |(part, offset): (usize, usize)| match by {
        CallKind::SystemCall => flow.begins((part, offset)).then_some((part, offset)),
        // The address is that of the constant.
        CallKind::Vsyscall => Some((part, flow.previous((part, offset))?)),
    };
    // What code takes the address of is decoded, too, and may be data.
    let is_data = file.data_sections.iter().any(|section| section.contains(&address));
    let place = file.place(address).filter(|_| !is_data);
    let place = place.and_then(begins).ok_or(Reason::NotReached)?;
    let search = Search { file, flow, place };
    if by == CallKind::SystemCall && !search.is_usual() {
        return Err(Reason::OtherCall);
    }
    let window = match by {
        CallKind::Vsyscall => search.constant()?,
        CallKind::SystemCall if keeps_first => search.inside()?,
        CallKind::SystemCall => match search.before() {
            Ok(window) => window,
            // The reason of the first window, which is the usual one, is reported.
            Err(reason) => search.behind().map_err(|_| reason)?,
        },
    };
    window.unless_relocated(file)
}

struct Search<'a, 'f> {
    file: &'a File<'f>,
    flow: &'a Flow,
    /// Executable part and offset of the site.
    place: (usize, usize),
}

impl Search<'_, '_> {
    fn code(&self) -> &[u8] {
        self.file.code[self.place.0].bytes
    }

    /// Returns whether the system call is the instruction that this ISA's programs use.
    fn is_usual(&self) -> bool {
        self.code()[self.place.1..].starts_with(&SYSCALL)
    }

    fn address(&self, offset: usize) -> u64 {
        self.file.code[self.place.0].address + offset as u64
    }

    fn decode(&self, offset: usize) -> Instruction {
        let code = &self.code()[offset..];
        Decoder::with_ip(BITS, code, self.address(offset), DecoderOptions::NONE).decode()
    }

    /// Returns the number that the last instruction which writes it loads, if that is a constant. Something may jump
    /// between the two with another number.
    fn number(&self) -> Option<u32> {
        /// Instructions before the call that are searched.
        const LOOK_BACK: usize = 8;
        let (part, mut at) = self.place;
        let mut factory = InstructionInfoFactory::new();
        for _ in 0..LOOK_BACK {
            at = self.flow.previous((part, at))?;
            let instruction = self.decode(at);
            let registers = factory.info(&instruction).used_registers().to_vec();
            let writes = |used: &iced_x86::UsedRegister| {
                used.register().full_register() == Register::RAX
                    && !matches!(
                        used.access(),
                        OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
                    )
            };
            if registers.iter().any(writes) || !is_movable(&instruction) {
                return match instruction.code() {
                    Code::Mov_r32_imm32 => Some(instruction.immediate32()),
                    Code::Xor_r32_rm32 | Code::Xor_rm32_r32
                        if instruction.op0_register() == instruction.op1_register() =>
                    {
                        Some(0)
                    }
                    _ => None,
                };
            }
        }
        None
    }

    /// Returns the window from the instruction that can become a jump up to the `syscall`.
    fn inside(&self) -> Result<Window, Reason> {
        let (part, call) = self.place;
        let decoded = Reached { flow: self.flow, part };
        let search = inside::Search {
            code: self.code(),
            address: self.address(0),
            decoded,
        };
        match search.find(call) {
            Ok((start, jump)) => Ok(Window {
                jump,
                ..self.window_of(WindowKind::Before, start, call, 1)?
            }),
            Err(reason) => {
                let found = self.number().and_then(|number| search.find_at_call(call, number));
                let (end, relays) = found.ok_or(reason)?;
                Ok(Window {
                    jump: Jump::AtCall(relays),
                    ..self.window_of(WindowKind::Behind, call, end, 1)?
                })
            }
        }
    }

    /// Returns the shortest window right before the `syscall`.
    fn before(&self) -> Result<Window, Reason> {
        let (part, end) = self.place;
        let mut start = end;
        while end - start < JUMP_BYTES {
            let previous = self.flow.previous((part, start)).ok_or(Reason::NoRoom)?;
            let instruction = self.decode(previous);
            // An instruction that does not end where the next begins comes of another decoding.
            if previous + instruction.len() != start {
                return Err(Reason::Ambiguous(self.address(previous)));
            }
            if !is_movable(&instruction) {
                return Err(Reason::NoRoom);
            }
            start = previous;
        }
        self.window(WindowKind::Before, start, end)
    }

    /// Returns the window of the `syscall` and the instructions after it.
    fn behind(&self) -> Result<Window, Reason> {
        let (part, start) = self.place;
        let mut end = start + SYSCALL_BYTES;
        while end - start < JUMP_BYTES {
            if !self.flow.begins((part, end)) {
                return Err(Reason::NoRoom);
            }
            let instruction = self.decode(end);
            if instruction.is_invalid() || !is_movable(&instruction) {
                return Err(Reason::NoRoom);
            }
            end += instruction.len();
        }
        self.window(WindowKind::Behind, start, end)
    }

    /// Returns the constant of the instruction at the site.
    fn constant(&self) -> Result<Window, Reason> {
        let (_, start) = self.place;
        let load = self.decode(start);
        let size = match load.code() {
            // The constant is extended with its sign: the thunk must be below 2 GiB.
            Code::Mov_rm64_imm32 if self.file.is_fixed => 4,
            Code::Mov_rm64_imm32 => return Err(Reason::Movable),
            Code::Mov_r64_imm64 => 8,
            _ => return Err(Reason::NoRoom),
        };
        let end = start + load.len();
        self.jumps_between(start, end)?;
        self.window_of(WindowKind::Vsyscall, end - size, end, size)
    }

    fn window(&self, kind: WindowKind, start: usize, end: usize) -> Result<Window, Reason> {
        self.jumps_between(start, end)?;
        self.window_of(kind, start, end, JUMP_BYTES)
    }

    fn window_of(&self, kind: WindowKind, start: usize, end: usize, written: usize) -> Result<Window, Reason> {
        let address = self.address(start);
        if address / PAGE != (address + written as u64 - 1) / PAGE {
            return Err(Reason::CrossesPage);
        }
        Ok(Window {
            isa: self.file.isa,
            kind,
            address,
            bytes: self.code()[start..end].to_vec(),
            call_bytes: self.decode(self.place.1).len(),
            jump: Jump::First,
        })
    }

    /// Refuses code that something may jump into, and code in which another decoding begins instructions elsewhere.
    fn jumps_between(&self, start: usize, end: usize) -> Result<(), Reason> {
        let (part, _) = self.place;
        if let Some(at) = self.flow.landing_in(part, start + 1..end) {
            return Err(Reason::Landing(self.address(at)));
        }
        let mut offset = start;
        while offset < end {
            let next = offset + self.decode(offset).len().max(1);
            if let Some(at) = self.flow.begin_in(part, offset + 1..next.min(end)) {
                return Err(Reason::Ambiguous(self.address(at)));
            }
            offset = next;
        }
        Ok(())
    }
}

/// The code of an executable part that functions reach.
struct Reached<'a> {
    flow: &'a Flow,
    part: usize,
}

impl inside::Decoded for Reached<'_> {
    fn previous(&self, offset: usize) -> Option<usize> {
        self.flow.previous((self.part, offset))
    }

    fn landing_in(&self, range: Range<usize>) -> Option<usize> {
        self.flow.landing_in(self.part, range)
    }

    fn begin_in(&self, range: Range<usize>) -> Option<usize> {
        self.flow.begin_in(self.part, range)
    }

    fn is_end(&self, offset: usize) -> bool {
        self.flow.is_end((self.part, offset))
    }
}

/// Returns whether an instruction does the same at another address. Those that refer to memory by their own address are
/// encoded anew.
fn is_movable(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::Next
}

#[cfg(test)]
mod tests;
