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
    vec![
        ("fp_slot", "state", offset_of!(Slot, state)),
        ("fp_slot", "kind", offset_of!(Slot, kind)),
        ("fp_slot", "tid", offset_of!(Slot, tid)),
        ("fp_slot", "flags", offset_of!(Slot, flags)),
        ("fp_slot", "path", offset_of!(Slot, path)),
        ("fp_slot", "dirfd", offset_of!(Slot, dirfd)),
        ("fp_mailbox", "doorbell", offset_of!(Mailbox, doorbell)),
        ("fp_mailbox", "attendant", offset_of!(Mailbox, attendant)),
        ("fp_mailbox", "late", offset_of!(Mailbox, late)),
        ("fp_mailbox", "unserved", offset_of!(Mailbox, unserved)),
        ("fp_mailbox", "slot", offset_of!(Mailbox, slot)),
        ("fp_hook_state", "entry", offset_of!(HookState, entry)),
        ("fp_hook_state", "entry_cell", offset_of!(HookState, entry_cell)),
        ("fp_hook_state", "silent", offset_of!(HookState, silent)),
        ("fp_hook_state", "stack_lock", offset_of!(HookState, stack_lock)),
        ("fp_hook_state", "ptracer", offset_of!(HookState, ptracer)),
        ("fp_hook_state", "real_calls", offset_of!(HookState, real_calls)),
        ("fp_hook_state", "unattended", offset_of!(HookState, unattended)),
        ("fp_hook_state", "no_cell", offset_of!(HookState, no_cell)),
    ]
}

/// Returns every struct and its size.
pub fn sizes() -> [(&'static str, usize); 3] {
    [
        ("fp_slot", size_of::<Slot>()),
        ("fp_mailbox", size_of::<Mailbox>()),
        ("fp_hook_state", size_of::<HookState>()),
    ]
}
