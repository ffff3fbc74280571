//! Finds the code of a program that contains the calls for the hook: the program itself, its interpreter, its C
//! library.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fastpath_os::foreign::{self, Identity};

use crate::abi::Abi;
use crate::error::{Error, Result};
use crate::plan::redirection::is_region;
use crate::target::maps::{self, Mapping};
use crate::target::open_path;
use crate::target::sites::{self, Cache, Role};
use crate::target::stack::{AT_BASE, AT_ENTRY, AT_PHDR, InitialStack};
use crate::target::tracee::Tracee;

/// Code of the program that is mapped already: the program, and its interpreter if it names one.
pub struct Code {
    /// Address at which the program is loaded.
    pub loaded: u64,
    /// Sites and load bias of the program itself and of its interpreter.
    pub program: (Arc<sites::Scan>, u64),
    pub interpreter: Option<(Arc<sites::Scan>, u64)>,
    /// What the program calls first, and where it goes on, if it is a dynamic linker that was executed as a program.
    pub linker: Option<[u64; 2]>,
}

impl Code {
    pub fn read(
        tracee: &mut Tracee,
        abi: &dyn Abi,
        scans: &Cache,
        stack: &InitialStack,
        maps: &[Mapping],
    ) -> Result<Code> {
        let pid = tracee.pid();
        let exe = format!("/proc/{pid}/exe");
        let known = Identity::of_link(Path::new(&exe)).ok();
        let program = match known.and_then(|file| scans.known(file, Role::Program)) {
            Some(program) => program,
            None => scans
                .scan(&open_path(&exe)?, Role::Program)
                .map_err(|e| Error::io(&exe, e))?,
        };
        let loaded = stack.get(AT_PHDR).and_then(|phdr| file_start(maps, phdr)).unwrap_or(0);
        let program_bias = loaded.wrapping_sub(program.lowest);
        let base = stack.get(AT_BASE).filter(|base| *base != 0);
        let mapping = base.and_then(|base| maps.iter().find(|m| m.start == base));
        let interpreter = mapping.and_then(|mapping| library(pid, scans, maps, mapping));
        let linker = stack.get(AT_ENTRY).filter(|_| interpreter.is_none()).and_then(|entry| {
            let code = tracee.memory().ok()?.bytes(entry, 16).ok()?;
            abi.linker(&code, entry)
        });
        Ok(Code {
            linker,
            loaded,
            program: (program, program_bias),
            interpreter,
        })
    }

    /// Returns the lowest address of code that all its calls are near: the interpreter's, near which libraries are
    /// mapped, or the program's.
    pub fn lowest(&self) -> u64 {
        let interpreter = self.interpreter.as_ref();
        interpreter.map_or(self.loaded, |(scan, bias)| bias.wrapping_add(scan.lowest))
    }

    /// Returns why the calls in the libraries that the program maps will not be seen: it is a dynamic linker.
    pub fn unknown_linker(&self) -> Option<&'static str> {
        let program = &self.program.0;
        let is_unknown = program.is_linker && !program.is_dynamic() && self.linker.is_none();
        is_unknown.then_some("it is a dynamic linker, and how it starts a program is unknown here")
    }

    /// Returns whether the interpreter still has to map the C library. musl's is the interpreter itself.
    pub fn has_more_to_come(&self) -> bool {
        self.linker.is_some() || self.interpreter.is_some() && !self.program.0.is_musl()
    }
}

/// Most mappings of code that are examined of one file, and most C libraries of one process. A library has one of them, or a few if
/// another tool has changed the protection of some of its code.
const MOST_OF_ONE_FILE: usize = 16;
pub const MOST_LIBRARIES: usize = 16;

/// Returns the mappings of files' code, lowest first.
pub fn code_of_files(maps: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    let mut seen = HashMap::new();
    maps.iter().filter(move |m| {
        let is_code = m.executable && m.inode != 0;
        let before = seen.entry((m.device, m.inode)).or_insert(0);
        *before += usize::from(is_code);
        is_code && *before <= MOST_OF_ONE_FILE
    })
}

/// Returns the start of the lowest mapping of the file that is mapped at `address`. A file may be loaded more than once
/// (dlmopen(3), LD_AUDIT): in each copy, the offsets rise with the addresses.
pub fn file_start(maps: &[Mapping], address: u64) -> Option<u64> {
    let index = maps.iter().position(|m| (m.start..m.end).contains(&address))?;
    let at = &maps[index];
    // Between segments, a dynamic linker leaves mappings that cannot be accessed.
    let is_segment = |m: &&Mapping| m.readable || m.executable;
    let is_of_file = |m: &&Mapping| m.inode == at.inode && m.device == at.device && m.name == at.name;
    let mut lowest = at;
    for mapping in maps[..index].iter().rev().filter(is_segment).filter(is_of_file) {
        if mapping.offset > lowest.offset {
            break;
        }
        lowest = mapping;
    }
    Some(lowest.start)
}

