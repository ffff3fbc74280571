//! Code in the kernel's vDSO, behind its file, to which an entry point jumps if the image's code is not in the vDSO itself
//! (`seat.rs`). It compares its address with the one that it was made for. Programs move the vDSO, as restarters of checkpoints do,
//! and unmap all else: a moved stub continues in the kernel's function, which moves along, and never goes to the region.

use fastpath_image::Isa;
use fastpath_page::PAGE_SIZE;

use super::{Entry, EntryPatch, Redirection, aarch64, x86};
use crate::remote::tail;

/// Alignment of a stub.
const ALIGNMENT: usize = 16;
/// Bytes of zeros that may be the end of the file: its last section header.
const END_OF_FILE: usize = 64;

/// Returns the offset of the last room for a stub of this size in a vDSO that is used from `end` on. The kernel maps whole pages, with
/// zeros behind the file, which may be all that is known here.
fn room(vdso: &[u8], end: usize, size: usize) -> Option<usize> {
    let at = end.checked_sub(size)? & !(ALIGNMENT - 1);
    let from = at.checked_sub(END_OF_FILE)?;
    let mut free = vdso.iter().skip(from).take(end - from);
    free.all(|byte| *byte == 0).then_some(at)
}

/// Returns the most bytes of a stub.
fn size(isa: Isa) -> usize {
    if isa == Isa::I386 { 48 } else { 64 }
}

impl Redirection {
    /// Returns the address of a new stub for the function `entry` that goes to `target` in the image. Where a vDSO has no
    /// unused bytes, as User Mode Linux's, which copies a whole page, x86 entries go to the image directly: a program
    /// that moves such a vDSO away is not protected.
    pub(super) fn add_stub(
        &mut self,
        isa: Isa,
        function: &'static str,
        entry: &Entry<'_>,
        target: u64,
    ) -> Result<u64, String> {
        let stubs = self
            .patches
            .iter()
            .filter(|patch| patch.original.iter().all(|byte| *byte == 0));
        let lowest = stubs.map(|patch| (patch.address - entry.base) as usize).min();
        let tail = entry.code.len().next_multiple_of(PAGE_SIZE).checked_sub(tail::BYTES);
        let room = lowest.or(tail).and_then(|end| room(entry.code, end, size(isa)));
        let at = match room {
            Some(room) => entry.base + room as u64,
            None if isa.is_x86() => return Ok(target),
            None => return Err("its vDSO has no unused bytes".into()),
        };
        let mut code = match isa {
            Isa::X86_64 => x86::stub(entry, target, at)?,
            Isa::I386 => x86::stub_of_32_bits(entry, function, target, at)?,
            Isa::Aarch64 => aarch64::stub(entry, function, target, at)?,
            isa => return Err(format!("programs of {isa} are not redirected")),
        };
        if code.len() > size(isa) {
            return Err("its first instructions are too long".into());
        }
        code.resize(size(isa), 0);
        if isa == Isa::X86_64 {
            self.addresses.push((self.patches.len(), x86::STUB_ADDRESS_AT));
        }
        self.patches.push(EntryPatch {
            function,
            address: at,
            original: vec![0; code.len()],
            replacement: code,
        });
        Ok(at)
    }
}

/// Returns the number of the system call of a function.
pub(super) fn number_of(isa: Isa, function: &str) -> Option<u32> {
    let calls = &isa.facts().calls;
    match function {
        "clock_gettime" => Some(calls.clock_gettime),
        "clock_gettime64" => calls.clock_gettime64,
        "gettimeofday" => Some(calls.gettimeofday),
        _ => None,
    }
}
