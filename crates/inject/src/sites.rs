//! The `syscall` instructions that must not go unnoticed (see `hook/hook.c`), found in a program's code by their bytes.
//!
//! Few shapes cover the C libraries and Go. Each is long enough that a jump fits in its place, and nothing jumps into its
//! middle:
//!
//! - `mov $NR, %eax; syscall`: a wrapper for one call, as every C library compiles it;
//! - the register shuffles of `syscall()`: glibc's ends in `mov 8(%rsp), %r9; syscall`, musl's as compilers make it in
//!   `mov 24(%rdx), %rdx; syscall`;
//! - `syscall; cmp $-4095, %rax; jbe`: Go's assembly for all its calls.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use memchr::memmem::Finder;
use object::elf::{PF_X, PT_LOAD, PT_NOTE};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSection};

/// Numbers of the calls that the hook looks at; arch/x86/entry/syscalls/syscall_64.tbl.
const WATCHED: [u32; 6] = [
    libc::SYS_execve as u32,
    libc::SYS_prctl as u32,
    libc::SYS_unshare as u32,
    libc::SYS_setns as u32,
    libc::SYS_seccomp as u32,
    libc::SYS_execveat as u32,
];
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `cmp $-4095, %rax`
const GO_CHECK: [u8; 6] = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];
/// What a jump is made of.
const JUMP_BYTES: usize = 5;
/// Bytes of one thunk.
const THUNK_BYTES: usize = 64;
/// Thunks on one page: more sites than any library has.
pub const MOST_SITES: usize = 4096 / THUNK_BYTES;
/// Files above this size are not searched for Go's or a static library's calls: reading them costs more than it gives.
const MOST_FILE_BYTES: u64 = 512 << 20;

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
    fn bytes(self) -> usize {
        original(self).len()
    }
}

/// One place in a file's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Virtual address as the file states it (before relocation).
    pub address: u64,
    /// Its shape.
    pub shape: Shape,
}

/// What a file says of itself.
#[derive(Debug, Default)]
pub struct Scan {
    /// Sites, lowest first.
    pub sites: Vec<Site>,
    /// The interpreter that it names.
    pub interpreter: Option<String>,
    /// Lowest address that is loaded.
    pub lowest: u64,
}

impl Scan {
    /// Whether its calls are in libraries, or some of them.
    pub fn is_dynamic(&self) -> bool {
        self.interpreter.is_some()
    }

    /// Whether its C library is musl, which is one file with its interpreter.
    pub fn is_musl(&self) -> bool {
        self.interpreter.as_ref().is_some_and(|path| path.contains("ld-musl-"))
    }
}

/// What a file is to the process that maps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The program itself. If it names an interpreter it gets its calls from a library, unless it is Go's.
    Program,
    /// An interpreter or a library.
    Library,
}

/// Finds the sites in an ELF file's code. A file that cannot be read as one has none.
pub fn scan(file: &[u8], role: Role) -> Scan {
    let Ok(elf) = ElfFile64::<Endianness>::parse(file) else {
        return Scan::default();
    };
    let endian = elf.endian();
    let headers = elf.elf_program_headers();
    let interpreter = headers.iter().find_map(|h| h.interpreter(endian, file).ok().flatten());
    let interpreter = interpreter.map(|path| String::from_utf8_lossy(path).into_owned());
    let lowest = headers
        .iter()
        .filter(|h| h.p_type(endian) == PT_LOAD)
        .map(|h| h.p_vaddr(endian))
        .min()
        .unwrap_or(0);
    let mut sites = Vec::new();
    if role == Role::Library || interpreter.is_none() || is_go(&elf) {
        for header in headers
            .iter()
            .filter(|h| h.p_type(endian) == PT_LOAD && h.p_flags(endian) & PF_X != 0)
        {
            if let Ok(code) = header.data(endian, file) {
                find(code, header.p_vaddr(endian), &mut sites);
            }
        }
    }
    sites.sort_unstable_by_key(|s| s.address);
    sites.truncate(MOST_SITES);
    Scan {
        sites,
        interpreter,
        lowest: lowest & !4095,
    }
}

fn is_go(elf: &ElfFile64<'_, Endianness>) -> bool {
    let endian = elf.endian();
    elf.section_by_name(".go.buildinfo").is_some_and(|s| s.size() > 0)
        || elf
            .elf_program_headers()
            .iter()
            .filter(|h| h.p_type(endian) == PT_NOTE)
            .any(|h| {
                h.notes(endian, elf.data())
                    .ok()
                    .flatten()
                    .and_then(|mut notes| notes.next().ok().flatten())
                    .is_some_and(|note| note.name() == b"Go")
            })
}

