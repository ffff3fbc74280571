//! Thunks of i386.
//!
//! A system call changes eax and nothing else: the number is compared in ecx, which a thunk saves on the stack, since i386
//! has no red zone below it. A routine is called, and returns.

use super::builder::Builder;
use crate::rescue::thunk::{Place, Routine, Thunk};
use crate::rescue::window::Kind;

/// Returns the thunk for a window: see [`crate::rescue::thunk::thunk`]. The hook sees the system calls of i386 by AT_SYSINFO and not
/// by their sites, so there is no other place where a call continues.
pub(crate) fn thunk(place: Place<'_>, wanted: &[Routine], otherwise: Option<u64>) -> Option<Thunk> {
    let builder = Builder::new(place);
    match builder.place.window.kind {
        Kind::Before if otherwise.is_none() => builder.before_32(wanted),
        Kind::Behind if otherwise.is_none() => builder.behind_32(wanted),
        _ => None,
    }
}

impl Builder<'_> {
    /// Appends the comparison of the number with those of the routines, which does not change the flags. Returns the
    /// offsets of the distances of their jumps; ecx is on the stack there.
    fn compare_32(&mut self, wanted: &[Routine]) -> Vec<usize> {
        let mut jumps = Vec::new();
        self.code.push(0x51); // push %ecx
        for routine in wanted {
            // lea -number(%eax), %ecx; jecxz
            self.code.extend([0x8d, 0x88]);
            self.code.extend(routine.number.wrapping_neg().to_le_bytes());
            self.code.extend([0xe3, 0]);
            jumps.push(self.code.len() - 1);
        }
        self.code.push(0x59); // pop %ecx
        jumps
    }

    /// Appends a call of each routine, to which its jump goes, and `end` after it.
    fn call_routines(
        &mut self,
        wanted: &[Routine],
        jumps: Vec<usize>,
        end: impl Fn(&mut Self) -> Option<()>,
    ) -> Option<()> {
        for (routine, jump) in wanted.iter().zip(jumps) {
            self.land(jump)?;
            self.code.push(0x59); // pop %ecx
            let [a, b, c, d] = self.distance(self.here(), routine.address)?;
            self.code.extend([0xe8, a, b, c, d]);
            end(self)?;
        }
        Some(())
    }

    fn before_32(mut self, wanted: &[Routine]) -> Option<Thunk> {
        let call = self.place.address + self.place.window.bytes.len() as u64;
        let behind = call + self.place.window.call_bytes as u64;
        let moved = self.copy(0)?;
        let jumps = self.compare_32(wanted);
        self.jump_to(call)?;
        self.call_routines(wanted, jumps, |builder| builder.jump_to(behind))?;
        self.finish(moved, None)
    }

    fn behind_32(mut self, wanted: &[Routine]) -> Option<Thunk> {
        let call_bytes = self.place.window.call_bytes;
        let jumps = self.compare_32(wanted);
        // int $0x80
        self.code.extend([0xcd, 0x80]);
        let called = self.code.len();
        let moved = self.copy(call_bytes)?;
        let behind = self.place.address + self.place.window.bytes.len() as u64;
        self.jump_to(behind)?;
        // The same instructions follow each routine.
        self.call_routines(wanted, jumps, |builder| {
            builder.copy(call_bytes)?;
            builder.jump_to(behind)
        })?;
        self.finish(moved, Some((called as u16, call_bytes as u16)))
    }
}
