//! Puts the image's slow path, which asks the kernel where no anchor answers, behind the file of the kernel's vDSO, and makes it a part
//! of the vDSO for unwinders in a process: they look for the object that has an address in its program headers, and for its
//! table of call frames there.
//!
//! glibc reads the program headers when a program starts, and keeps what it read. So only a program that is starting gets the
//! slow path there, and the table has to stay. So does the code: a thread may be in it after a detach.

use std::mem::offset_of;

use object::LittleEndian as Little;
use object::elf::{FileHeader64, PT_GNU_EH_FRAME, PT_LOAD, ProgramHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};

use super::call_frames::{Frames, Table};
use super::entry_body::{EntryBody, Source};
use super::stub::end_of_file;
use super::{Change, Purpose, Record, x86};
use crate::plan::region::TAIL_BYTES;

/// A planned slow path; empty if there is none.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlowPath {
    /// What is written first, and stays: the table, which says that it has the vDSO's functions only; and the image's code, with
    /// another copy of the displaced instructions of the kernel's clock_gettime.
    pub stays: Vec<Record>,
    /// What makes this a part of the vDSO.
    pub records: Vec<Record>,
    /// The body's code that goes there.
    pub body: Vec<u8>,
    /// Changes of the image, whose call frame information then describes this code: offsets, and bytes.
    pub descriptions: Vec<(u64, [u8; 4])>,
}

impl SlowPath {
    /// Plans the slow path of a body, which `patch` puts into the vDSO at `base`, with the frames `all`. Adds the description of
    /// the displaced instructions to the region's `thunks`, at `thunks_at`. `None` if there is no room, or the vDSO is not
    /// understood.
    pub fn plan(
        body: &EntryBody,
        patch: &Change,
        source: Source<'_>,
        (vdso, base): (&[u8], u64),
        all: &[Frames],
        thunks: &mut Vec<u8>,
        thunks_at: u64,
    ) -> Option<SlowPath> {
        const SIZE: u64 = size_of::<ProgramHeader64<Little>>() as u64;
        let header = FileHeader64::<Little>::parse(vdso).ok()?;
        let segments = header.program_headers(Little, vdso).ok()?;
        let index = |kind| segments.iter().position(|segment| segment.p_type(Little) == kind);
        let (load, frames) = (index(PT_LOAD)?, index(PT_GNU_EH_FRAME)?);
        let field = |index: usize, at: usize| header.e_phoff(Little) + index as u64 * SIZE + at as u64;
        let (functions, part) = (source.slow_path, source.slow_path_code());
        let cie = source.at + functions.first()?.cie;
        if !functions.iter().all(|frames| frames.is_usual) {
            return None;
        }
        let mut table = Table::read(vdso)?;
        let of_vdso = table.entries.len();
        let size = Table::size(of_vdso + functions.len() + 1);
        let thunk = &body.thunk;
        let displaced = &thunk[..thunk.len() - x86::JUMP_BYTES];
        let code_size = part.end - part.start + thunk.len() as u64;
        let (table_at, code_at) = places(header, segments, vdso, size, code_size)?;
        let thunk_at = code_at + (part.end - part.start);
        let end = code_at + code_size;
        let room = |at: u64, size: u64| vdso.get(at as usize..(at + size) as usize);
        let (table_room, code_room) = (room(table_at, size)?, room(code_at, code_size)?);

        let mut descriptions = Vec::new();
        for frames in functions {
            let function = code_at + frames.function.start - part.start;
            let at = source.at + frames.at;
            table.entries.push((function, at.wrapping_sub(base)));
            let distance = (base + function).wrapping_sub(at + Frames::START_AT);
            descriptions.push((frames.at + Frames::START_AT, (distance as u32).to_le_bytes()));
        }
        let at = thunks_at + thunks.len().next_multiple_of(8) as u64;
        let copy = base + thunk_at..base + end;
        let description = Frames::find(all, body.kernels.clone())?.of_copy(vdso, displaced, copy, at, cie)?;
        table.entries.push((thunk_at, at.wrapping_sub(base)));
        let mut bytes = table.bytes(table_at)?;
        let both = bytes[Table::COUNT_AT..][..4].to_vec();
        let count = (of_vdso as u32).to_le_bytes();
        bytes[Table::COUNT_AT..][..4].copy_from_slice(&count);
        let code = body.copied(&part, base + code_at, source, (base + thunk_at, None), base + code_at);
        let mut code = code.ok()?;
        code.extend(displaced);
        let displaced = displaced.len() as u64;
        let back = base + body.kernels.start + displaced;
        code.extend(x86::jump(64, base + thunk_at + displaced, back).ok()?);
        let mut in_body = patch.replacement.clone();
        let body_at = body.code(patch.address, source, base + code_at).ok()?;
        in_body[..body_at.len()].copy_from_slice(&body_at);

        let record = |at: u64, original: &[u8], replacement: Vec<u8>| {
            let (address, original) = (base + at, original.to_vec());
            let change = Change {
                address,
                original,
                replacement,
            };
            Record::new(change, Purpose::EntryBody)
        };
        let linked_at = segments[load].p_vaddr(Little);
        let address = linked_at.wrapping_add(table_at);
        // From p_offset on: p_vaddr, p_paddr, p_filesz and p_memsz follow.
        let described = [table_at, address, address, size, size].map(u64::to_le_bytes).concat();
        let before = field(frames, offset_of!(ProgramHeader64<Little>, p_offset));
        let before_bytes = vdso.get(before as usize..before as usize + described.len())?;
        // p_filesz and p_memsz. Tools outside read as much as the former says.
        let sizes_at = field(load, offset_of!(ProgramHeader64<Little>, p_filesz));
        let sizes = vdso.get(sizes_at as usize..sizes_at as usize + 16)?;
        let longer = [end.wrapping_sub(segments[load].p_offset(Little)); 2].map(u64::to_le_bytes);
        let segment = Record {
            thunk: base + code_at,
            in_thunk: code_size as u16,
            purpose: Purpose::SlowPath,
            ..record(sizes_at, sizes, longer.concat())
        };
        thunks.resize((at - thunks_at) as usize, 0);
        thunks.extend(description);
        Some(SlowPath {
            stays: vec![record(table_at, table_room, bytes), record(code_at, code_room, code)],
            records: vec![
                segment,
                record(before, before_bytes, described),
                record(table_at + Table::COUNT_AT as u64, &count, both),
            ],
            body: in_body,
            descriptions,
        })
    }
}

