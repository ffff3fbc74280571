//! Finds system call instructions of x86-64 code by their bytes, and builds their thunks.
//!
//! Few shapes cover the C libraries and Go:
//!
//! - `mov $NR, %eax; syscall`: a wrapper for one call, as every C library compiles it; glibc's have a form of their own
//!   ([`super::wrapper`]);
//! - the register shuffles of `syscall()`: glibc's ends in `mov 8(%rsp), %r9; syscall`, musl's as compilers make it in
//!   `mov 16(%rdx), %rsi; mov 24(%rdx), %rdx; syscall`;
//! - `syscall; cmp $-4095, %rax; jbe`: Go's assembly for all its calls.
//!
//! One instruction before the `syscall` becomes a jump, behind its first byte (`surgery/code/src/rescue/x86/inside.rs`), and the
//! thunk returns to the `syscall`. So the call is made from the address that the program expects, which matters where the
//! program dispatches calls by their address (prctl(2), PR_SET_SYSCALL_USER_DISPATCH: Wine).

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register};

use fastpath_code::rescue::thunk::{Thunk, with_code};
use fastpath_code::rescue::window::Relay;
use fastpath_code::rescue::{Window, window_by_bytes};
use memchr::memmem::Finder;

use super::instructions::{SYSCALL, call_door, call_door_over_red_zone};
use super::wrapper::{self, Wrapper};
use crate::target::sites::{Doors, MOST_CALLS, OUT_OF_REACH, Site, WATCHED};

/// Size of one thunk in bytes.
pub const THUNK_BYTES: usize = 64;
/// i386 programs make their calls through AT_SYSINFO.
pub const FIND_IN_32_BITS: Option<crate::target::sites::Find> = None;
/// Code that is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// `syscall` of a glibc function for one call
    Wrapper(Wrapper),
    /// An instruction before a `syscall`
    Before {
        /// Number of the call; `None` if it is an argument.
        nr: Option<u32>,
        is_go: bool,
        window: Window,
        relay: Option<Relay>,
    },
    /// A `syscall` that cannot be redirected
    Fixed {
        /// As in [`Shape::Before`].
        nr: Option<u32>,
        why: String,
    },
}

impl Shape {
    /// Returns whether the site makes this call only.
    pub fn is_for(&self, nr: u32) -> bool {
        match self {
            Shape::Wrapper(wrapper) => wrapper.nr == nr,
            Shape::Before { nr: own, .. } | Shape::Fixed { nr: own, .. } => *own == Some(nr),
        }
    }

    /// Returns whether it is one of Go's.
    pub fn is_go(&self) -> bool {
        matches!(self, Shape::Before { is_go: true, .. })
    }

    /// Returns whether it cannot be redirected, wherever it is loaded.
    pub fn is_fixed(&self) -> bool {
        matches!(self, Shape::Fixed { .. })
    }
}

