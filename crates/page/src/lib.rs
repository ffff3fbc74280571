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
pub use writer::{Init, PublishError, Stats, Writer, publish_all};

/// Atomics and fences, exchanged for loom's when the protocol is model-checked.
pub(crate) mod sync {
    #[cfg(loom)]
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    #[cfg(not(loom))]
    pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
