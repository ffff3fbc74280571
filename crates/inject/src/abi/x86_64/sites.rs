//! Finds system call instructions of x86-64 code by their bytes, and builds their thunks.
//!
//! Few shapes cover the C libraries and Go. Each is long enough for a jump, and no code jumps into its middle:
//!
//! - `mov $NR, %eax; syscall`: a wrapper for one call, as every C library compiles it; glibc's have a form of their own
//!   ([`super::wrapper`]);
//! - the register shuffles of `syscall()`: glibc's ends in `mov 8(%rsp), %r9; syscall`, musl's as compilers make it in
//!   `mov 16(%rdx), %rsi; mov 24(%rdx), %rdx; syscall`;
//! - `syscall; cmp $-4095, %rax; jbe`: Go's assembly for all its calls.
//!
//! In a C library the jump replaces the code before the `syscall`, and the thunk returns to the `syscall`. So the call
//! is made from the address that the program expects, which matters where the program dispatches calls by their address
//! (prctl(2), PR_SET_SYSCALL_USER_DISPATCH: Wine). In Go, no code before the `syscall` can be displaced; the thunk
//! makes the call.

use memchr::memmem::Finder;

use super::wrapper::{self, Wrapper};
use crate::sites::{Change, Doors, Site, WATCHED};

pub const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `cmp $-4095, %rax`
const GO_CHECK: [u8; 6] = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];
/// `mov 16(%rdx), %rsi`
const MUSL_FIRST: [u8; 4] = [0x48, 0x8b, 0x72, 0x10];
/// `mov 24(%rdx), %rdx`
const MUSL_SECOND: [u8; 4] = [0x48, 0x8b, 0x52, 0x18];
/// `call *%r11`
pub const CALL_R11: [u8; 3] = [0x41, 0xff, 0xd3];
/// Size of a jump in bytes.
pub const JUMP_BYTES: usize = 5;
/// Reach of a jump, less the size of a thunk and a site: if a jump reaches a thunk, the thunk's jump reaches back.
const REACH: u64 = (1 << 31) - 4096;
/// Size of one thunk in bytes.
pub const THUNK_BYTES: usize = 64;
/// Code that is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `mov $NR, %eax`, before a `syscall`
    Constant(u32),
    /// `syscall` of a glibc function for one call
    Wrapper(Wrapper),
    /// `mov 8(%rsp), %r9`, before a `syscall`
    Glibc,
    /// `mov 16(%rdx), %rsi; mov 24(%rdx), %rdx`, before a `syscall`
    Musl,
    /// `syscall; cmp $-4095, %rax`
    Go,
}

impl Shape {
    /// Returns whether the site makes this call only.
    pub fn is_for(self, nr: u32) -> bool {
        match self {
            Shape::Constant(constant) => constant == nr,
            Shape::Wrapper(wrapper) => wrapper.nr == nr,
            _ => false,
        }
    }
}

/// Finds the sites in `code`, whose address in the file is `address`.
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
    let calls: Vec<usize> = Finder::new(&SYSCALL).find_iter(code).collect();
    let wrappers = wrapper::find(code, address, &calls);
    for at in calls {
        if let Some((_, wrapper)) = wrappers.iter().find(|(call, _)| *call == at) {
            sites.push(Site {
                address: address + at as u64,
                shape: Shape::Wrapper(*wrapper),
            });
            continue;
        }
        let constant = at.checked_sub(5).and_then(|start| match code[start..at] {
            [0xb8, a, b, c, d] => Some((start, u32::from_le_bytes([a, b, c, d]))),
            _ => None,
        });
        let site = match constant {
            Some((start, nr)) if WATCHED.contains(&nr) => (start, Shape::Constant(nr)),
            Some(_) => continue,
            None if code[..at + 2].ends_with(&GLIBC) => (at - 5, Shape::Glibc),
            None if code[..at + 2].ends_with(&MUSL) => (at - 8, Shape::Musl),
            None if code[at + 2..].starts_with(&GO_AFTER) => (at, Shape::Go),
            None => continue,
        };
        sites.push(Site {
            address: address + site.0 as u64,
            shape: site.1,
        });
    }
}

/// Returns the thunk at `at` for a site at `site` (relocated), of at most [`THUNK_BYTES`]. It accesses no memory but
/// the stack: the program may have unaligned accesses trapped (EFLAGS.AC).
pub fn thunk(shape: Shape, site: u64, at: u64, doors: Doors) -> Vec<u8> {
    if let Shape::Wrapper(wrapper) = shape {
        return wrapper.thunk(site, at, doors);
    }
    let mut code = Vec::new();
    if shape == Shape::Go {
        code.extend(call_door(doors.go));
        code.extend(original(shape));
    } else {
        code.extend(original(shape));
        code.extend([0x48, 0x8d, 0x64, 0x24, 0x80]); // lea -128(%rsp), %rsp
        code.extend(call_door(doors.c));
        code.extend([0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]); // lea 128(%rsp), %rsp
    }
    let call = site + original(shape).len() as u64;
    // The hook returns to the second jump if it has made the call. One of Go has only the first.
    let behind = (shape != Shape::Go).then_some(call + SYSCALL.len() as u64);
    for to in [call].into_iter().chain(behind) {
        // Where a jump reaches from the site to here, it also reaches back. A thunk that no jump points to traps.
        let back = jump_to(at + code.len() as u64, to);
        code.extend(back.unwrap_or([0xcc; JUMP_BYTES]));
    }
    debug_assert!(code.len() <= THUNK_BYTES);
    code
}