/// Returns scan and load bias of the library mapped at `mapping`; `None` if the file cannot be read, or was replaced on
/// disk since: its code is then not the mapped code.
pub fn library(pid: i32, scans: &Cache, maps: &[Mapping], mapping: &Mapping) -> Option<(Arc<sites::Scan>, u64)> {
    let link = foreign::link_of_mapped(&directory(pid), mapping);
    let known = Identity::of_link(&link).ok().filter(|file| file.inode == mapping.inode);
    let scan = match known.and_then(|file| scans.known(file, Role::Library)) {
        Some(scan) => scan,
        None => scans.scan(&open_mapped(pid, mapping)?, Role::Library).ok()?,
    };
    let bias = file_start(maps, mapping.start)?.wrapping_sub(scan.lowest);
    Some((scan, bias))
}

/// Returns a handle of the file that is mapped at `mapping`; `None` if it cannot be opened, or its name refers to another
/// file by now.
pub fn open_mapped(pid: i32, mapping: &Mapping) -> Option<OwnedFd> {
    foreign::handle_of_mapped(&directory(pid), mapping).ok()
}

fn directory(pid: i32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

fn is_interpreter(path: &str) -> bool {
    let name = Path::new(path).file_name();
    name.is_some_and(|name| name.as_encoded_bytes().starts_with(b"ld-"))
}

/// Scans the C library and the interpreter of this process: those of a program are most likely the same, and need not be
/// scanned when it is stopped.
pub fn scan_own_libraries(scans: &Cache) {
    let maps = maps::read(std::process::id() as i32).unwrap_or_default();
    for mapping in maps
        .iter()
        .filter(|m| m.executable && (is_c_library(&m.name) || is_interpreter(&m.name)))
    {
        // A file that cannot be read here is read when it is needed.
        let _ = open_path(&mapping.name).map(|file| scans.scan(&file, Role::Library));
    }
}

/// Returns whether a program whose libraries are mapped reaches all sites of its C library. It does not if the library is the
/// only one, and the program names none of the functions that lead to the rare ones.
pub fn reaches_rare(pid: i32, scans: &Cache, maps: &[Mapping]) -> bool {
    let exe = Identity::of_link(&directory(pid).join("exe")).ok();
    let Some((exe, program)) = exe.and_then(|exe| Some((exe, scans.known(exe, Role::Program)?))) else {
        return true;
    };
    let is_known = |mapping: &Mapping| {
        let is_program = mapping.inode == exe.inode;
        is_program || is_c_library(&mapping.name) || is_interpreter(&mapping.name) || is_region(mapping)
    };
    !program.reaches_no_rare || !code_of_files(maps).all(is_known)
}

/// Returns whether a file is libc.so.6 of glibc, or libc-2.31.so or libpthread-2.31.so of an older one.
pub fn is_c_library(path: &str) -> bool {
    let name = Path::new(path).file_name().and_then(|n| n.to_str()).unwrap_or_default();
    name == "libc.so.6" || name.starts_with("libc-2.") || name.starts_with("libpthread-2.")
}

#[cfg(test)]
mod tests {
    use super::file_start;

    #[test]
    fn each_copy_of_a_file_that_is_loaded_twice_has_a_start_of_its_own() {
        // As glibc loads it: with a mapping between segments that cannot be accessed.
        let copy = |at: u64| {
            let lines = [
                ("r--p", 0, 1, 0),
                ("---p", 1, 2, 1),
                ("r-xp", 2, 4, 0),
                ("rw-p", 5, 6, 3),
            ];
            lines.map(|(flags, start, end, offset): (_, u64, u64, u64)| {
                let [start, end] = [start, end].map(|page| at + (page << 12));
                format!("{start:x}-{end:x} {flags} {offset:x}000 fe:00 12 /lib/libc.so.6\n")
            })
        };
        let other = "7f0000010000-7f0000011000 r-xp 00000000 fe:00 13 /lib/other.so\n".to_owned();
        let lines = [&copy(0x7f00_0000_0000)[..], &[other], &copy(0x7f00_0002_0000)].concat();
        let maps = fastpath_os::maps::parse(&lines.concat());
        for start in [0x7f00_0000_0000, 0x7f00_0002_0000] {
            for page in [0, 2, 3, 5] {
                assert_eq!(file_start(&maps, start + (page << 12)), Some(start), "{page}");
            }
        }
        assert_eq!(file_start(&maps, 0x7f00_0001_0000), Some(0x7f00_0001_0000));
    }
}
