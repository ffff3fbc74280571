//! The synthetic vDSO as data, and a reader of any vDSO's ELF.
//!
//! [`Image`] is the vDSO of one [`Isa`] that the build made from `vdso/`, [`Instance`] is a copy of it for one process,
//! and [`Vdso`] contains the exports of any vDSO, ours or a kernel's. The image reads the page (crate `fastpath-page`),
//! whose address follows from its [`Placement`].
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

pub mod elf;
mod image;
mod instance;
mod kernel;
mod own;
mod runtimes;
mod symbols;
pub mod vdso;

/// The images that the build made.
mod built {
    use crate::image::{Function, Image};
    use fastpath_isa::Isa;

    include!(concat!(env!("OUT_DIR"), "/built.rs"));
}

pub use elf::ElfError;
pub use fastpath_isa::{CpuFeatures, Isa};
pub use image::{Function, Image};
pub use instance::{Instance, InstanceConfig, InstanceError, Placement};
pub use kernel::KernelFunctions;
pub use own::{MappedVdso, own_vdso};
pub use runtimes::{go_version, musl_version};
pub use vdso::Vdso;

/// Returns the version of the page that an image reads, if the bytes are a fastpath image, instantiated or not.
pub fn page_abi(bytes: &[u8]) -> Option<u32> {
    let elf = elf::Elf::parse(bytes).ok()?;
    let note = elf
        .notes
        .iter()
        .find(|note| note.name == elf::check::NOTE_NAME.as_bytes() && note.kind == elf::check::NOTE_KIND)?;
    note.description.try_into().ok().map(u32::from_le_bytes)
}

/// Returns whether a vDSO is one of ours and not a kernel's.
pub fn is_fastpath(bytes: &[u8]) -> bool {
    page_abi(bytes).is_some()
}
