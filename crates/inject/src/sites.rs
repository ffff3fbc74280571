//! Finds the system call instructions in a program's code that the hook must see (see `hook/hook.c`). Their shapes
//! depend on the host ([`crate::abi::sites`]).

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use fastpath_code::rescue::Analysis;
pub use fastpath_code::rescue::thunk::Change;
use nix::sys::stat::{FileStat, fstat};
use object::elf::{PF_X, PT_LOAD, PT_NOTE};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, SymbolKind};

use crate::abi::sites::{self, Shape, THUNK_BYTES, find};
use crate::target::open_regular;

/// Thunks on one page: more than the sites of any library.
pub const MOST_SITES: usize = 4096 / THUNK_BYTES;
/// Reason why a site is not redirected.
pub const OUT_OF_REACH: &str = "its thunk is out of a jump's reach";
/// Size above which a file is not searched: reading it would cost more than it gains.
const MOST_FILE_BYTES: u64 = 512 << 20;

/// Numbers of the calls that the hook watches; arch/x86/entry/syscalls/syscall_64.tbl,
/// include/uapi/asm-generic/unistd.h.
pub const WATCHED: [u32; 10] = [
    libc::SYS_execve as u32,
    libc::SYS_prctl as u32,
    libc::SYS_settimeofday as u32,
    libc::SYS_clock_settime as u32,
    libc::SYS_adjtimex as u32,
    libc::SYS_clock_adjtime as u32,
    libc::SYS_unshare as u32,
    libc::SYS_setns as u32,
    libc::SYS_seccomp as u32,
    libc::SYS_execveat as u32,
];

/// One place in a file's code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Virtual address as the file states it (before relocation).
    pub address: u64,
    /// Shape of the code there.
    pub shape: Shape,
}

/// Result of a scan of a file.
#[derive(Debug, Default)]
pub struct Scan {
    /// Sites, lowest first.
    pub sites: Vec<Site>,
    /// Interpreter that the file names.
    pub interpreter: Option<String>,
    /// Lowest address that is loaded.
    pub lowest: u64,
}

impl Scan {
    /// Returns whether some or all of its calls are in libraries.
    pub fn is_dynamic(&self) -> bool {
        self.interpreter.is_some()
    }

    /// Returns whether its C library is musl, which is one file with its interpreter.
    pub fn is_musl(&self) -> bool {
        self.interpreter.as_ref().is_some_and(|path| path.contains("ld-musl-"))
    }
}

/// Role of a file in the process that maps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The program itself. If it names an interpreter, its calls are in a library, unless it is Go's.
    Program,
    /// An interpreter or a library.
    Library,
}

/// Finds the sites in an ELF file's code. A file that cannot be parsed has none.
pub fn scan(file: &[u8], role: Role) -> Scan {
    let Ok(elf) = ElfFile64::<Endianness>::parse(file) else {
        return Scan::default();
    };
    let endian = elf.endian();
    let headers = elf.elf_program_headers();
    let interpreter = headers.iter().find_map(|h| h.interpreter(endian, file).ok().flatten());
    let interpreter = interpreter.map(|path| String::from_utf8_lossy(path).into_owned());
    let symbols = elf.symbols().chain(elf.dynamic_symbols());
    let functions = symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0);
    let mut ends: Vec<u64> = functions
        .map(|symbol| symbol.address().wrapping_add(symbol.size()))
        .collect();
    ends.sort_unstable();
    let mut sites = Vec::new();
    if role == Role::Library || interpreter.is_none() || is_go(&elf) {
        for header in headers
            .iter()
            .filter(|h| h.p_type(endian) == PT_LOAD && h.p_flags(endian) & PF_X != 0)
        {
            if let Ok(code) = header.data(endian, file)
                && header.p_vaddr(endian).checked_add(code.len() as u64).is_some()
            {
                find(code, header.p_vaddr(endian), &ends, &mut sites);
            }
        }
    }
    sites.sort_unstable_by_key(|s| s.address);
    // One more, for which there is no thunk: then that is the reason why it is left alone.
    sites.truncate(MOST_SITES + 1);
    Scan {
        sites,
        interpreter,
        lowest: lowest_of(&elf).unwrap_or(0),
    }
}

/// Returns the lowest address that an ELF file states for its segments, at the start of its page.
fn lowest_of(elf: &ElfFile64<'_, Endianness>) -> Option<u64> {
    let endian = elf.endian();
    let loaded = elf.elf_program_headers().iter().filter(|h| h.p_type(endian) == PT_LOAD);
    Some(loaded.map(|h| h.p_vaddr(endian)).min()? & !4095)
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

/// Addresses of the hook's doors in one process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Doors {
    /// Door for code compiled from C: its stack has room, below a red zone.
    pub c: u64,
    /// Door for Go: no red zone, and no room.
    pub go: u64,
}

/// Redirection of one site through a thunk.
#[derive(Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Code of the thunk.
    pub thunk: Vec<u8>,
    /// Changes, in the order in which they are made.
    pub changes: Vec<Change>,
}

/// Returns the redirection of a site, loaded with `bias`, through the thunk at `at`, or the reason why there is none.
pub fn redirect(site: &Site, bias: u64, at: u64, doors: Doors) -> Result<Redirect, String> {
    let from = bias.wrapping_add(site.address);
    sites::redirect(&site.shape, from, at, doors)
}

/// Returns the number of thunks on a page with these bytes.
pub fn thunks_in_use(page: &[u8]) -> usize {
    let is_used = |thunk: &&[u8]| thunk.iter().any(|byte| *byte != 0);
    page.chunks(THUNK_BYTES).take_while(is_used).count()
}

