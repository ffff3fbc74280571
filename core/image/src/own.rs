//! The vDSO of this process.

use crate::elf::{Elf, ElfError, PT_LOAD};
use crate::vdso::Vdso;

/// Linux's smallest page size: so much of a mapping can be read before its size is known.
const MIN_PAGE_SIZE: usize = 4096;
/// More than the size of any kernel's vDSO: larger sizes in a header are not believed.
const MAX_SIZE: u64 = 1 << 20;

/// A vDSO that is mapped in a process.
#[derive(Clone, Debug)]
pub struct MappedVdso {
    /// The address of its first byte.
    pub base: u64,
    /// Its mapping: whole pages, as the kernel maps them. Behind the file is room for changes.
    pub bytes: Vec<u8>,
    /// Its exports.
    pub vdso: Vdso,
}

/// Returns the vDSO that this process was started with, the kernel's or ours; `None` if it was started without one.
pub fn own_vdso() -> Result<Option<MappedVdso>, ElfError> {
    // A long has 32 bits on some ISAs.
    #[allow(clippy::useless_conversion)]
    // SAFETY: getauxval only reads the auxiliary vector.
    let base: u64 = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) }.into();
    if base == 0 {
        return Ok(None);
    }
    // SAFETY: as above.
    #[allow(clippy::useless_conversion)]
    let page_size: u64 = unsafe { libc::getauxval(libc::AT_PAGESZ) }.into();
    // SAFETY: AT_SYSINFO_EHDR is the start of a mapping, which is at least a page long and stays until the process
    // ends.
    let first_page = unsafe { std::slice::from_raw_parts(base as *const u8, MIN_PAGE_SIZE) };
    let size = Elf::parse(first_page)?
        .segments_of(PT_LOAD)
        .map(|load| load.offset.saturating_add(load.file_size))
        .max()
        .unwrap_or(0)
        .min(MAX_SIZE)
        .next_multiple_of(page_size.max(MIN_PAGE_SIZE as u64));
    // SAFETY: the kernel maps whole pages of what its vDSO's program headers say, and so does fastpath where it replaced
    // the vDSO.
    let bytes = unsafe { std::slice::from_raw_parts(base as *const u8, size as usize) }.to_vec();
    let vdso = Vdso::parse(&bytes)?;
    Ok(Some(MappedVdso {
        base: (base as *const u8).addr() as u64,
        bytes,
        vdso,
    }))
}
