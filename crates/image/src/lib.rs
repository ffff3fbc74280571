//! The synthetic vDSO as data, and a reader of any vDSO's ELF.
//!
//! [`Image`] is the vDSO that the build made from `vdso/`, [`Instance`] is a copy of it for one process, and [`Vdso`] says what any
//! vDSO exports, ours or a kernel's. The image expects the page (crate `fastpath-page`) in the 4096 bytes below it.

// The build shares this module and uses more of it.
#[allow(dead_code)]
mod elf;

// For the build and the tests; here for the note's name.
#[allow(dead_code)]
mod check;

mod instance;
mod own;
pub mod vdso;

/// What the build made.
mod built {
    include!(concat!(env!("OUT_DIR"), "/built.rs"));
}

pub use elf::ElfError;
pub use instance::{Instance, UnforwardedExport};
pub use own::{MappedVdso, own_vdso};
pub use vdso::Vdso;

/// Bytes in a page of memory, on every kernel for x86-64.
const PAGE_SIZE: usize = 4096;

/// The synthetic vDSO as the build made it. To run it in a process, take an [`Instance`].
pub struct Image;

impl Image {
    /// The ELF file. It is mapped as it is.
    pub fn bytes() -> &'static [u8] {
        built::BYTES
    }

    /// Bytes to map: whole pages.
    pub fn size() -> usize {
        built::BYTES.len().next_multiple_of(PAGE_SIZE)
    }
}

/// The version of the page that an image reads, if the bytes are a fastpath image, instantiated or not.
pub fn page_abi(bytes: &[u8]) -> Option<u32> {
    let notes = elf::Elf::parse(bytes).ok()?.notes();
    let note = notes
        .iter()
        .find(|note| note.name == check::NOTE_NAME.as_bytes() && note.kind == check::NOTE_KIND)?;
    note.description.try_into().ok().map(u32::from_le_bytes)
}

/// Whether a vDSO is one of ours and not a kernel's.
pub fn is_fastpath(bytes: &[u8]) -> bool {
    page_abi(bytes).is_some()
}
