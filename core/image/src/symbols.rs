//! The dynamic symbols of an image that a process does not get. The instructions that differ from one process to
//! another are in `fastpath-isa`.

use fastpath_isa::Isa;

/// Symbol type of data.
const STT_OBJECT: u8 = 1;

/// Makes the dynamic symbol whose entry is at `entry` undefined, and no function. Every loader then skips it, as if
/// this kernel did not have the function (rustix only checks the type); the hash tables stay unchanged.
pub(crate) fn hide(isa: Isa, bytes: &mut [u8], entry: usize) {
    // Both classes have section index, value and size, in a different order and with two different widths.
    let fields = if isa.is_64() { [6..8, 8..24] } else { [4..12, 14..16] };
    for field in fields {
        bytes[entry + field.start..entry + field.end].fill(0);
    }
    let info = entry + if isa.is_64() { 4 } else { 12 };
    bytes[info] = bytes[info] & 0xf0 | STT_OBJECT;
}
