//! Finds the system call instructions in a program's code that the hook must see (see `hook/hook.c`). Their shapes
//! depend on the host ([`crate::abi::sites`]).

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastpath_code::rescue::Analysis;
use fastpath_code::rescue::thunk::Thunk;
use fastpath_image::Isa;
use fastpath_os::foreign::{Identity, Reader};
use object::elf::{DT_SONAME, FileHeader32, FileHeader64, PF_X, PT_LOAD, PT_NOTE};
use object::read::elf::{Dyn, ElfFile, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, ReadCache, ReadRef, SymbolKind};

use crate::abi::sites::{self, FIND_IN_32_BITS, Shape, THUNK_BYTES, find};

/// Thunks on one page: more than the sites of any library.
pub const MOST_SITES: usize = 4096 / THUNK_BYTES;
/// Reason why a site is not redirected.
pub const OUT_OF_REACH: &str = "its thunk is out of a jump's reach";
/// Most bytes that are read of a file for its sites: a large Go program has 60 MiB of code and symbols.
const MOST_SCANNED: u64 = 160 << 20;
/// Size above which a file is not searched for calls for time: reading it would cost more than it gains.
const MOST_SEARCHED: u64 = 512 << 20;
/// Time for which a file is read. From a disk, a library takes some tens of ms.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Most system calls in a file that is searched: a C library has 600, and a Go program of 60 MiB has 2,000, most by chance. More
/// are found in a file that was made to keep the search busy.
pub const MOST_CALLS: usize = 8 << 10;

/// Those of the host's own programs.
pub const WATCHED: [u32; 10] = watched(Isa::HOST);

/// Returns the numbers of the calls that the hook watches in programs for an ISA, but for those that 32-bit ones have beside them, with
/// 64-bit time.
pub const fn watched(isa: Isa) -> [u32; 10] {
    let calls = &isa.facts().calls;
    [
        calls.execve,
        calls.prctl,
        calls.settimeofday,
        calls.clock_settime,
        calls.adjtimex,
        calls.clock_adjtime,
        calls.unshare,
        calls.setns,
        calls.seccomp,
        calls.execveat,
    ]
}

/// Calls of which few programs make one. glibc's functions for them are in pages without other sites, and the hook keeps no
/// program from harm at them.
const RARE: [u32; 2] = [libc::SYS_clock_settime as u32, libc::SYS_execveat as u32];
/// glibc's functions that make those calls, and those by which a program finds functions that it does not name.
const TO_RARE: [&[u8]; 12] = [
    b"clock_settime",
    b"settimeofday",
    b"stime",
    b"execveat",
    b"fexecve",
    b"dlopen",
    b"dlmopen",
    b"dlsym",
    b"dlvsym",
    b"__libc_dlopen_mode",
    b"__libc_dlsym",
    b"dl_iterate_phdr",
];
/// glibc's function that each of its programs begins with: a program without it names its functions in another way.
const START: &[u8] = b"__libc_start_main";

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
    /// Whether it is a dynamic linker of glibc, by its own name. musl's has the name of its C library.
    pub is_linker: bool,
    /// Whether it is a program that Go's linker made.
    pub is_go: bool,
    /// Whether it is a program of glibc that reaches no rare site of that.
    pub reaches_no_rare: bool,
}

impl Site {
    /// Returns whether few programs reach it.
    pub fn is_rare(&self) -> bool {
        RARE.iter().any(|nr| self.shape.is_for(*nr))
    }
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

/// Adds the sites in code to others: the code, its address in the file, and the ends of its functions.
pub type Find = fn(&[u8], u64, &[u64], &mut Vec<Site>);

/// Finds the sites in an ELF file's code. A file that cannot be parsed has none.
pub fn scan<'f>(file: impl ReadRef<'f>, role: Role) -> Scan {
    if let Ok(elf) = ElfFile::<FileHeader64<Endianness>, _>::parse(file) {
        return scan_elf(&elf, file, role, find);
    }
    let elf = ElfFile::<FileHeader32<Endianness>, _>::parse(file).ok();
    let scanned = elf
        .zip(FIND_IN_32_BITS)
        .map(|(elf, find)| scan_elf(&elf, file, role, find));
    scanned.unwrap_or_default()
}

