//! Thunks of x86-64.
//!
//! A `syscall` changes rax, rcx (the address after it) and r11 (the flags), and a thunk changes nothing else: it compares
//! the number in rcx, which is free until the system call, and so is r11. A routine gets the address to continue at in
//! rcx. A thunk uses no stack.

use super::builder::Builder;
use crate::rescue::change::{Change, Routine, Thunk, ThunkPlace};
use crate::rescue::window::{Jump, WindowKind};

/// Returns the thunk for a window: see [`crate::rescue::change::thunk`].
pub(crate) fn thunk(place: ThunkPlace<'_>, wanted: &[Routine], otherwise: Option<u64>) -> Option<Thunk> {
    let builder = Builder::new(place);
    match builder.place.window.kind {
        WindowKind::Before => builder.before(wanted, otherwise),
        WindowKind::Behind if builder.place.window.jump != Jump::First => builder.at_call(wanted, otherwise),
        WindowKind::Behind => builder.behind(wanted, otherwise),
        WindowKind::Vsyscall => builder.vsyscall(wanted.first()?),
    }
}

/// Returns the thunk for a window: see [`crate::rescue::change::to_entry`].
pub(crate) fn to_entry(place: ThunkPlace<'_>, entry: u64) -> Option<Thunk> {
    let builder = Builder::new(place);
    match builder.place.window.kind {
        WindowKind::Before => builder.before_to_entry(entry),
        WindowKind::Behind => builder.behind_to_entry(entry),
        WindowKind::Vsyscall => None,
    }
}

/// Returns the thunk for a window before a call: see [`crate::rescue::change::with_code`].
pub(crate) fn with_code(place: ThunkPlace<'_>, code: &[u8]) -> Option<Thunk> {
    let mut builder = Builder::new(place);
    let moved = builder.copy(0)?;
    builder.code.extend(code);
    let call = place.address + place.window.bytes.len() as u64;
    builder.jump_to(call)?;
    builder.jump_to(call + place.window.call_bytes as u64)?;
    builder.finish(moved, None)
}