/// Finds the sites in `code`, whose address in the file is `address`. `ends`: addresses at which functions end, in order.
pub fn find(code: &[u8], address: u64, ends: &[u64], sites: &mut Vec<Site>) {
    /// mov rdi,rax; rsi,rdi; rdx,rsi; rcx,rdx; r8,r10; r9,r8; 8(rsp),r9; syscall
    const GLIBC: [u8; 25] = [
        0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca, 0x4d, 0x89, 0xc2, 0x4d, 0x89, 0xc8,
        0x4c, 0x8b, 0x4c, 0x24, 0x08, 0x0f, 0x05,
    ];
    /// mov 16(rdx),rsi; 24(rdx),rdx; syscall
    const MUSL: [u8; 10] = [0x48, 0x8b, 0x72, 0x10, 0x48, 0x8b, 0x52, 0x18, 0x0f, 0x05];
    /// cmp $0xfffffffffffff001, %rax; jbe
    const GO_AFTER: [u8; 7] = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x76];
    let calls: Vec<usize> = Finder::new(&SYSCALL).find_iter(code).take(MOST_CALLS + 1).collect();
    if calls.len() > MOST_CALLS {
        return;
    }
    let wrappers = wrapper::find(code, address, &calls);
    let mut taken: Vec<u64> = wrappers
        .iter()
        .map(|(call, wrapper)| wrapper.relay_at(address + *call as u64))
        .collect();
    for at in calls {
        if let Some((_, wrapper)) = wrappers.iter().find(|(call, _)| *call == at) {
            sites.push(Site {
                address: address + at as u64,
                shape: Shape::Wrapper(wrapper.clone()),
            });
            continue;
        }
        let constant = at.checked_sub(5).and_then(|start| match code[start..at] {
            [0xb8, a, b, c, d] => Some(u32::from_le_bytes([a, b, c, d])),
            _ => None,
        });
        let is_go = code[at + 2..].starts_with(&GO_AFTER);
        // fexecve of musl 1.2.5 loads the number first, and then saves registers. The thunk takes the number from the register.
        let is_for_any = code[..at + 2].ends_with(&GLIBC)
            || code[..at + 2].ends_with(&MUSL)
            || is_go
            || loads_execveat(&code[at.saturating_sub(FARTHEST_NUMBER)..at]);
        if !constant.map_or(is_for_any, |nr| WATCHED.contains(&nr)) {
            continue;
        }
        let site = match window_by_bytes(code, address, at, ends) {
            Ok(window) => before(window, constant, is_go, &mut taken),
            Err(reason) => Err(reason.to_string()),
        };
        sites.push(site.unwrap_or_else(|why| Site {
            address: address + at as u64,
            shape: Shape::Fixed { nr: constant, why },
        }));
    }
}

/// Most bytes from the load of a call's number to the `syscall`, other instructions between.
const FARTHEST_NUMBER: usize = 64;

/// Returns whether some `mov $NR, %eax` of execveat, with nothing behind it that changes rax or jumps, leads to the end of
/// this code.
fn loads_execveat(code: &[u8]) -> bool {
    const LOAD: [u8; 5] = [0xb8, libc::SYS_execveat as u8, (libc::SYS_execveat >> 8) as u8, 0, 0];
    Finder::new(&LOAD).find_iter(code).any(|at| {
        let mut info = InstructionInfoFactory::new();
        let mut decoder = Decoder::new(64, &code[at + 5..], DecoderOptions::NONE);
        let mut is_kept = |instruction: &Instruction| {
            let mut registers = info.info(instruction).used_registers().iter();
            !instruction.is_invalid()
                && instruction.flow_control() == FlowControl::Next
                && registers
                    .all(|used| used.register().full_register() != Register::RAX || used.access() == OpAccess::Read)
        };
        decoder.iter().all(|instruction| is_kept(&instruction))
    })
}

/// Returns the site of a window before a `syscall`, through a relay that is not `taken` if it needs one.
fn before(window: Window, nr: Option<u32>, is_go: bool, taken: &mut Vec<u64>) -> Result<Site, String> {
    let relay = match window.jump.relays() {
        None => None,
        Some(relays) => {
            let place = |relay: &Relay| relay.address(window.address);
            let is_near = |relay: &Relay, taken: &u64| taken.abs_diff(place(relay)) < Relay::BYTES as u64;
            let is_free = |relay: &&Relay| !taken.iter().any(|taken| is_near(relay, taken));
            let relay = relays.iter().find(is_free).copied();
            let relay = relay.ok_or("the paddings near it are used for other calls")?;
            taken.push(place(&relay));
            Some(relay)
        }
    };
    Ok(Site {
        address: window.address,
        shape: Shape::Before {
            nr,
            is_go,
            window,
            relay,
        },
    })
}

/// Returns the redirection of a site at `site` (relocated) through a thunk at `at`, of at most [`THUNK_BYTES`], or the
/// reason why there is none. The thunk accesses no memory but the stack: the program may have unaligned accesses trapped
/// (EFLAGS.AC).
pub fn redirect(shape: &Shape, site: u64, at: u64, doors: Doors) -> Result<Thunk, String> {
    let thunk = match shape {
        Shape::Fixed { why, .. } => return Err(why.clone()),
        Shape::Wrapper(wrapper) => wrapper.thunk(site, at, doors).ok_or(OUT_OF_REACH)?,
        Shape::Before {
            is_go, window, relay, ..
        } => {
            let ask = match is_go {
                true => call_door(doors.go),
                false => call_door_over_red_zone(doors.c),
            };
            with_code(window, site, at, &ask, relay.as_ref()).ok_or(OUT_OF_REACH)?
        }
    };
    match thunk.code.len() {
        ..=THUNK_BYTES => Ok(thunk),
        _ => Err("its code does not fit into a thunk".into()),
    }
}

