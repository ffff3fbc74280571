//! System call instructions of x86-64 code by their bytes, and what leads them through a thunk.
//!
//! Few shapes cover the C libraries and Go. Each is long enough that a jump fits in its place, and nothing jumps into its
//! middle:
//!
//! - `mov $NR, %eax; syscall`: a wrapper for one call, as every C library compiles it;
//! - the register shuffles of `syscall()`: glibc's ends in `mov 8(%rsp), %r9; syscall`, musl's as compilers make it in
//!   `mov 24(%rdx), %rdx; syscall`;
//! - `syscall; cmp $-4095, %rax; jbe`: Go's assembly for all its calls.

use memchr::memmem::Finder;

use crate::sites::{Doors, Site, WATCHED};

const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `cmp $-4095, %rax`
const GO_CHECK: [u8; 6] = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];
/// What a jump is made of.
const JUMP_BYTES: usize = 5;
/// Bytes of one thunk.
pub const THUNK_BYTES: usize = 64;
/// What is replaced, and what the thunk does in its stead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `mov $NR, %eax; syscall`
    Constant(u32),
    /// `mov 8(%rsp), %r9; syscall`
    Glibc,
    /// `mov 24(%rdx), %rdx; syscall`
    Musl,
    /// `syscall; cmp $-4095, %rax`
    Go,
}

impl Shape {
    /// Bytes of the code that is replaced.
    pub fn bytes(self) -> usize {
        original(self).len()
    }
}

/// Finds the sites in `code`, which the file wants at `address`.
pub fn find(code: &[u8], address: u64, sites: &mut Vec<Site>) {
    /// mov rdi,rax; rsi,rdi; rdx,rsi; rcx,rdx; r8,r10; r9,r8; 8(rsp),r9; syscall
    const GLIBC: [u8; 25] = [
        0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca, 0x4d, 0x89, 0xc2, 0x4d, 0x89, 0xc8,
        0x4c, 0x8b, 0x4c, 0x24, 0x08, 0x0f, 0x05,
    ];
    /// mov 16(rdx),rsi; 24(rdx),rdx; syscall
    const MUSL: [u8; 10] = [0x48, 0x8b, 0x72, 0x10, 0x48, 0x8b, 0x52, 0x18, 0x0f, 0x05];
    /// cmp $0xfffffffffffff001, %rax; jbe
    const GO_AFTER: [u8; 7] = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x76];
    for at in Finder::new(&SYSCALL).find_iter(code) {
        let constant = at.checked_sub(5).and_then(|start| match code[start..at] {
            [0xb8, a, b, c, d] => Some((start, u32::from_le_bytes([a, b, c, d]))),
            _ => None,
        });
        let site = match constant {
            Some((start, nr)) if WATCHED.contains(&nr) => (start, Shape::Constant(nr)),
            Some(_) => continue,
            None if code[..at + 2].ends_with(&GLIBC) => (at - 5, Shape::Glibc),
            None if code[..at + 2].ends_with(&MUSL) => (at - 4, Shape::Musl),
            None if code[at + 2..].starts_with(&GO_AFTER) => (at, Shape::Go),
            None => continue,
        };
        sites.push(Site {
            address: address + site.0 as u64,
            shape: site.1,
        });
    }
}

/// The instructions that a jump displaces before the `syscall`.
fn displaced(shape: Shape) -> Vec<u8> {
    match shape {
        Shape::Constant(nr) => [&[0xb8][..], &nr.to_le_bytes()].concat(),
        Shape::Glibc => vec![0x4c, 0x8b, 0x4c, 0x24, 0x08],
        Shape::Musl => vec![0x48, 0x8b, 0x52, 0x18],
        Shape::Go => vec![],
    }
}

/// The thunk for a site at `site` (relocated). At most [`THUNK_BYTES`]. It works wherever it is put.
pub fn thunk(shape: Shape, site: u64, _at: u64, doors: Doors) -> Vec<u8> {
    let call = |door: u64| [&[0x49, 0xbb][..], &door.to_le_bytes(), &[0x41, 0xff, 0xd3]].concat(); // movabs, call *%r11
    let mut code = displaced(shape);
    if shape == Shape::Go {
        code.extend(call(doors.go));
        code.extend(SYSCALL);
        code.extend(GO_CHECK);
    } else {
        code.extend([0x48, 0x8d, 0x64, 0x24, 0x80]); // lea -128(%rsp), %rsp
        code.extend(call(doors.c));
        code.extend([0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]); // lea 128(%rsp), %rsp
        code.extend(SYSCALL);
    }
    code.extend([0xff, 0x25, 0, 0, 0, 0]); // jmp *0(%rip)
    code.extend((site + shape.bytes() as u64).to_le_bytes());
    debug_assert!(code.len() <= THUNK_BYTES);
    code
}

/// How far behind a thunk's first byte, and behind the first of the site that it is for, the system call returns to.
pub fn behind_call(shape: Shape) -> (u16, u16) {
    /// `movabs`, `call *%r11`.
    const CALL_DOOR: usize = 13;
    /// Down and up over the red zone.
    const STEPS: usize = 5 + 8;
    match shape {
        Shape::Go => ((CALL_DOOR + SYSCALL.len()) as u16, SYSCALL.len() as u16),
        _ => {
            let length = displaced(shape).len() + SYSCALL.len();
            ((length + CALL_DOOR + STEPS) as u16, length as u16)
        }
    }
}

/// A jump at `from` to `to`, as long as what it replaces. None: it cannot reach.
pub fn jump(shape: Shape, from: u64, to: u64) -> Option<Vec<u8>> {
    let distance = i32::try_from(to.wrapping_sub(from + JUMP_BYTES as u64) as i64).ok()?;
    let mut jump = vec![0xe9];
    jump.extend(distance.to_le_bytes());
    jump.resize(shape.bytes(), 0x90);
    Some(jump)
}

/// The bytes of a site.
pub fn original(shape: Shape) -> Vec<u8> {
    let mut code = displaced(shape);
    code.extend(SYSCALL);
    if shape == Shape::Go {
        code.extend(GO_CHECK);
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thunk_makes_its_system_call_where_it_is_said_to() {
        for shape in [Shape::Constant(59), Shape::Glibc, Shape::Musl, Shape::Go] {
            let (in_thunk, in_place) = behind_call(shape);
            let thunk = thunk(shape, 0x1000, 0x2000, Doors { c: 1, go: 2 });
            assert_eq!(
                thunk[usize::from(in_thunk) - 2..usize::from(in_thunk)],
                SYSCALL,
                "{shape:?}"
            );
            assert_eq!(
                original(shape)[usize::from(in_place) - 2..usize::from(in_place)],
                SYSCALL,
                "{shape:?}"
            );
        }
    }

    #[test]
    fn each_shape_is_found_and_lookalikes_are_not() {
        let mut code = vec![0x90; 16];
        code.extend([0xb8, 59, 0, 0, 0, 0x0f, 0x05]); // execve: at 16
        code.extend([0xb8, 60, 0, 0, 0, 0x0f, 0x05]); // exit: not watched
        code.extend([0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x76, 0x10]); // Go: at 30
        code.extend([0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x73, 0x10]); // glibc's check of some other call
        code.extend([0x0f, 0x05]);
        let mut sites = Vec::new();
        find(&code, 0x1000, &mut sites);
        assert_eq!(
            sites,
            [
                Site {
                    address: 0x1010,
                    shape: Shape::Constant(59)
                },
                Site {
                    address: 0x101e,
                    shape: Shape::Go
                },
            ]
        );
    }
}