impl Builder<'_> {
    /// Appends `mov $value, %rcx`.
    fn rcx(&mut self, value: u64) {
        self.code.extend([0x48, 0xb9]);
        self.code.extend(value.to_le_bytes());
    }

    /// Appends the comparison of the number with those of the routines, which does not change the flags. Returns the
    /// offsets of the distances of their jumps.
    fn compare(&mut self, wanted: &[Routine]) -> Vec<usize> {
        let mut jumps = Vec::new();
        for routine in wanted {
            // lea -number(%rax), %rcx; jrcxz
            self.code.extend([0x48, 0x8d, 0x88]);
            self.code.extend(routine.number.wrapping_neg().to_le_bytes());
            self.code.extend([0xe3, 0]);
            jumps.push(self.code.len() - 1);
        }
        jumps
    }

    /// Appends a jump to any address, with the address of the end in rcx, and returns what [`Builder::end`] takes.
    fn go_to_with_end(&mut self, address: u64) -> usize {
        // lea end(%rip), %rcx
        self.code.extend([0x48, 0x8d, 0x0d, 0, 0, 0, 0]);
        let behind = self.code.len();
        self.go_to(address);
        behind
    }

    /// Appends a jump to any address.
    fn go_to(&mut self, address: u64) {
        // mov $address, %r11; jmp *%r11
        self.code.extend([0x49, 0xbb]);
        self.code.extend(address.to_le_bytes());
        self.code.extend([0x41, 0xff, 0xe3]);
    }

    /// Makes this the place where the routines come back to.
    fn end(&mut self, behind_loads: &[usize]) {
        let here = self.code.len();
        for behind in behind_loads {
            let distance = (here - behind) as u32;
            self.code[behind - 4..*behind].copy_from_slice(&distance.to_le_bytes());
        }
    }

    fn before(mut self, wanted: &[Routine], otherwise: Option<u64>) -> Option<Thunk> {
        let syscall = self.place.address + self.place.window.bytes.len() as u64;
        let behind = syscall + self.place.window.call_bytes as u64;
        // The code at `otherwise` has the instructions of the window itself.
        let moved = match otherwise {
            None => self.copy(0)?,
            Some(_) => Vec::new(),
        };
        let jumps = self.compare(wanted);
        self.jump_to(otherwise.unwrap_or(syscall))?;
        let mut ends = Vec::new();
        for (routine, jump) in wanted.iter().zip(jumps) {
            self.land(jump)?;
            if otherwise.is_some() {
                self.copy(0)?;
            }
            ends.push(self.go_to_with_end(routine.address));
        }
        self.end(&ends);
        self.rcx(behind);
        self.jump_to(behind)?;
        self.finish(moved, None)
    }

    fn behind(mut self, wanted: &[Routine], otherwise: Option<u64>) -> Option<Thunk> {
        let jumps = self.compare(wanted);
        let called = match otherwise {
            Some(otherwise) => {
                self.jump_to(otherwise)?;
                None
            }
            None => {
                // syscall; jmp over the routines
                self.code.extend([0x0f, 0x05, 0xeb, 0]);
                Some(self.code.len() - 2)
            }
        };
        let mut ends = Vec::new();
        for (routine, jump) in wanted.iter().zip(jumps) {
            self.land(jump)?;
            ends.push(self.go_to_with_end(routine.address));
        }
        if let Some(called) = called {
            self.land(called + 1)?;
        }
        self.end(&ends);
        let call_bytes = self.place.window.call_bytes;
        self.rcx(self.place.address + call_bytes as u64);
        let mut moved = self.copy(call_bytes)?;
        self.jump_to(self.place.address + self.place.window.bytes.len() as u64)?;
        let Some(called) = called else {
            // Threads that wait in the call are in the code at `otherwise`.
            return self.finish(Vec::new(), None);
        };
        // A thread there has made its system call: rcx is as it left it.
        if let Some(first) = moved.first_mut() {
            first.1 = called as u16;
        }
        self.finish(moved, Some((called as u16, call_bytes as u16)))
    }

    /// A breakpoint on the `syscall` may have made the call: then rax is not its number.
    fn at_call(mut self, wanted: &[Routine], otherwise: Option<u64>) -> Option<Thunk> {
        let [routine] = wanted else { return None };
        if otherwise.is_some() {
            return None;
        }
        let jumps = self.compare(wanted);
        // jmp over the routine
        self.code.extend([0xeb, 0]);
        let made = self.code.len() - 1;
        jumps.into_iter().try_for_each(|jump| self.land(jump))?;
        let end = self.go_to_with_end(routine.address);
        self.land(made)?;
        self.end(&[end]);
        let call_bytes = self.place.window.call_bytes;
        self.rcx(self.place.address + call_bytes as u64);
        self.copy(call_bytes)?;
        self.jump_to(self.place.address + self.place.window.bytes.len() as u64)?;
        self.finish(Vec::new(), None)
    }

    /// The `syscall` of the window itself makes the calls that the entry does not answer.
    fn before_to_entry(mut self, entry: u64) -> Option<Thunk> {
        let window = self.place.window;
        let behind = self.place.address + (window.bytes.len() + window.call_bytes) as u64;
        let moved = self.copy(0)?;
        self.rcx(behind);
        self.go_to(entry);
        self.finish(moved, None)
    }

    fn behind_to_entry(mut self, entry: u64) -> Option<Thunk> {
        let end = self.go_to_with_end(entry);
        // syscall
        self.code.extend([0x0f, 0x05]);
        self.end(&[end]);
        let called = self.code.len() as u16;
        let call_bytes = self.place.window.call_bytes;
        self.rcx(self.place.address + call_bytes as u64);
        let mut moved = self.copy(call_bytes)?;
        self.jump_to(self.place.address + self.place.window.bytes.len() as u64)?;
        // A thread there has made its system call: rcx is as it left it.
        if let Some(first) = moved.first_mut() {
            first.1 = called;
        }
        self.finish(moved, Some((called, call_bytes as u16)))
    }

    fn vsyscall(mut self, routine: &Routine) -> Option<Thunk> {
        // endbr64; mov $number, %eax
        self.code.extend([0xf3, 0x0f, 0x1e, 0xfa, 0xb8]);
        self.code.extend(routine.number.to_le_bytes());
        let end = self.go_to_with_end(routine.address);
        self.end(&[end]);
        // ret
        self.code.push(0xc3);
        let replacement = match self.place.window.bytes.len() {
            // Extended with its sign.
            4 => i32::try_from(self.place.at).ok()?.to_le_bytes().to_vec(),
            _ => self.place.at.to_le_bytes().to_vec(),
        };
        Some(Thunk {
            changes: vec![Change::new(self.place.address, &self.place.window.bytes, replacement)],
            code: self.code,
            moved: Vec::new(),
            in_call: None,
        })
    }
}
