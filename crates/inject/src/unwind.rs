//! Unwinding through the kernel's code of 32-bit programs.
//!
//! A 32-bit program waits in the kernel's `__kernel_vsyscall`, and its signal handlers return through the kernel's
//! code. An unwinder needs the kernel's call frame information there, and finds it by the vDSO that the program knows,
//! which is the synthetic one. So the region is mapped right below the kernel's vDSO, the image's PT_LOAD extends to
//! that one's end, and the image's table of call frames (`.eh_frame_hdr`, Linux Standard Base, Core, chapter 10.6)
//! lists the kernel's frames after its own.

use object::Endianness;
use object::elf::{FileHeader32, PT_GNU_EH_FRAME, PT_LOAD, ProgramHeader32};
use object::read::elf::{FileHeader, ProgramHeader};

/// Version 1; pointer to `.eh_frame` relative to itself, a count, a table relative to the header, each of 4 bytes
/// (DW_EH_PE_*).
const ENCODINGS: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
/// Encodings, pointer, count.
const HEADER_BYTES: usize = 12;
/// Fields of a 32-bit program header (elf(5)).
const P_OFFSET: usize = 4;
const P_VADDR: usize = 8;
const P_FILESZ: usize = 16;
const P_MEMSZ: usize = 20;
const PROGRAM_HEADER_BYTES: usize = 32;

/// A table as it lies in memory: for each frame, the addresses of its code and of its description.
struct Table {
    /// Address of `.eh_frame`.
    frames: u32,
    entries: Vec<(u32, u32)>,
}

/// Makes `image`, to be mapped at `at`, cover the kernel's vDSO too, whose bytes begin at `kernel_at` above it. Returns
/// `None` and changes nothing if one of them does not have the usual form.
pub fn join(image: &mut Vec<u8>, at: u64, kernel: &[u8], kernel_at: u64) -> Option<()> {
    let ours = table(image, at)?;
    let theirs = table(kernel, kernel_at)?;
    let header_at = image.len().next_multiple_of(4);
    let header = u32::try_from(at).ok()?.checked_add(header_at as u32)?;
    let entries = [ours.entries, theirs.entries].concat();

    let mut bytes = ENCODINGS.to_vec();
    bytes.extend(ours.frames.wrapping_sub(header + 4).to_le_bytes());
    bytes.extend((entries.len() as u32).to_le_bytes());
    for (code, frame) in &entries {
        bytes.extend(code.wrapping_sub(header).to_le_bytes());
        bytes.extend(frame.wrapping_sub(header).to_le_bytes());
    }
    let (load, _) = segment(image, PT_LOAD)?;
    let (frames, _) = segment(image, PT_GNU_EH_FRAME)?;
    let reach = u32::try_from(kernel_at + kernel.len() as u64 - at).ok()?;
    let mut put = |at: usize, value: u32| image[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(load + P_MEMSZ, reach);
    for (field, value) in [(P_OFFSET, header_at), (P_VADDR, header_at), (P_VADDR + 4, header_at)] {
        put(frames + field, value as u32);
    }
    put(frames + P_FILESZ, bytes.len() as u32);
    put(frames + P_MEMSZ, bytes.len() as u32);
    image.resize(header_at, 0);
    image.extend(bytes);
    Some(())
}

/// Returns the offset in the file of the program header of this type, and the header. Only for files that are linked to
/// address 0.
fn segment(file: &[u8], kind: u32) -> Option<(usize, ProgramHeader32<Endianness>)> {
    let header = FileHeader32::<Endianness>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let first = header.e_phoff(endian) as usize;
    let headers = header.program_headers(endian, file).ok()?;
    let index = headers.iter().position(|h| h.p_type(endian) == kind)?;
    let found = headers[index];
    let is_as_mapped = found.p_offset(endian) == found.p_vaddr(endian);
    is_as_mapped.then_some((first + index * PROGRAM_HEADER_BYTES, found))
}

fn table(file: &[u8], at: u64) -> Option<Table> {
    let base = u32::try_from(at).ok()?;
    segment(file, PT_LOAD)?;
    let (_, segment) = segment(file, PT_GNU_EH_FRAME)?;
    let offset = segment.p_vaddr(Endianness::Little) as usize;
    let bytes = file.get(offset..)?;
    let word = |i: usize| Some(u32::from_le_bytes(bytes.get(i..i + 4)?.try_into().ok()?));
    if bytes.get(..4)? != ENCODINGS {
        return None;
    }
    let header = base.wrapping_add(offset as u32);
    let count = word(8)? as usize;
    let entry = |i: usize| {
        let at = HEADER_BYTES + 8 * i;
        Some((header.wrapping_add(word(at)?), header.wrapping_add(word(at + 4)?)))
    };
    Some(Table {
        frames: (header + 4).wrapping_add(word(4)?),
        entries: (0..count.min(file.len())).map(entry).collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an ELF file with one PT_LOAD and a table of these entries (offsets from the file's start), at offset
    /// 0x100.
    fn file(entries: &[(u32, u32)]) -> Vec<u8> {
        let mut bytes = vec![0; 0x200];
        bytes[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
        let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        put(16, 3 | 3 << 16); // ET_DYN, EM_386
        put(20, 1);
        put(28, 52); // e_phoff
        put(40, 52 | 32 << 16); // e_ehsize, e_phentsize
        put(44, 2); // e_phnum
        for (at, kind, offset, size) in [(52, PT_LOAD, 0, 0x200), (84, PT_GNU_EH_FRAME, 0x100, 0x40)] {
            put(at, kind);
            put(at + P_OFFSET, offset);
            put(at + P_VADDR, offset);
            put(at + P_FILESZ, size);
            put(at + P_MEMSZ, size);
        }
        put(0x100, u32::from_le_bytes(ENCODINGS));
        put(0x104, 0x180 - 0x104);
        put(0x108, entries.len() as u32);
        for (i, (code, frame)) in entries.iter().enumerate() {
            put(0x10c + 8 * i, code.wrapping_sub(0x100));
            put(0x110 + 8 * i, frame.wrapping_sub(0x100));
        }
        bytes
    }

    #[test]
    fn the_joined_table_lists_the_kernels_frames_behind_ours() {
        let mut image = file(&[(0x20, 0x180), (0x30, 0x190)]);
        join(&mut image, 0xf000_0000, &file(&[(0x40, 0x1a0)]), 0xf001_0000).unwrap();
        let joined = table(&image, 0xf000_0000).unwrap();
        assert_eq!(joined.frames, 0xf000_0180);
        let wanted = [
            (0xf000_0020, 0xf000_0180),
            (0xf000_0030, 0xf000_0190),
            (0xf001_0040, 0xf001_01a0),
        ];
        assert_eq!(joined.entries, wanted);
        let (_, load) = segment(&image, PT_LOAD).unwrap();
        assert_eq!(load.p_memsz(Endianness::Little), 0x1_0200);
    }

    #[test]
    fn a_table_of_another_kind_changes_nothing() {
        let mut image = file(&[(0x20, 0x180)]);
        let before = image.clone();
        let mut other = file(&[]);
        other[0x101] = 0xff;
        assert_eq!(join(&mut image, 0xf000_0000, &other, 0xf001_0000), None);
        assert_eq!(image, before);
    }
}
