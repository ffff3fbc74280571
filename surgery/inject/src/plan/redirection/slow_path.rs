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
use super::{Change, JournalRecord, Purpose, x86};
use crate::plan::region::TAIL_BYTES;

/// A planned slow path; empty if there is none.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlowPath {
    /// What is written first, and stays: the table, which says that it has the vDSO's functions only; and the image's code, with
    /// another copy of the displaced instructions of the kernel's clock_gettime.
    pub stays: Vec<JournalRecord>,
    /// What makes this a part of the vDSO.
    pub records: Vec<JournalRecord>,
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
        let header = FileHeader64::<Little>::parse(vdso).ok()?;
        let segments = header.program_headers(Little, vdso).ok()?;
        let (functions, part) = (source.slow_path, source.slow_path_code());
        let cie = source.at + functions.first()?.cie;
        if !functions.iter().all(|frames| frames.is_usual) {
            return None;
        }
        let mut table = Table::read(vdso)?;
        let of_vdso = table.entries.len();
        let size = Table::size(of_vdso + functions.len() + 1);
        let displaced = &body.thunk[..body.thunk.len() - x86::JUMP_BYTES];
        let code_size = part.end - part.start + body.thunk.len() as u64;
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
        let count = (of_vdso as u32).to_le_bytes();
        let both: Vec<u8> = bytes.splice(Table::COUNT_AT..Table::COUNT_AT + 4, count).collect();
        let code = code(body, source, base, base + code_at).ok()?;
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
            JournalRecord::new(change, Purpose::EntryBody)
        };
        let headers = headers(header, segments, (table_at, size), end)?;
        let changed = headers.map(|(at, bytes)| Some(record(at, room(at, bytes.len() as u64)?, bytes)));
        let [Some(segment), Some(described)] = changed else {
            return None;
        };
        let segment = JournalRecord {
            thunk: base + code_at,
            in_thunk: code_size as u16,
            purpose: Purpose::SlowPath,
            ..segment
        };
        thunks.resize((at - thunks_at) as usize, 0);
        thunks.extend(description);
        Some(SlowPath {
            stays: vec![record(table_at, table_room, bytes), record(code_at, code_room, code)],
            records: vec![
                segment,
                described,
                record(table_at + Table::COUNT_AT as u64, &count, both),
            ],
            body: in_body,
            descriptions,
        })
    }
}

/// Returns the code at `at`: the image's, and the displaced instructions of the kernel's clock_gettime.
fn code(body: &EntryBody, source: Source<'_>, base: u64, at: u64) -> Result<Vec<u8>, String> {
    let part = source.slow_path_code();
    let thunk_at = at + part.end - part.start;
    let displaced = &body.thunk[..body.thunk.len() - x86::JUMP_BYTES];
    let mut code = body.copied(&part, at, source, (thunk_at, None), at)?;
    code.extend(displaced);
    let displaced = displaced.len() as u64;
    code.extend(x86::jump(
        64,
        thunk_at + displaced,
        base + body.kernels.start + displaced,
    )?);
    Ok(code)
}

/// Returns what the program headers of a vDSO become, each at its offset, whose only segment ends at `end`, and whose table of call frames
/// is elsewhere. Tools outside read as much as the segment's size in the file says.
fn headers(
    header: &FileHeader64<Little>,
    segments: &[ProgramHeader64<Little>],
    (table_at, table_size): (u64, u64),
    end: u64,
) -> Option<[(u64, Vec<u8>); 2]> {
    const SIZE: u64 = size_of::<ProgramHeader64<Little>>() as u64;
    let index = |kind| segments.iter().position(|segment| segment.p_type(Little) == kind);
    let field = |index: usize, at: usize| header.e_phoff(Little) + index as u64 * SIZE + at as u64;
    let (load, frames) = (index(PT_LOAD)?, index(PT_GNU_EH_FRAME)?);
    let segment = &segments[load];
    let address = segment.p_vaddr(Little).wrapping_add(table_at);
    // p_filesz and p_memsz.
    let sizes = [end.wrapping_sub(segment.p_offset(Little)); 2].map(u64::to_le_bytes);
    // From p_offset on: p_vaddr, p_paddr, p_filesz and p_memsz follow.
    let described = [table_at, address, address, table_size, table_size].map(u64::to_le_bytes);
    Some([
        (
            field(load, offset_of!(ProgramHeader64<Little>, p_filesz)),
            sizes.concat(),
        ),
        (
            field(frames, offset_of!(ProgramHeader64<Little>, p_offset)),
            described.concat(),
        ),
    ])
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
