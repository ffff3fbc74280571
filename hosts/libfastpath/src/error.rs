//! Errors as numbers.

use std::ffi::{CStr, c_char, c_int};

/// A negative `FASTPATH_E*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Error(pub c_int);

impl Error {
    /// `FASTPATH_EINVAL`
    pub const INVALID: Error = Error(-1);
    /// `FASTPATH_ESIZE`
    pub const SIZE: Error = Error(-2);
    /// `FASTPATH_ENOSPACE`
    pub const NO_SPACE: Error = Error(-3);
    /// `FASTPATH_EPLACEMENT`
    pub const PLACEMENT: Error = Error(-4);
    /// `FASTPATH_EBUSY`
    pub const BUSY: Error = Error(-5);
    /// `FASTPATH_ESAMPLE`
    pub const SAMPLE: Error = Error(-6);
    /// `FASTPATH_EPAGE`
    pub const PAGE: Error = Error(-7);
    /// `FASTPATH_ECOUNTER`
    pub const COUNTER: Error = Error(-8);
    /// `FASTPATH_ESTORE`
    pub const STORE: Error = Error(-9);
}

/// Returns a call's result for C: a number that is not negative, or an error.
pub(crate) fn answer(result: Result<c_int, Error>) -> c_int {
    result.unwrap_or_else(|error| error.0)
}

/// Returns the description of an error.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_strerror(error: c_int) -> *const c_char {
    let text: &'static CStr = match Error(error) {
        Error::INVALID => c"an argument is not one that this call takes: NULL, misaligned, an unknown flag, or no publisher",
        Error::SIZE => c"a struct's size is not one that this libfastpath knows: set it to sizeof, and use the header of this version",
        Error::NO_SPACE => c"the buffer is too small for the image: it takes fastpath_image_size() bytes",
        Error::PLACEMENT => {
            c"image and page cannot lie there: addresses and offset are multiples of 4096, apart from each other, and within what the guest's instructions reach"
        }
        Error::BUSY => c"another call is publishing on this publisher; there is nothing left to do here",
        Error::SAMPLE => c"CLOCK_MONOTONIC or CLOCK_REALTIME cannot be read, or is not in the sample, or the sample is impossible",
        Error::PAGE => c"not a page that fastpath_page_init of this version made",
        Error::COUNTER => c"the guest's counter cannot relate to the host's like that: at most 63 bits of fraction, and a multiplier if there are any",
        Error::STORE => c"the host's function that stores a word in its guest has failed",
        _ if error >= 0 => c"no error",
        _ => c"an error that this libfastpath does not know",
    };
    text.as_ptr()
}