fn scan_elf<'f, E: FileHeader<Endian = Endianness>, R: ReadRef<'f>>(
    elf: &ElfFile<'f, E, R>,
    file: R,
    role: Role,
    find: Find,
) -> Scan {
    let endian = elf.endian();
    let headers = elf.elf_program_headers();
    let interpreter = headers.iter().find_map(|h| h.interpreter(endian, file).ok().flatten());
    let interpreter = interpreter.map(|path| String::from_utf8_lossy(path).into_owned());
    let mut sites = Vec::new();
    let is_go = role == Role::Program && is_go(elf);
    if role == Role::Library || interpreter.is_none() || is_go {
        let symbols = elf.symbols().chain(elf.dynamic_symbols());
        let functions = symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0);
        let mut ends: Vec<u64> = functions
            .map(|symbol| symbol.address().wrapping_add(symbol.size()))
            .collect();
        ends.sort_unstable();
        for header in headers
            .iter()
            .filter(|h| h.p_type(endian) == PT_LOAD && h.p_flags(endian) & PF_X != 0)
        {
            if let Ok(code) = header.data(endian, file)
                && header.p_vaddr(endian).into().checked_add(code.len() as u64).is_some()
            {
                find(code, header.p_vaddr(endian).into(), &ends, &mut sites);
            }
        }
    }
    sites.sort_unstable_by_key(|s| s.address);
    // One more, for which there is no thunk: then that is the reason why it is left alone.
    sites.truncate(MOST_SITES + 1);
    Scan {
        sites,
        lowest: lowest_of(elf).unwrap_or(0),
        is_linker: shared_name(elf).is_some_and(|name| name.starts_with(b"ld")),
        is_go,
        reaches_no_rare: role == Role::Program && names_no_rare(elf),
        interpreter,
    }
}

fn names_no_rare<'f, E: FileHeader>(elf: &ElfFile<'f, E, impl ReadRef<'f>>) -> bool {
    let named = elf.dynamic_symbols().filter(|symbol| symbol.is_undefined());
    let mut named = named.filter_map(|symbol| symbol.name_bytes().ok());
    let mut has_start = false;
    let is_rare = named.any(|name| {
        has_start |= name == START;
        TO_RARE.contains(&name)
    });
    has_start && !is_rare
}

/// Returns the lowest address that an ELF file states for its segments, at the start of its page.
fn lowest_of<'f, E: FileHeader>(elf: &ElfFile<'f, E, impl ReadRef<'f>>) -> Option<u64> {
    let endian = elf.endian();
    let loaded = elf.elf_program_headers().iter().filter(|h| h.p_type(endian) == PT_LOAD);
    Some(loaded.map(|h| h.p_vaddr(endian).into()).min()? & !4095)
}

