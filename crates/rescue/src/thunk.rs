//! The code to which the jump at a site goes.
//!
//! A `syscall` changes rax, rcx (the address after it) and r11 (the flags), and a thunk changes nothing else: it
//! compares the number without the flags, in rcx, which is free until the system call, and so is r11. It goes on to a
//! *routine* with the address of its own end in rcx. The routine answers or makes the system call, leaves rax and r11
//! as the system call does, and jumps to the address in rcx. A thunk uses no stack.

use fastpath_audit::Call;
use fastpath_isa::Isa;
use iced_x86::{BlockEncoder, BlockEncoderOptions, Decoder, DecoderOptions, Instruction, InstructionBlock};

use crate::Calls;
use crate::window::{JUMP_BYTES, Kind, SYSCALL_BYTES, Window};

/// Addresses of the routines in one process; 0: there is none, and the kernel is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Routines {
    pub clock_gettime: u64,
    pub gettimeofday: u64,
    pub time: u64,
}

impl Routines {
    /// Sets the routine for the call of this name.
    pub fn set(&mut self, name: &str, routine: u64) {
        match name {
            "clock_gettime" => self.clock_gettime = routine,
            "gettimeofday" => self.gettimeofday = routine,
            "time" => self.time = routine,
            _ => {}
        }
    }

    fn of(self, call: Call) -> u64 {
        match call {
            Call::ClockGettime => self.clock_gettime,
            Call::Gettimeofday => self.gettimeofday,
            Call::Time => self.time,
            // Only 32-bit programs have it.
            Call::ClockGettime64 => 0,
        }
    }

    /// Returns the calls that have a routine, with their numbers.
    fn all(self) -> impl Iterator<Item = (u32, u64)> {
        let calls = &Isa::X86_64.facts().calls;
        let numbers = [
            (Some(calls.clock_gettime), self.clock_gettime),
            (Some(calls.gettimeofday), self.gettimeofday),
            (calls.time, self.time),
        ];
        let known = numbers
            .into_iter()
            .filter_map(|(number, routine)| Some((number?, routine)));
        known.filter(|(_, routine)| *routine != 0)
    }

    fn number_of(self, call: Call) -> Option<(u32, u64)> {
        let routine = Some(self.of(call)).filter(|routine| *routine != 0)?;
        self.all().find(|(_, known)| *known == routine)
    }
}

/// A thunk, and the change that leads to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thunk {
    /// The code, for the address that it was made for.
    pub code: Vec<u8>,
    /// Address of the change.
    pub address: u64,
    /// Bytes before the change.
    pub original: Vec<u8>,
    /// Bytes after the change; as many.
    pub replacement: Vec<u8>,
    /// Instructions of the window besides the first, as offsets in it, and their copies, as offsets in the thunk. A
    /// thread at the one may continue at the other.
    pub moved: Vec<(u16, u16)>,
    /// Where a system call that the thunk makes returns to, as offsets in the thunk and in the window: a thread that
    /// waits there may continue at the other. Only a window behind the `syscall` has one.
    pub in_call: Option<(u16, u16)>,
}

/// Returns the thunk at `at` for a window that is loaded with `bias`; `None` if there is no routine for its calls, or
/// one is out of reach of the other. Other calls continue at `otherwise`, with the registers that they had at the
/// window, or are made as without the thunk. Only for a number that the window does not set.
pub fn thunk(
    window: &Window,
    calls: Calls,
    bias: u64,
    at: u64,
    routines: Routines,
    otherwise: Option<u64>,
) -> Option<Thunk> {
    let wanted: Vec<(u32, u64)> = match calls {
        Calls::One(call) => vec![routines.number_of(call)?],
        Calls::Any => routines.all().collect(),
    };
    if wanted.is_empty() || (otherwise.is_some() && calls != Calls::Any) {
        return None;
    }
    let builder = Builder {
        window,
        address: bias.wrapping_add(window.address),
        at,
        code: Vec::new(),
    };
    match (window.kind, otherwise) {
        (Kind::Before, None) => builder.before(&wanted),
        (Kind::Before, Some(otherwise)) => builder.before_or(&wanted, otherwise),
        (Kind::Behind, otherwise) => builder.behind(&wanted, otherwise),
        (Kind::Vsyscall, _) => builder.vsyscall(wanted[0]),
    }
}

