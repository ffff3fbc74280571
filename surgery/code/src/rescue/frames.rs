//! Call frame information: where functions are, and where exceptions land (Linux Standard Base, Core, chapter 10.6;
//! the language-specific data is that of GCC's `.gcc_except_table`).

use std::ops::Range;

use gimli::{BaseAddresses, EhFrame, EndianSlice, LittleEndian, Pointer, Reader, UnwindSection};
use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{Endianness, Object, ObjectSection};

pub(super) type Elf64<'f> = ElfFile<'f, FileHeader64<Endianness>>;

/// What the call frames of a file tell about its code.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    pub functions: Vec<Range<u64>>,
    pub landing_pads: Vec<u64>,
}

type Bytes<'f> = EndianSlice<'f, LittleEndian>;

/// Reads `.eh_frame`. A broken entry ends the reading: what follows it is unknown.
pub(super) fn read(elf: &Elf64<'_>) -> Frames {
    let mut frames = Frames::default();
    let Some(section) = elf.section_by_name(".eh_frame") else {
        return frames;
    };
    let Ok(bytes) = section.data() else {
        return frames;
    };
    let mut table = EhFrame::new(bytes, LittleEndian);
    table.set_address_size(8);
    let address_of = |name| elf.section_by_name(name).map_or(0, |section| section.address());
    let bases = BaseAddresses::default()
        .set_eh_frame(section.address())
        .set_text(address_of(".text"))
        .set_got(address_of(".got"));
    let exceptions = elf.section_by_name(".gcc_except_table");
    let exceptions = exceptions.and_then(|section| Some((section.address(), section.data().ok()?)));
    let mut entries = table.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let Ok(frame) = partial.parse(EhFrame::cie_from_offset) else {
            break;
        };
        let start = frame.initial_address();
        frames.functions.push(start..start.saturating_add(frame.len()));
        if let (Some(Pointer::Direct(at)), Some((address, bytes))) = (frame.lsda(), exceptions) {
            let data = at.checked_sub(address).and_then(|at| bytes.get(at as usize..));
            let pads = data.and_then(|data| landing_pads(Bytes::new(data, LittleEndian), start));
            frames.landing_pads.extend(pads.unwrap_or_default());
        }
    }
    frames
}

/// DW_EH_PE_omit.
const OMITTED: u8 = 0xff;

/// Returns the landing pads in a function's language-specific data.
fn landing_pads(mut data: Bytes<'_>, function: u64) -> Option<Vec<u64>> {
    let base = match data.read_u8().ok()? {
        OMITTED => function,
        encoding => value(&mut data, encoding)?,
    };
    if data.read_u8().ok()? != OMITTED {
        data.read_uleb128().ok()?;
    }
    let encoding = data.read_u8().ok()?;
    let size = data.read_uleb128().ok()?;
    let mut table = data.split(usize::try_from(size).ok()?).ok()?;
    let mut pads = Vec::new();
    while !table.is_empty() {
        let [_, _, pad] = [(); 3].map(|()| value(&mut table, encoding));
        table.read_uleb128().ok()?;
        pads.extend(pad.filter(|pad| *pad != 0).map(|pad| base.wrapping_add(pad)));
    }
    Some(pads)
}

/// Reads a value of the encodings that compilers use there (DW_EH_PE_*, none of them relative).
fn value(data: &mut Bytes<'_>, encoding: u8) -> Option<u64> {
    match encoding {
        0x00 | 0x04 | 0x0c => data.read_u64().ok(),
        0x01 => data.read_uleb128().ok(),
        0x02 => data.read_u16().ok().map(u64::from),
        0x03 | 0x0b => data.read_u32().ok().map(u64::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn landing_pads_are_relative_to_the_function() {
        // No base, no types, ULEB128 call sites of 4 bytes each: the first without a pad.
        let data = [0xff, 0xff, 0x01, 8, 0, 4, 0, 0, 4, 4, 0x20, 1];
        assert_eq!(
            landing_pads(Bytes::new(&data, LittleEndian), 0x1000),
            Some(vec![0x1020])
        );
        // Truncated.
        assert_eq!(landing_pads(Bytes::new(&data[..9], LittleEndian), 0x1000), None);
    }
}
