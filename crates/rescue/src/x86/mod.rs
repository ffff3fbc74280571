//! x86-64: instructions of one to 15 bytes, of which a jump replaces several.

mod bits;
pub mod flow;
pub mod thunk;
pub mod window;
