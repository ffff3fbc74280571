//! What a process gets: one region of seven pages, each at a fixed distance from the others.
//!
//! | offset | bytes | what | access |
//! |---|---|---|---|
//! | 0 | 4096 | the page, a sealed memfd | read |
//! | 4096 | 8192 | the vDSO image | read, execute |
//! | 12288 | 4096 | the hook | read, execute |
//! | 16384 | 4096 | thunks | read, execute |
//! | 20480 | 4096 | the hook's state, private | read, write |
//! | 24576 | 4096 | the mailbox, a memfd | read, write |

/// Offsets in the region; `hook/hook.lds` says the same of the last four.
pub const PAGE: u64 = 0;
pub const IMAGE: u64 = 4096;
pub const IMAGE_ROOM: u64 = 8192;
pub const HOOK: u64 = IMAGE + IMAGE_ROOM;
pub const THUNKS: u64 = HOOK + 4096;
pub const STATE: u64 = THUNKS + 4096;
pub const MAILBOX: u64 = STATE + 4096;
/// Bytes of the whole.
pub const SIZE: u64 = MAILBOX + 4096;

/// Distance kept from the program and from the heap behind it when the region must lie near a static program.
pub const GUARD: u64 = 1 << 20;

/// The hook's code.
pub const HOOK_CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hook.bin"));

/// Offsets of the hook's doors.
pub mod door {
    include!(concat!(env!("OUT_DIR"), "/hook_symbols.rs"));
}