/// Returns the name that a shared object gives itself.
fn shared_name<'f, E: FileHeader, R: ReadRef<'f>>(elf: &ElfFile<'f, E, R>) -> Option<&'f [u8]> {
    let (endian, sections) = (elf.endian(), elf.elf_section_table());
    let (entries, link) = sections.dynamic(endian, elf.data()).ok()??;
    let strings = sections.strings(endian, elf.data(), link).ok()?;
    let mut entries = entries.iter();
    let name = entries.find(|entry| entry.d_tag(endian).into() == u64::from(DT_SONAME))?;
    strings.get(u32::try_from(name.d_val(endian).into()).ok()?).ok()
}

fn is_go<'f, E: FileHeader>(elf: &ElfFile<'f, E, impl ReadRef<'f>>) -> bool {
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

/// Returns the thunk at `at` of a site that is loaded with `bias`, or the reason why there is none.
pub fn redirect(site: &Site, bias: u64, at: u64, doors: Doors) -> Result<Thunk, String> {
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
type Known<T> = Mutex<HashMap<(Identity, Role), Arc<Mutex<Option<Arc<T>>>>>>;

impl Cache {
    /// Returns the scan of a file that was scanned before.
    pub fn known(&self, file: Identity, role: Role) -> Option<Arc<Scan>> {
        let scans = self.scans.lock().unwrap_or_else(PoisonError::into_inner);
        let scan = scans.get(&(file, role))?.clone();
        drop(scans);
        // Another visit may be scanning it.
        scan.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the scan of a file, by a handle (O_PATH).
    pub fn scan(&self, file: &OwnedFd, role: Role) -> std::io::Result<Arc<Scan>> {
        known(&self.scans, file, role, MOST_SCANNED, |file| {
            Ok(scan(&ReadCache::new(file), role))
        })
    }

    /// Returns the system calls for time in a file. One that cannot be parsed has none.
    pub fn own_calls(&self, file: &OwnedFd) -> std::io::Result<Arc<Analysis>> {
        known(&self.own_calls, file, Role::Library, MOST_SEARCHED, |mut file| {
            Ok(fastpath_code::rescue::analyse(&file.contents()?).unwrap_or_default())
        })
    }
}

/// Returns what is known of a file, or opens it and finds it out. Nothing is known of a file that is not read in time: its
/// owner may truncate it, or serve it and not answer.
fn known<T: Default>(
    known: &Known<T>,
    file: &OwnedFd,
    role: Role,
    most: u64,
    find: impl FnOnce(Reader) -> std::io::Result<T>,
) -> std::io::Result<Arc<T>> {
    let key = (Identity::read(file)?, role);
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
    let found = Reader::open(file.as_fd(), most, TIMEOUT).and_then(find);
    // Only a time-out counts for the next program, too: other files can be read on another try.
    let found = match found {
        Err(error) if error.kind() != std::io::ErrorKind::TimedOut => return Err(error),
        found => Arc::new(found.unwrap_or_default()),
    };
    *of_file = Some(found.clone());
    Ok(found)
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
        assert!(!scan(&*file, Role::Library).sites.is_empty());
        // p_vaddr of the only segment.
        file[0x50..0x58].copy_from_slice(&(u64::MAX - 8).to_le_bytes());
        assert!(scan(&*file, Role::Library).sites.is_empty());
    }

    #[test]
    fn a_site_out_of_reach_of_a_jump_is_left_alone() {
        let libc = std::fs::read(format!("/lib/{}-linux-gnu/libc.so.6", std::env::consts::ARCH));
        let file = libc.or_else(|_| std::fs::read("/proc/self/exe")).unwrap();
        let scan = scan(&*file, Role::Library);
        let site = scan.sites.first().expect("a site");
        let redirect = |bias| redirect(site, bias, 0x7000_1000_0000, Doors::default());
        assert!(redirect(0x7000_0000_0000).is_ok());
        assert_eq!(redirect(0x5000_0000_0000), Err(OUT_OF_REACH.to_owned()));
    }

    /// An ELF file with one executable segment, full of these bytes.
    fn library_full_of(bytes: &[u8], size: usize) -> Vec<u8> {
        let mut file = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/any/execve")).unwrap();
        // p_filesz and p_memsz of the only segment.
        for field in [0x60, 0x68] {
            file[field..field + 8].copy_from_slice(&(size as u64 / 2).to_le_bytes());
        }
        file.extend(bytes.iter().cycle().take(size));
        file
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_library_full_of_system_calls_is_searched_in_bounded_time() {
        // mov $execve, %eax; syscall; ret
        let file = library_full_of(&[0xb8, 59, 0, 0, 0, 0x0f, 0x05, 0xc3], 16 << 20);
        let begun = std::time::Instant::now();
        assert!(scan(&*file, Role::Library).sites.is_empty());
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_file_that_is_truncated_while_it_is_searched_does_no_harm() {
        let path = std::env::temp_dir().join(format!("fastpath-truncated-{}", std::process::id()));
        let size = 32 << 20;
        std::fs::write(&path, library_full_of(&[0x90], size)).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    file.set_len(8192).unwrap();
                    file.set_len(size as u64).unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            for _ in 0..20 {
                let handle = crate::target::open_path(path.to_str().unwrap()).unwrap();
                let _ = Cache::default().scan(&handle, Role::Library);
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn this_machines_libc_has_an_execve_site() {
        let maps = crate::target::maps::read(std::process::id() as i32).unwrap();
        let libc = maps
            .iter()
            .find(|m| m.name.contains("/libc.so") || m.name.contains("/libc-2"))
            .expect("a dynamic glibc");
        let scan = scan(&*std::fs::read(&libc.name).unwrap(), Role::Library);
        assert!(
            scan.sites.iter().any(|s| s.shape.is_for(libc::SYS_execve as u32)),
            "{:?}",
            scan.sites
        );
        let is_for_any = |site: &Site| WATCHED.iter().all(|nr| !site.shape.is_for(*nr));
        assert!(scan.sites.iter().any(is_for_any), "{:?}", scan.sites);
    }
}
