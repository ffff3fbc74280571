//! x86-64 and i386: instructions of one to 15 bytes, of which a jump replaces several.

mod bits;
pub(crate) mod builder;
pub(crate) mod copy;
pub(crate) mod flow;
pub(crate) mod inside;
pub(crate) mod thunk;
pub(crate) mod thunk32;
pub(crate) mod window;

use fastpath_isa::Isa;

/// Returns the size of addresses, as decoders need it.
fn bits_of(isa: Isa) -> u32 {
    if isa.is_64() { 64 } else { 32 }
}