/// Scans of files by their identity, so that each library is read only once for all programs.
#[derive(Default)]
pub struct Cache {
    scans: Known<Scan>,
    own_calls: Known<Analysis>,
}

/// Results for files. Each has a lock of its own, which is held while the file is examined.
type Known<T> = Mutex<HashMap<Identity, Arc<Mutex<Option<Arc<T>>>>>>;

/// Device, inode, time of the last change, size, and role.
type Identity = (u64, u64, i64, u64, Role);

impl Cache {
    /// Returns the scan of a file, by a handle (O_PATH).
    pub fn scan(&self, file: &OwnedFd, role: Role) -> std::io::Result<Arc<Scan>> {
        known(&self.scans, file, role, |bytes| scan(bytes, role))
    }

    /// Returns the system calls for time in a file. One that cannot be parsed has none.
    pub fn own_calls(&self, file: &OwnedFd) -> std::io::Result<Arc<Analysis>> {
        let find = |bytes: &[u8]| fastpath_code::rescue::analyse(bytes).unwrap_or_default();
        known(&self.own_calls, file, Role::Library, find)
    }
}

/// Returns what is known of a file, or opens it and finds it out. Nothing is known of a file that is too large.
fn known<T: Default>(
    known: &Known<T>,
    file: &OwnedFd,
    role: Role,
    find: impl FnOnce(&[u8]) -> T,
) -> std::io::Result<Arc<T>> {
    let FileStat {
        st_dev,
        st_ino,
        st_mtime,
        st_mtime_nsec,
        st_size,
        ..
    } = fstat(file)?;
    let size = st_size as u64;
    let key = (st_dev, st_ino, st_mtime_nsec ^ st_mtime, size, role);
    let of_file = known
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry(key)
        .or_default()
        .clone();
    // If another visit examines the file, a second examination would only take CPU from it.
    let mut of_file = of_file.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = &*of_file {
        return Ok(found.clone());
    }
    let found = if size > MOST_FILE_BYTES {
        Arc::default()
    } else {
        Arc::new(find(&Mapped::map(&open_regular(file)?, size as usize)?))
    };
    *of_file = Some(found.clone());
    Ok(found)
}

/// A file's bytes, mapped so that only the pages that are accessed are read: programs of 100 MB are common.
struct Mapped(NonNull<libc::c_void>, usize);

impl Mapped {
    fn map(file: &File, size: usize) -> std::io::Result<Mapped> {
        // SAFETY: a fresh mapping, which is only read.
        let map =
            |flags| unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
        // The kernel puts breakpoints of uprobes into private mappings; a few file systems have no others.
        let maps = [libc::MAP_SHARED, libc::MAP_PRIVATE].into_iter().map(map);
        match maps.filter(|map| *map != libc::MAP_FAILED).find_map(NonNull::new) {
            Some(map) => Ok(Mapped(map, size)),
            None => Err(std::io::Error::last_os_error()),
        }
    }
}

impl std::ops::Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped with this size until dropped. The file is either one that a process is executing, which the
        // kernel lets nothing write (ETXTBSY), or a library: truncating a library in place kills every process that
        // maps it, this one included.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.1) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `of` with this size, and no borrow of it outlives `self`.
        unsafe { libc::munmap(self.0.as_ptr(), self.1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn whatever_a_program_contains_it_has_sites_or_none() {
        let seeds = crate::mutations::corpus("any");
        let mut sites = 0;
        crate::mutations::feed(&seeds, std::time::Duration::from_secs(5), 2, |bytes| {
            for site in scan(bytes, Role::Library).sites {
                sites += 1;
                let _ = redirect(&site, 0, 0x7000_1000_0000, Doors::default());
            }
        });
        assert!(sites > 0);
    }

    /// Regression test: a panic with checked arithmetic.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn code_that_does_not_fit_into_the_address_space_has_no_sites() {
        let mut file = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/any/execve")).unwrap();
        assert!(!scan(&file, Role::Library).sites.is_empty());
        // p_vaddr of the only segment.
        file[0x50..0x58].copy_from_slice(&(u64::MAX - 8).to_le_bytes());
        assert!(scan(&file, Role::Library).sites.is_empty());
    }

    #[test]
    fn a_site_out_of_reach_of_a_jump_is_left_alone() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let file = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6"].map(std::fs::read);
        let file = file.into_iter().flatten().next().unwrap_or(own);
        let scan = scan(&file, Role::Library);
        let site = scan.sites.first().expect("a site");
        let redirect = |bias| redirect(site, bias, 0x7000_1000_0000, Doors::default());
        assert!(redirect(0x7000_0000_0000).is_ok());
        assert_eq!(redirect(0x5000_0000_0000), Err(OUT_OF_REACH.to_owned()));
    }

    #[test]
    fn this_machines_libc_has_an_execve_site() {
        let maps = crate::maps::read(std::process::id() as i32).unwrap();
        let libc = maps
            .iter()
            .find(|m| m.name.contains("/libc.so") || m.name.contains("/libc-2"))
            .expect("a dynamic glibc");
        let scan = scan(&std::fs::read(&libc.name).unwrap(), Role::Library);
        assert!(
            scan.sites.iter().any(|s| s.shape.is_for(libc::SYS_execve as u32)),
            "{:?}",
            scan.sites
        );
        let is_for_any = |site: &Site| WATCHED.iter().all(|nr| !site.shape.is_for(*nr));
        assert!(scan.sites.iter().any(is_for_any), "{:?}", scan.sites);
    }
}
