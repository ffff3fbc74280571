//! Code in the kernel's vDSO, behind its file, to which an entry point jumps if the image's code is not in the vDSO itself
//! (`entry_body.rs`). It compares its address with the one that it was made for. Programs move the vDSO, as restarters of checkpoints do,
//! and unmap all else: a moved stub continues in the kernel's function, which moves along, and never goes to the region.

use fastpath_image::Isa;
use fastpath_page::PAGE_SIZE;
use object::LittleEndian as Little;
use object::elf::{FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};

use super::{Change, EntryPoint, JournalRecord, Purpose, Redirection, aarch64, x86};
use crate::plan::region::TAIL_BYTES;

/// Alignment of a stub.
const ALIGNMENT: usize = 16;

/// Returns the most bytes of a stub.
fn size(isa: Isa) -> usize {
    if isa == Isa::I386 { 48 } else { 64 }
}

/// Returns whether a change is a stub, and not the jump of an entry point, which has five bytes at most.
pub(super) fn is_stub(record: &JournalRecord) -> bool {
    record.purpose == Purpose::Entry && record.change.original.len() > x86::JUMP_BYTES
}

/// Returns the offset of the end of a vDSO's file by its headers.
pub(super) fn end_of_file<H: FileHeader<Endian = Little>>(vdso: &[u8]) -> Option<u64> {
    let header = H::parse(vdso).ok()?;
    let sections = u64::from(header.e_shentsize(Little)) * u64::from(header.e_shnum(Little));
    let end_of_headers = header.e_shoff(Little).into().checked_add(sections)?;
    let segments = header.program_headers(Little, vdso).ok()?.iter();
    let ends = segments.map(|segment| {
        segment
            .p_offset(Little)
            .into()
            .saturating_add(segment.p_filesz(Little).into())
    });
    Some(ends.fold(end_of_headers, u64::max))
}

impl Redirection {
    /// Returns the address of a new stub for the function `entry` that goes to `target` in the image. The kernel maps whole pages of a
    /// vDSO: behind the file are zeros, or, in User Mode Linux, which copies a page, whatever is behind the vDSO in its memory.
    pub(super) fn add_stub(
        &mut self,
        isa: Isa,
        function: &'static str,
        entry: &EntryPoint<'_>,
        target: u64,
    ) -> Result<u64, String> {
        let end_of_file = match isa.is_64() {
            false => end_of_file::<FileHeader32<Little>>(entry.code),
            true => end_of_file::<FileHeader64<Little>>(entry.code),
        };
        let free_from = end_of_file.ok_or("the end of its vDSO's file is unknown")? as usize;
        let patches = self
            .patches
            .iter()
            .map(|patch| (patch.change.address - entry.base) as usize);
        let lowest_stub = patches.filter(|at| *at >= free_from).min();
        let tail = entry.code.len().next_multiple_of(PAGE_SIZE).checked_sub(TAIL_BYTES);
        let end = lowest_stub.or(tail).and_then(|end| end.checked_sub(size(isa)));
        let at = end.map(|end| end & !(ALIGNMENT - 1)).filter(|at| *at >= free_from);
        let room = at.and_then(|at| entry.code.get(at..at + size(isa)));
        let (offset, original) = at.zip(room).ok_or("its vDSO has no unused bytes")?;
        let at = entry.base + offset as u64;
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
        let change = Change {
            address: at,
            original: original.to_vec(),
            replacement: code,
        };
        self.patches.push(JournalRecord::new(change, Purpose::Entry));
        Ok(at)
    }
}
