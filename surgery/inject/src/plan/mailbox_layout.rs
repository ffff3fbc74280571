//! Layout of the mailbox in memory, shared with the build script, which asserts that `hook/mailbox.h` agrees.

use std::mem::{offset_of, size_of};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;

/// Slots of one mailbox: the number of threads of one process tree that can ask at once.
pub const SLOTS: usize = 126;

/// Number of reasons for which requests are counted (`enum fp_unserved`).
pub const UNSERVED_REASONS: usize = 5;

/// One request. See `hook/mailbox.h`.
#[repr(C)]
pub struct Slot {
    pub state: AtomicU32,
    pub kind: AtomicU32,
    pub tid: AtomicU32,
    pub flags: AtomicU32,
    pub path: AtomicU64,
    pub dirfd: AtomicU64,
}

/// Shared page of requests.
#[repr(C)]
pub struct Mailbox {
    pub doorbell: AtomicU32,
    pub attendant: AtomicU32,
    pub late: AtomicU32,
    pub unserved: [AtomicU32; UNSERVED_REASONS],
    pub reserved: [AtomicU32; 8],
    pub slot: [Slot; SLOTS],
}

/// Private page of the hook.
#[repr(C)]
#[derive(Default)]
pub struct HookState {
    pub entry: u64,
    pub entry_cell: u64,
    pub silent: u32,
    pub stack_lock: u32,
    pub ptracer: u32,
    pub real_calls: u32,
    pub unattended: u32,
    pub reserved: u32,
    pub no_cell: u64,
}

/// Returns every field: struct, name, offset.
pub fn fields() -> Vec<(&'static str, &'static str, usize)> {
    macro_rules! offsets {
        ($($name:literal $of:ty: $($field:ident)*;)*) => {
            vec![$($(($name, stringify!($field), offset_of!($of, $field)),)*)*]
        };
    }
    offsets! {
        "fp_slot" Slot: state kind tid flags path dirfd;
        "fp_mailbox" Mailbox: doorbell attendant late unserved slot;
        "fp_hook_state" HookState: entry entry_cell silent stack_lock ptracer real_calls unattended no_cell;
    }
}

/// Returns every struct and its size.
pub fn sizes() -> [(&'static str, usize); 3] {
    [
        ("fp_slot", size_of::<Slot>()),
        ("fp_mailbox", size_of::<Mailbox>()),
        ("fp_hook_state", size_of::<HookState>()),
    ]
}
