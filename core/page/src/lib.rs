//! The page: the one contract between a publisher and the code that runs inside a user's process.
//!
//! [`layout`] is the memory as both sides see it (the C side is `core/image/vdso/page.h`; the build of the image asserts that
//! every offset agrees), [`Anchor`] is one anchor as a plain value with its arithmetic and limits, [`writer`] is the
//! only code that stores to a page, and [`reader`] is a model in Rust of the image's C code, for tests and for
//! `status`. [`answers`] are the further pages of a hosted guest, [`clock`] is the table of clocks, [`clocks`] their names as users type them.
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

pub mod anchor;
pub mod answers;
pub mod clock;
pub mod clocks;
mod grant;
pub mod layout;
pub mod reader;
mod reason;
pub mod writer;

pub use anchor::{Anchor, Base, Rate};
pub use clock::{Clock, ClockSet};
pub use clocks::{Clocks, NotServed, UnknownClock};
pub use grant::Grant;
pub use layout::{PAGE_SIZE, Page};
pub use reader::{PageError, Reader, ahead_ns, check};
pub use reason::Reason;
pub use writer::{Init, PageChange, PublishError, Stats, Watch, Withdrawal, Writer, publish_all, publish_changes};

/// Name of a page's memfd.
pub const MEMFD_NAME: &std::ffi::CStr = c"fastpath-page";
/// Name of a page in /proc/PID/maps, before ` (deleted)`.
pub const MAPPED_NAME: &str = "/memfd:fastpath-page";

/// Atomics and fences, replaced by loom's when the protocol is model-checked.
pub(crate) mod sync {
    #[cfg(loom)]
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    #[cfg(not(loom))]
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    /// Makes every earlier store visible to all CPUs before the counter is read after it.
    ///
    /// A fence of the memory model orders accesses to memory, which the counter is not: the rest depends on the ISA.
    pub(crate) fn fence_before_counter() {
        fence(Ordering::SeqCst);
        #[cfg(not(loom))]
        fastpath_isa::cpu::complete_stores();
    }
}
