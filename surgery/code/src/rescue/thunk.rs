//! The code to which the jump at a site goes.
//!
//! A system call changes few registers, and a thunk changes no others: it compares the number without the flags, and
//! jumps to a *routine* (`surgery/inject/hook/ISA/rescue.S`) with the address of its own end. The routine answers or makes the system
//! call, leaves the registers as the system call does, and jumps to that address.
//!
//! For the guests of a host, [`to_entry`] makes thunks that compare nothing: all calls go to one entry point,
//! `__fastpath_syscall` of the image for hosts (`core/image/vdso/hosts/ISA/entry.S`). It comes back to the end too if it has answered,
//! and else to a system call instruction at a known distance before it.

use fastpath_isa::Isa;

use crate::TimeCall;
use crate::rescue::change::ThunkPlace;
pub use crate::rescue::change::{Change, Routine, Thunk};
use crate::rescue::window::{Jump, Relay, Window};
use crate::rescue::{Calls, aarch64, x86};

/// Returns the thunk at `at` for a window that is loaded with `bias`; `None` if there is no routine for its calls, or
/// one is out of reach of the other. The first of `routines` are compared if there is no room for all. Other calls continue at `otherwise`, with the registers that they had at the
/// window, or are made as without the thunk. Only for a number that the window does not set. `relay`: one of the window's,
/// if its jump needs one.
pub fn thunk(
    window: &Window,
    calls: Calls,
    bias: u64,
    at: u64,
    routines: &[Routine],
    otherwise: Option<u64>,
    relay: Option<&Relay>,
) -> Option<Thunk> {
    let answers = |routine: &&Routine| match calls {
        Calls::One(call) => routine.name == call.name(),
        // The image makes the system call: that is faster only than the vsyscall page.
        Calls::Any => routine.name != TimeCall::Time.name(),
    };
    let wanted: Vec<Routine> = routines.iter().filter(answers).copied().collect();
    // A window before the call may set the number. One at the call tells by the number whether it is made.
    if calls == Calls::Any && matches!(window.jump, Jump::AtCall(_)) {
        return None;
    }
    if wanted.is_empty() || (otherwise.is_some() && calls != Calls::Any) {
        return None;
    }
    let place = ThunkPlace {
        window,
        address: bias.wrapping_add(window.address),
        at,
        relay,
    };
    let thunk = |wanted: &[Routine]| match window.isa {
        Isa::Aarch64 => aarch64::thunk(place, wanted, otherwise),
        _ => x86::thunk::thunk(place, wanted, otherwise),
    };
    // The jumps of x86 that keep the flags reach 127 bytes: long copied instructions leave room for fewer routines.
    (1..=wanted.len()).rev().find_map(|count| thunk(&wanted[..count]))
}

/// Returns the thunk at `at` for a window that is loaded with `bias`, which leads every call to `entry`. `None` if the
/// window loads an address of the vsyscall page, or the thunk is out of
/// a jump's reach of it. The entry may be anywhere.
pub fn to_entry(window: &Window, bias: u64, at: u64, entry: u64) -> Option<Thunk> {
    let place = ThunkPlace {
        window,
        address: bias.wrapping_add(window.address),
        at,
        relay: None,
    };
    match window.isa {
        Isa::Aarch64 => aarch64::to_entry(place, entry),
        _ => x86::thunk::to_entry(place, entry),
    }
}

/// Returns the thunk at `at` for a window before a `syscall` of x86-64, which executes `code` before each call. Behind
/// `code` is a jump to the call, and then one behind it. `None` if one is out of a jump's reach of the other.
pub fn with_code(window: &Window, address: u64, at: u64, code: &[u8], relay: Option<&Relay>) -> Option<Thunk> {
    let place = ThunkPlace {
        window,
        address,
        at,
        relay,
    };
    x86::thunk::with_code(place, code)
}

/// Returns the changes by which a window of x86-64 goes to the thunk at `at`, in an order in which threads may execute the
/// code between any two. `None` if it is out of a jump's reach.
pub fn changes(window: &Window, address: u64, at: u64, relay: Option<&Relay>) -> Option<Vec<Change>> {
    x86::builder::changes(ThunkPlace {
        window,
        address,
        at,
        relay,
    })
}
