//! The page: the one contract between a publisher and the code that runs inside a user's process.
//!
//! [`layout`] is the memory as both sides see it (the C side is `vdso/page.h`; the build of the image asserts that every
//! offset agrees), [`Anchor`] is one anchor as a plain value with its arithmetic and limits, [`writer`] is the only code
//! that stores to a page, and [`reader`] is a model in Rust of what the image does in C, for tests and for `status`.

pub mod anchor;
pub mod layout;
pub mod reader;
pub mod writer;

pub use anchor::{Anchor, Base, ClockSet, Rate};
pub use layout::{PAGE_SIZE, Page};
pub use reader::{PageError, Reader, check};
pub use writer::{Change, Init, PublishError, Stats, Watch, Withdrawal, Writer, publish_all, publish_changes};

/// What the memfd of a page is called...
pub const MEMFD_NAME: &std::ffi::CStr = c"fastpath-page";
/// ... and what /proc/PID/maps calls it, with ` (deleted)` behind it.
pub const MAPPED_NAME: &str = "/memfd:fastpath-page";

/// Atomics and fences, exchanged for loom's when the protocol is model-checked.
pub(crate) mod sync {
    #[cfg(loom)]
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    #[cfg(not(loom))]
    pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