/// Returns the bytes that must be in memory for a site to be redirected, each with its offset from the site.
pub fn expected(shape: &Shape) -> Vec<(i64, Vec<u8>)> {
    match shape {
        Shape::Wrapper(wrapper) => wrapper.expected(),
        Shape::Before { window, relay, .. } => {
            let relay = relay.map(|relay| (i64::from(relay.distance), relay.bytes.to_vec()));
            let code = (0, [&window.bytes[..], &SYSCALL].concat());
            [code].into_iter().chain(relay).collect()
        }
        Shape::Fixed { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::instructions::JUMP_BYTES;
    use super::*;

    const FUNCTION: [u8; 16] = [
        0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, RET,
    ];
    const RET: u8 = 0xc3;

    /// Returns the sites in a function with this code, which padding of this size follows.
    fn found(code: &[u8], padding: usize) -> Vec<Site> {
        let before: Vec<u8> = FUNCTION.iter().cycle().take(256).copied().collect();
        let mut all = [&before[..], code, &[RET]].concat();
        all.resize(all.len() + padding, 0xcc);
        let mut sites = Vec::new();
        find(&all, 0x1000, &[], &mut sites);
        sites
    }

    /// sub $8, %rsp
    const SUB: [u8; 4] = [0x48, 0x83, 0xec, 0x08];
    /// mov $59, %eax; syscall
    const EXECVE: [u8; 7] = [0xb8, 59, 0, 0, 0, 0x0f, 0x05];

    #[test]
    fn each_shape_is_found_and_lookalikes_are_not() {
        let shapes = |code: &[u8], padding| {
            let sites = found(code, padding).into_iter();
            let shape = |site: Site| match site.shape {
                Shape::Before { nr, is_go, .. } => (site.address, nr, is_go),
                Shape::Wrapper(_) | Shape::Fixed { .. } => (site.address, None, false),
            };
            sites.map(shape).collect::<Vec<_>>()
        };
        let execve = [&SUB[..], &EXECVE].concat();
        assert_eq!(shapes(&execve, 20), [(0x1100, Some(59), false)]);
        let exit = [&SUB[..], &[0xb8, 60, 0, 0, 0, 0x0f, 0x05]].concat();
        assert_eq!(shapes(&exit, 20), [], "not watched");
        let assembly = [
            &[0x48, 0x89, 0xdf][..],
            &SYSCALL,
            &[0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x76, 0x10],
        ]
        .concat();
        assert_eq!(shapes(&assembly, 34), [(0x1100, None, true)]);
        let glibc = [
            &[0x48, 0x89, 0xdf][..],
            &SYSCALL,
            &[0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x73, 0x10],
        ]
        .concat();
        assert_eq!(shapes(&glibc, 34), [], "glibc's check of some other call");
    }

    #[test]
    fn a_call_that_cannot_be_redirected_safely_is_found_with_the_reason() {
        let no_padding = found(&[&SUB[..], &EXECVE].concat(), 4);
        let no_instruction = found(&EXECVE, 25);
        for (sites, call) in [(no_padding, 0x1109), (no_instruction, 0x1105)] {
            let [site] = &sites[..] else {
                panic!("one site: {sites:?}");
            };
            assert!(site.address == call && site.shape.is_for(59), "{site:?}");
            let refused = redirect(&site.shape, 0x7000_1100, 0x7000_8000, Doors::default());
            assert!(refused.unwrap_err().contains("first byte"));
        }
    }

    #[test]
    fn a_thunk_asks_the_hook_and_goes_back_to_its_system_call() {
        let [site] = &found(&[&SUB[..], &EXECVE].concat(), 20)[..] else {
            panic!("one site");
        };
        let (from, at) = (0x7000_1100, 0x7000_8000);
        let redirect = redirect(&site.shape, from, at, Doors { c: 1, go: 2 }).unwrap();
        let mut rest = &redirect.code[..];
        // The last jump is for a call that the hook has made.
        for expected in [from + 11, from + 9] {
            let (before, jump) = rest.split_at(rest.len() - JUMP_BYTES);
            let back = i32::from_le_bytes(jump[1..].try_into().unwrap());
            let to = (at + rest.len() as u64).wrapping_add_signed(back.into());
            assert_eq!((jump[0], to), (0xe9, expected));
            rest = before;
        }
        assert!(rest.starts_with(&SUB) && Finder::new(&SYSCALL).find(rest).is_none());
        for change in redirect.changes {
            assert_eq!(change.original[0], change.replacement[0], "{change:x?}");
        }
    }

    #[test]
    fn a_number_that_is_loaded_before_registers_are_saved_is_seen() {
        // fexecve of musl 1.2.5: mov $322,%eax; push; mov; lea; sub; mov %fs:40,%r10; mov; mov
        const FEXECVE: [u8; 40] = [
            0xb8, 0x42, 0x01, 0x00, 0x00, 0x53, 0x48, 0x89, 0xf3, 0x48, 0x8d, 0x35, 0x38, 0xbe, 0x04, 0x00, 0x48, 0x83,
            0xec, 0x48, 0x64, 0x4c, 0x8b, 0x14, 0x25, 0x28, 0x00, 0x00, 0x00, 0x4c, 0x89, 0x54, 0x24, 0x38, 0x49, 0x89,
            0xd2, 0x48, 0x89, 0xda,
        ];
        let sites = |code: &[u8]| found(&[code, &SYSCALL].concat(), 20).len();
        assert_eq!(sites(&FEXECVE), 1);
        let mut another = FEXECVE;
        another[1] = 0x43;
        assert_eq!(sites(&another), 0, "another call");
        // mov %rbx, %rax
        assert_eq!(
            sites(&[&FEXECVE[..37], &[0x48, 0x89, 0xd8]].concat()),
            0,
            "another number"
        );
    }

    #[test]
    fn padding_that_a_branch_before_it_skips_is_a_relay_where_no_other_is() {
        // __syscall_ret and unshare of musl 1.2.5, static: ja over a nop of 7 bytes that ends at a multiple of 8.
        const FUNCTIONS: [u8; 96] = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x81, 0xff, 0x00, 0xf0, 0xff, 0xff, 0x77, 0x0b, 0x48, 0x89, 0xf8, 0xc3, 0x0f,
            0x1f, 0x80, 0x00, 0x00, 0x00, 0x00, 0x48, 0x83, 0xec, 0x18, 0x48, 0x89, 0x7c, 0x24, 0x08, 0xe8, 0x2a, 0x11,
            0x00, 0x00, 0x48, 0x8b, 0x7c, 0x24, 0x08, 0xf7, 0xdf, 0x89, 0x38, 0x48, 0xc7, 0xc0, 0xff, 0xff, 0xff, 0xff,
            0x48, 0x83, 0xc4, 0x18, 0xc3, 0x0f, 0x1f, 0x44, 0x00, 0x00, 0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 0x08,
            0x48, 0x63, 0xff, 0xb8, 0x10, 0x01, 0x00, 0x00, 0x0f, 0x05, 0x48, 0x89, 0xc7, 0xe8, 0xa6, 0xff, 0xff, 0xff,
            0x48, 0x83, 0xc4, 0x08, 0xc3, 0x90,
        ];
        const JA: usize = 11;
        let [site] = &found(&FUNCTIONS, 3)[..] else {
            panic!("one site");
        };
        let Shape::Before { relay: Some(relay), .. } = &site.shape else {
            panic!("{site:?}");
        };
        assert_eq!((site.address, relay.address(site.address)), (0x1148, 0x1111));
        let mut skips_nothing = FUNCTIONS;
        skips_nothing[JA + 1] = 0;
        let [site] = &found(&skips_nothing, 3)[..] else {
            panic!("one site");
        };
        assert!(site.shape.is_fixed(), "the nop may begin a function: {site:?}");
    }
}
