//! Memory for an image and its pages.

use std::ptr::NonNull;

/// Maps so many bytes of zeros, to read and to write, until the process ends.
pub fn map(length: usize) -> NonNull<u8> {
    // SAFETY: a new mapping.
    let region = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(region, libc::MAP_FAILED);
    NonNull::new(region.cast()).expect("not at 0")
}