/// Returns the offsets in a vDSO for the table and for the code, which becomes the end of its only segment.
fn places(
    header: &FileHeader64<Little>,
    segments: &[ProgramHeader64<Little>],
    vdso: &[u8],
    table_size: u64,
    code_size: u64,
) -> Option<(u64, u64)> {
    let end_of_file = end_of_file::<FileHeader64<Little>>(vdso)?;
    let free = vdso.get(end_of_file.try_into().ok()?..vdso.len().checked_sub(TAIL_BYTES)?)?;
    let loads = segments.iter().filter(|segment| segment.p_type(Little) == PT_LOAD);
    let start = end_of_file.next_multiple_of(4);
    let free_size = (free.len() as u64).checked_sub(start - end_of_file)?;
    if loads.count() != 1 || free.iter().any(|byte| *byte != 0) || code_size > free_size {
        return None;
    }
    if table_size + code_size <= free_size {
        return Some((start, start + table_size));
    }
    // The kernel reads this section only when it boots.
    let sections = header.sections(Little, vdso).ok()?;
    let (_, section) = sections.section_by_name(Little, b".altinstructions")?;
    let at = section.sh_offset(Little).checked_next_multiple_of(4)?;
    let end = section.sh_offset(Little).checked_add(section.sh_size(Little))?;
    (at.checked_add(table_size)? <= end.min(end_of_file)).then_some((at, start))
}