/// Returns `jmp rel32`.
fn jump(from: u64, to: u64) -> Option<[u8; JUMP_BYTES]> {
    let distance = to.wrapping_sub(from.wrapping_add(JUMP_BYTES as u64)) as i64;
    let [a, b, c, d] = i32::try_from(distance).ok()?.to_le_bytes();
    Some([0xe9, a, b, c, d])
}

struct Builder<'w> {
    window: &'w Window,
    /// Address of the window in the process.
    address: u64,
    /// Address of the thunk.
    at: u64,
    code: Vec<u8>,
}

impl Builder<'_> {
    fn here(&self) -> u64 {
        self.at + self.code.len() as u64
    }

    fn jump_to(&mut self, to: u64) -> Option<()> {
        self.code.extend(jump(self.here(), to)?);
        Some(())
    }

    /// Appends `mov $value, %rcx`.
    fn rcx(&mut self, value: u64) {
        self.code.extend([0x48, 0xb9]);
        self.code.extend(value.to_le_bytes());
    }

    /// Appends copies of instructions of the window, from this offset on. Returns the offsets of each, and of its copy.
    fn copy(&mut self, from: usize) -> Option<Vec<(u16, u16)>> {
        let bytes = &self.window.bytes[from..];
        if bytes.is_empty() {
            return Some(Vec::new());
        }
        let first = self.address + from as u64;
        let decoder = Decoder::with_ip(64, bytes, first, DecoderOptions::NONE);
        let instructions: Vec<Instruction> = decoder.into_iter().collect();
        let block = InstructionBlock::new(&instructions, self.here());
        let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let encoded = BlockEncoder::encode(64, block, options).ok()?;
        let base = self.code.len();
        let copies = encoded
            .new_instruction_offsets
            .iter()
            .map(|offset| base + *offset as usize);
        let moved = instructions
            .iter()
            .map(|instruction| (instruction.ip() - self.address) as usize)
            .zip(copies)
            .map(|(from, to)| (from as u16, to as u16))
            .collect();
        self.code.extend(encoded.code_buffer);
        Some(moved)
    }

    /// Appends the comparison of the number with each of these, none of them in the flags. Returns the offsets of the
    /// distances of their jumps.
    fn compare(&mut self, wanted: &[(u32, u64)]) -> Vec<usize> {
        let mut jumps = Vec::new();
        for (number, _) in wanted {
            // lea -number(%rax), %rcx; jrcxz
            self.code.extend([0x48, 0x8d, 0x88]);
            self.code.extend(number.wrapping_neg().to_le_bytes());
            self.code.extend([0xe3, 0]);
            jumps.push(self.code.len() - 1);
        }
        jumps
    }

    /// Appends the jumps to the routines, to which the `jumps` go, and returns the offsets of the words for their end.
    fn routines(&mut self, wanted: &[(u32, u64)], jumps: &[usize]) -> Option<Vec<usize>> {
        let mut ends = Vec::new();
        for ((_, routine), from) in wanted.iter().zip(jumps) {
            let distance = self.code.len() - (from + 1);
            self.code[*from] = i8::try_from(distance).ok()? as u8;
            ends.push(self.go_to_routine(*routine));
        }
        Some(ends)
    }

    /// Appends a jump to a routine, and returns the offset of the word for its end.
    fn go_to_routine(&mut self, routine: u64) -> usize {
        self.rcx(0);
        let end = self.code.len() - 8;
        // mov $routine, %r11; jmp *%r11
        self.code.extend([0x49, 0xbb]);
        self.code.extend(routine.to_le_bytes());
        self.code.extend([0x41, 0xff, 0xe3]);
        end
    }

    /// Makes this the place where the routines come back to.
    fn end(&mut self, ends: &[usize]) {
        let here = self.here().to_le_bytes();
        ends.iter().for_each(|at| self.code[*at..at + 8].copy_from_slice(&here));
    }

    fn before(mut self, wanted: &[(u32, u64)]) -> Option<Thunk> {
        let syscall = self.address + self.window.bytes.len() as u64;
        let behind = syscall + SYSCALL_BYTES as u64;
        let moved = self.copy(0)?;
        let jumps = self.compare(wanted);
        self.jump_to(syscall)?;
        let ends = self.routines(wanted, &jumps)?;
        self.end(&ends);
        self.rcx(behind);
        self.jump_to(behind)?;
        self.finish(moved, None)
    }

    /// As `before`, but compares the number first, and goes on to `otherwise` with everything as it was.
    fn before_or(mut self, wanted: &[(u32, u64)], otherwise: u64) -> Option<Thunk> {
        let behind = self.address + (self.window.bytes.len() + SYSCALL_BYTES) as u64;
        let jumps = self.compare(wanted);
        self.jump_to(otherwise)?;
        let mut ends = Vec::new();
        for ((_, routine), from) in wanted.iter().zip(&jumps) {
            self.code[*from] = i8::try_from(self.code.len() - (from + 1)).ok()? as u8;
            self.copy(0)?;
            ends.push(self.go_to_routine(*routine));
        }
        self.end(&ends);
        self.rcx(behind);
        self.jump_to(behind)?;
        self.finish(Vec::new(), None)
    }

    fn behind(mut self, wanted: &[(u32, u64)], otherwise: Option<u64>) -> Option<Thunk> {
        let jumps = self.compare(wanted);
        let (mut called, mut over) = (None, None);
        if let Some(otherwise) = otherwise {
            self.jump_to(otherwise)?;
        } else {
            self.code.extend([0x0f, 0x05]);
            called = Some(self.code.len() as u16);
            // jmp over the routines
            self.code.extend([0xeb, 0]);
            over = Some(self.code.len() - 1);
        }
        let ends = self.routines(wanted, &jumps)?;
        if let Some(over) = over {
            self.code[over] = i8::try_from(self.code.len() - (over + 1)).ok()? as u8;
        }
        self.end(&ends);
        let behind = self.address + SYSCALL_BYTES as u64;
        self.rcx(behind);
        let mut moved = self.copy(SYSCALL_BYTES)?;
        self.jump_to(self.address + self.window.bytes.len() as u64)?;
        let Some(called) = called else {
            // Threads that wait in the call are in the code at `otherwise`.
            return self.finish(Vec::new(), None);
        };
        // A thread there has made its system call: rcx is as it left it.
        if let Some(first) = moved.first_mut() {
            first.1 = called;
        }
        self.finish(moved, Some((called, SYSCALL_BYTES as u16)))
    }

    fn vsyscall(mut self, (number, routine): (u32, u64)) -> Option<Thunk> {
        // endbr64; mov $number, %eax
        self.code.extend([0xf3, 0x0f, 0x1e, 0xfa, 0xb8]);
        self.code.extend(number.to_le_bytes());
        let end = self.go_to_routine(routine);
        self.end(&[end]);
        // ret
        self.code.push(0xc3);
        let replacement = match self.window.bytes.len() {
            // Extended with its sign.
            4 => i32::try_from(self.at).ok()?.to_le_bytes().to_vec(),
            _ => self.at.to_le_bytes().to_vec(),
        };
        Some(Thunk {
            address: self.address,
            original: self.window.bytes.clone(),
            replacement,
            code: self.code,
            moved: Vec::new(),
            in_call: None,
        })
    }

    fn finish(self, mut moved: Vec<(u16, u16)>, in_call: Option<(u16, u16)>) -> Option<Thunk> {
        moved.retain(|(from, _)| *from > 0);
        Some(Thunk {
            address: self.address,
            original: self.window.bytes[..JUMP_BYTES].to_vec(),
            replacement: jump(self.address, self.at)?.to_vec(),
            code: self.code,
            moved,
            in_call,
        })
    }
}
