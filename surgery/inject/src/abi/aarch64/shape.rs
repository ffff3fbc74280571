//! Shapes of system calls in AArch64 and 32-bit Arm code.

/// Shape of a site: an `svc`, and where its number comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// The number is a constant.
    Constant(u32),
    /// The number is an argument: glibc's `syscall()`.
    Glibc,
    /// The same in musl.
    Musl,
    /// The shape of Go's assembly.
    Go,
    /// One in code for 32-bit Arm.
    Arm(ArmShape),
}

impl Shape {
    /// Returns whether the site makes this call only.
    pub fn is_for(&self, nr: u32) -> bool {
        match self {
            Shape::Constant(constant) => *constant == nr,
            _ => false,
        }
    }

    /// Returns whether it is one of Go's.
    pub fn is_go(&self) -> bool {
        *self == Shape::Go
    }

    /// Returns whether it cannot be redirected, wherever it is loaded.
    pub fn is_fixed(&self) -> bool {
        false
    }
}

/// What a jump replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArmShape {
    /// The `svc` of A32 code.
    A32,
    /// Four bytes of T32 code, before the `svc`.
    Before([u16; 2]),
    /// An instruction of two bytes of T32 code, and the `svc` after it.
    WithSvc(u16),
}
