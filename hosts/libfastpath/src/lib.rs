//! The C interface of fastpath: `include/fastpath.h` documents each function, and `docs/libfastpath.md` is the guide.
//!
//! A thin layer over `fastpath-publish`: it checks pointers and sizes, and turns errors into numbers. One file for each
//! part of the header. Nothing here panics; if something did, `extern "C"` would end the process and not unwind into
//! the host's frames.
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

mod answers;
mod error;
mod image;
mod page;
mod plain;
mod publisher;
mod sites;
mod verdict;

pub use answers::*;
pub use error::*;
pub use image::*;
pub use page::*;
pub use publisher::*;
pub use sites::*;
pub use verdict::*;

/// `FASTPATH_VERSION` of the header that belongs to this library.
pub const VERSION: u32 = 1 << 8;

/// Returns the library's own version.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_version() -> u32 {
    VERSION
}
