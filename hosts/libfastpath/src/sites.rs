//! The system call instructions of a guest's code, and what leads them to the image.

use std::ffi::{c_char, c_int, c_void};

use fastpath_code::rescue::thunk::to_entry;
use fastpath_code::rescue::{AllSites, analyse_all};

use crate::error::{Error, answer};
use crate::plain::{Sized32, give, size_of_32};

/// `FASTPATH_PATCH_SIZE`
pub const PATCH_SIZE: usize = 16;
/// `FASTPATH_THUNK_SIZE`
pub const THUNK_SIZE: usize = 128;

/// `struct fastpath_site`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CSite {
    /// Size of this struct.
    pub size: u32,
    /// 1: it can be led to the image.
    pub is_proven: u32,
    /// Address of the instruction as the file states it.
    pub address: u64,
    /// Number of the call, or -1.
    pub number: i32,
    /// 1: the number is an argument.
    pub is_argument: u32,
    /// Why it is not proven, terminated by 0.
    pub reason: [c_char; 96],
}

// SAFETY: `#[repr(C)]`, with its size first, and made of integers.
unsafe impl Sized32 for CSite {}

/// `struct fastpath_patch`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CPatch {
    /// Size of this struct.
    pub size: u32,
    /// Bytes of `original` and `replacement`.
    pub length: u32,
    /// Where they are in the guest.
    pub address: u64,
    /// What is there.
    pub original: [u8; PATCH_SIZE],
    /// What leads to the thunk.
    pub replacement: [u8; PATCH_SIZE],
    /// Bytes of `thunk`.
    pub thunk_length: u32,
    /// 0.
    pub reserved: u32,
    /// The code at the thunk's address.
    pub thunk: [u8; THUNK_SIZE],
}

// SAFETY: `#[repr(C)]`, with its size first, and made of integers.
unsafe impl Sized32 for CPatch {}

/// Analyses an ELF file.
///
/// # Safety
/// `elf` is NULL or valid for reads of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_sites_of(elf: *const c_void, size: usize) -> Option<Box<AllSites>> {
    if elf.is_null() || size > isize::MAX as usize {
        return None;
    }
    // SAFETY: the caller guarantees that the bytes can be read.
    let bytes = unsafe { std::slice::from_raw_parts(elf.cast::<u8>(), size) };
    Some(Box::new(analyse_all(bytes)))
}

/// Frees what [`fastpath_sites_of`] has returned.
///
/// # Safety
/// `sites` is NULL or came from there, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_sites_free(sites: Option<Box<AllSites>>) {
    drop(sites);
}

/// Returns the number of sites.
///
/// # Safety
/// `sites` is NULL or came from [`fastpath_sites_of`]. This holds for every function here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_sites_count(sites: Option<&AllSites>) -> usize {
    sites.map_or(0, |sites| sites.sites.len())
}

/// Returns the lowest address that the file states.
///
/// # Safety
/// See [`fastpath_sites_count`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_sites_lowest(sites: Option<&AllSites>) -> u64 {
    sites.map_or(0, |sites| sites.lowest)
}

/// Describes a site.
///
/// # Safety
/// See [`fastpath_sites_count`]; `site` is NULL or a struct that begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_site_at(sites: Option<&AllSites>, index: usize, site: *mut CSite) -> c_int {
    let Some(found) = sites.and_then(|sites| sites.sites.get(index)) else {
        return Error::INVALID.0;
    };
    let mut reason = [0; 96];
    if let Err(why) = &found.window {
        let text = why.to_string();
        for (to, from) in reason.iter_mut().zip(text.bytes().take(95)) {
            *to = from as c_char;
        }
    }
    let described = CSite {
        size: size_of_32::<CSite>(),
        is_proven: found.window.is_ok().into(),
        address: found.address,
        number: found.number.and_then(|number| i32::try_from(number).ok()).unwrap_or(-1),
        is_argument: found.is_argument.into(),
        reason,
    };
    // SAFETY: the caller guarantees what `give` requires.
    answer(unsafe { give(site, described) }.map(|()| 0))
}

/// Makes the patch of a site.
///
/// # Safety
/// See [`fastpath_sites_count`]; `patch` is NULL or a struct that begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_site_patch(
    sites: Option<&AllSites>,
    index: usize,
    bias: u64,
    thunk_address: u64,
    entry: u64,
    patch: *mut CPatch,
) -> c_int {
    let site = sites.and_then(|sites| sites.sites.get(index));
    let Some(window) = site.and_then(|site| site.window.as_ref().ok()) else {
        return Error::INVALID.0;
    };
    let Some(thunk) = to_entry(window, bias, thunk_address, entry).filter(|thunk| thunk.code.len() <= THUNK_SIZE)
    else {
        return Error::PLACEMENT.0;
    };
    let [change] = &thunk.changes[..] else {
        return Error::PLACEMENT.0;
    };
    let mut made = CPatch {
        size: size_of_32::<CPatch>(),
        length: change.replacement.len() as u32,
        address: change.address,
        original: [0; PATCH_SIZE],
        replacement: [0; PATCH_SIZE],
        thunk_length: thunk.code.len() as u32,
        reserved: 0,
        thunk: [0; THUNK_SIZE],
    };
    made.original[..change.original.len()].copy_from_slice(&change.original);
    made.replacement[..change.replacement.len()].copy_from_slice(&change.replacement);
    made.thunk[..thunk.code.len()].copy_from_slice(&thunk.code);
    // SAFETY: the caller guarantees what `give` requires.
    answer(unsafe { give(patch, made) }.map(|()| 0))
}