/// Returns `movabs $door, %r11; call *%r11`.
pub fn call_door(door: u64) -> Vec<u8> {
    [&[0x49, 0xbb][..], &door.to_le_bytes(), &CALL_R11].concat()
}

/// Returns where the system call returns to, as offsets in the thunk and from the start of its site; `None` if the call
/// is made at its original address.
pub fn behind_call(shape: Shape) -> Option<(u16, u16)> {
    /// `movabs`, `call *%r11`.
    const CALL_DOOR: usize = 13;
    (shape == Shape::Go).then_some(((CALL_DOOR + SYSCALL.len()) as u16, SYSCALL.len() as u16))
}

/// Returns the offsets, in the site and in the thunk, of an overwritten instruction besides the first, and of its copy.
pub fn copied(shape: Shape) -> Option<(u16, u16)> {
    let second = MUSL_FIRST.len() as u16;
    (shape == Shape::Musl).then_some((second, second))
}

/// Returns `jmp rel32` at `from` to `to`; `None` if it cannot reach.
pub fn jump_to(from: u64, to: u64) -> Option<[u8; JUMP_BYTES]> {
    let distance = to.wrapping_sub(from + JUMP_BYTES as u64) as i64;
    let [a, b, c, d] = (distance as i32).to_le_bytes();
    (distance.unsigned_abs() < REACH).then_some([0xe9, a, b, c, d])
}

/// Returns the changes that redirect a site at `from` to its thunk at `to`, in their order; `None` if a jump cannot
/// reach.
pub fn changes(shape: Shape, from: u64, to: u64) -> Option<Vec<Change>> {
    if let Shape::Wrapper(wrapper) = shape {
        return wrapper.changes(from, to);
    }
    let original = original(shape);
    let mut replacement = jump_to(from, to)?.to_vec();
    replacement.resize(original.len(), 0x90);
    Some(vec![Change {
        address: from,
        original,
        replacement,
    }])
}

/// Returns the bytes that must be in memory for a site to be redirected, each with its offset from the site.
pub fn expected(shape: Shape) -> Vec<(i64, Vec<u8>)> {
    match shape {
        Shape::Wrapper(wrapper) => wrapper.expected(),
        _ => vec![(0, original(shape))],
    }
}

/// Returns the bytes of a site that a jump displaces.
fn original(shape: Shape) -> Vec<u8> {
    match shape {
        Shape::Constant(nr) => [&[0xb8][..], &nr.to_le_bytes()].concat(),
        Shape::Glibc => vec![0x4c, 0x8b, 0x4c, 0x24, 0x08],
        Shape::Musl => [MUSL_FIRST, MUSL_SECOND].concat(),
        Shape::Go => [&SYSCALL[..], &GO_CHECK].concat(),
        Shape::Wrapper(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thunk_of_a_c_library_goes_back_to_its_system_call_and_one_of_go_makes_it() {
        for shape in [Shape::Constant(59), Shape::Glibc, Shape::Musl, Shape::Go] {
            let (site, at) = (0x7000_1000, 0x7000_8000);
            let code = thunk(shape, site, at, Doors { c: 1, go: 2 });
            let mut rest = &code[..];
            let call = site + original(shape).len() as u64;
            let behind = (shape != Shape::Go).then_some(call + SYSCALL.len() as u64);
            for expected in behind.into_iter().chain([call]) {
                let (before, jump) = rest.split_at(rest.len() - JUMP_BYTES);
                let back = i32::from_le_bytes(jump[1..].try_into().unwrap());
                let to = (at + rest.len() as u64).wrapping_add_signed(back.into());
                assert_eq!((jump[0], to), (0xe9, expected), "{shape:?}");
                rest = before;
            }
            assert_eq!(
                Finder::new(&SYSCALL).find(rest).is_some(),
                shape == Shape::Go,
                "{shape:?}"
            );
            if let Some((in_thunk, in_place)) = behind_call(shape) {
                assert_eq!(rest[usize::from(in_thunk) - 2..usize::from(in_thunk)], SYSCALL);
                assert_eq!(
                    original(shape)[usize::from(in_place) - 2..usize::from(in_place)],
                    SYSCALL
                );
            }
            if let Some((in_place, in_thunk)) = copied(shape) {
                assert_eq!(
                    original(shape)[in_place.into()..],
                    rest[in_thunk.into()..][..MUSL_SECOND.len()]
                );
            }
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
