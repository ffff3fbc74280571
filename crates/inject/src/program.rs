//! Where in a program are the calls that the hook must see: the program itself, its interpreter, its C library.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::maps::{self, Mapping};
use crate::sites::{self, Cache, Role};
use crate::stack::{AT_BASE, AT_PHDR, InitialStack};
use crate::target;

/// The program's code that is mapped already: the program, and its interpreter if it names one.
pub struct Code {
    /// Where the region must lie to be in a jump's reach of everything here, if it matters.
    pub near: Option<u64>,
    /// Sites and load bias of the program itself and of its interpreter.
    pub program: (Arc<sites::Scan>, u64),
    pub interpreter: Option<(Arc<sites::Scan>, u64)>,
}

impl Code {
    pub fn of(pid: i32, scans: &Cache, stack: &InitialStack, maps: &[Mapping]) -> Result<Code> {
        let exe = format!("/proc/{pid}/exe");
        let file = File::open(&exe).map_err(|e| Error::io(&exe, e))?;
        let program = scans.scan(&file, Role::Program).map_err(|e| Error::io(&exe, e))?;
        let loaded = stack.get(AT_PHDR).and_then(|phdr| file_start(maps, phdr)).unwrap_or(0);
        let program_bias = loaded.wrapping_sub(program.lowest);
        let near = (!program.sites.is_empty()).then_some(loaded);
        let base = stack.get(AT_BASE).filter(|base| *base != 0);
        let mapping = base.and_then(|base| maps.iter().find(|m| m.start == base));
        let interpreter = mapping.and_then(|mapping| library(pid, scans, maps, mapping));
        Ok(Code {
            near,
            program: (program, program_bias),
            interpreter,
        })
    }

    /// The C library comes later, mapped by the interpreter; except musl's, which is the interpreter.
    pub fn has_more_to_come(&self) -> bool {
        self.interpreter.is_some() && !self.program.0.is_musl()
    }
}

/// Start of the lowest mapping of the file that is mapped at `address`.
pub fn file_start(maps: &[Mapping], address: u64) -> Option<u64> {
    let at = maps.iter().find(|m| (m.start..m.end).contains(&address))?;
    maps.iter()
        .filter(|m| m.inode == at.inode && m.device == at.device && m.name == at.name)
        .map(|m| m.start)
        .min()
}

/// Scan and load bias of the library mapped at `mapping`. None if it cannot be read, or was replaced on disk since: its code
/// there is not the code here.
pub fn library(pid: i32, scans: &Cache, maps: &[Mapping], mapping: &Mapping) -> Option<(Arc<sites::Scan>, u64)> {
    // Another kind of file may have taken its name.
    let handle = target::open_path(&format!("/proc/{pid}/root{}", mapping.name)).ok()?;
    let file = target::open_regular(&handle).ok()?;
    if file.metadata().ok()?.ino() != mapping.inode {
        return None;
    }
    let scan = scans.scan(&file, Role::Library).ok()?;
    let bias = file_start(maps, mapping.start)?.wrapping_sub(scan.lowest);
    Some((scan, bias))
}

/// Scans the C library and the interpreter of this process.
pub fn scan_own_libraries(scans: &Cache) {
    let maps = maps::of(std::process::id() as i32).unwrap_or_default();
    let is_interpreter = |name: &str| {
        Path::new(name)
            .file_name()
            .is_some_and(|n| n.as_encoded_bytes().starts_with(b"ld-"))
    };
    for mapping in maps
        .iter()
        .filter(|m| m.executable && (is_c_library(&m.name) || is_interpreter(&m.name)))
    {
        // What cannot be read here is read when it is needed.
        let _ = File::open(&mapping.name).and_then(|file| scans.scan(&file, Role::Library));
    }
}

/// libc.so.6 of glibc, libc-2.31.so and libpthread-2.31.so of older ones.
pub fn is_c_library(path: &str) -> bool {
    let name = Path::new(path).file_name().and_then(|n| n.to_str()).unwrap_or_default();
    name == "libc.so.6" || name.starts_with("libc-2.") || name.starts_with("libpthread-2.")
}