fn find(code: &[u8], address: u64, sites: &mut Vec<Site>) {
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

/// Addresses of the hook's doors in one process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Doors {
    /// For code compiled from C: its stack has room, below a red zone.
    pub c: u64,
    /// For Go: no red zone, and no room.
    pub go: u64,
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

/// The thunk for a site at `site` (relocated). At most [`THUNK_BYTES`].
fn thunk(shape: Shape, site: u64, doors: Doors) -> Vec<u8> {
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

/// A change of a program's memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Patch {
    /// Where.
    pub address: u64,
    /// What.
    pub bytes: Vec<u8>,
}

/// What leads one site through a thunk.
#[derive(Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The thunk.
    pub thunk: Patch,
    /// The jump to it.
    pub jump: Patch,
    /// What must be found in the jump's place.
    pub expected: Vec<u8>,
}

/// Redirects of `sites`, loaded with `bias`, through thunks on the page at `thunks`, of which `used` are taken. Sites that a jump
/// cannot reach are left out.
pub fn redirects(sites: &[Site], bias: u64, thunks: u64, used: usize, doors: Doors) -> Vec<Redirect> {
    let mut redirects = Vec::new();
    for site in sites.iter().take(MOST_SITES.saturating_sub(used)) {
        let from = bias.wrapping_add(site.address);
        let to = thunks + ((used + redirects.len()) * THUNK_BYTES) as u64;
        let Ok(distance) = i32::try_from(to.wrapping_sub(from + JUMP_BYTES as u64) as i64) else {
            continue;
        };
        let mut jump = vec![0xe9];
        jump.extend(distance.to_le_bytes());
        jump.resize(site.shape.bytes(), 0x90);
        redirects.push(Redirect {
            thunk: Patch {
                address: to,
                bytes: thunk(site.shape, from, doors),
            },
            jump: Patch {
                address: from,
                bytes: jump,
            },
            expected: original(site.shape),
        });
    }
    redirects
}

/// The bytes of a site.
fn original(shape: Shape) -> Vec<u8> {
    let mut code = displaced(shape);
    code.extend(SYSCALL);
    if shape == Shape::Go {
        code.extend(GO_CHECK);
    }
    code
}

/// How many thunks stand on a page that is read as words.
pub fn thunks_in_use(page: &[u64]) -> usize {
    page.chunks(THUNK_BYTES / 8).take_while(|thunk| thunk[0] != 0).count()
}

/// Scans of files by their identity, so that each library is read once however many programs start.
#[derive(Default)]
pub struct Cache(Mutex<HashMap<Identity, Arc<Scan>>>);

/// Device, inode, time of the last change, size, and what the file was looked at as.
type Identity = (u64, u64, i64, u64, Role);

impl Cache {
    /// The scan of an open file.
    pub fn scan(&self, file: &File, role: Role) -> std::io::Result<Arc<Scan>> {
        let meta = file.metadata()?;
        let key = (
            meta.dev(),
            meta.ino(),
            meta.mtime_nsec() ^ meta.mtime(),
            meta.size(),
            role,
        );
        let mut known = self.0.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(scan) = known.get(&key) {
            return Ok(scan.clone());
        }
        let scan = if meta.size() > MOST_FILE_BYTES {
            Arc::default()
        } else {
            Arc::new(scan(&Mapped::of(file, meta.len() as usize)?, role))
        };
        known.insert(key, scan.clone());
        Ok(scan)
    }
}

/// A file's bytes, of which only the pages that are looked at are read: programs of 100 MB are common.
struct Mapped(NonNull<libc::c_void>, usize);

impl Mapped {
    fn of(file: &File, size: usize) -> std::io::Result<Mapped> {
        // SAFETY: a fresh private mapping.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(map).filter(|_| map != libc::MAP_FAILED) {
            Some(map) => Ok(Mapped(map, size)),
            None => Err(std::io::Error::last_os_error()),
        }
    }
}

impl std::ops::Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped with this size until dropped. The file is one that a process is executing, which the kernel lets
        // nobody write (ETXTBSY), or a library: whoever truncates one in place kills every process that maps it, us included.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.1) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `of`.
        unsafe { libc::munmap(self.0.as_ptr(), self.1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_site_out_of_reach_of_a_jump_is_left_alone() {
        let sites = [Site {
            address: 0,
            shape: Shape::Constant(59),
        }];
        assert_eq!(
            redirects(&sites, 0x7000_0000_0000, 0x7000_1000_0000, 0, Doors::default()).len(),
            1
        );
        assert_eq!(
            redirects(&sites, 0x5000_0000_0000, 0x7000_1000_0000, 0, Doors::default()).len(),
            0
        );
    }

    #[test]
    fn this_machines_libc_has_an_execve_site() {
        let maps = crate::maps::of(std::process::id() as i32).unwrap();
        let libc = maps
            .iter()
            .find(|m| m.name.contains("/libc.so") || m.name.contains("/libc-2"))
            .expect("a dynamic glibc");
        let scan = scan(&std::fs::read(&libc.name).unwrap(), Role::Library);
        assert!(
            scan.sites.iter().any(|s| s.shape == Shape::Constant(59)),
            "{:?}",
            scan.sites
        );
        assert!(scan.sites.iter().any(|s| s.shape == Shape::Glibc), "{:?}", scan.sites);
    }
}
