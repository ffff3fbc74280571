//! x86-64: instructions of one to 15 bytes, of which a jump replaces several.

mod bits;
pub(crate) mod builder;
pub(crate) mod copy;
pub(crate) mod flow;
pub(crate) mod inside;
pub(crate) mod thunk;
pub(crate) mod window;

/// Size of addresses in bits, as decoders need it.
const BITS: u32 = 64;
