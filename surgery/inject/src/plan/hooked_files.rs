//! The files of a process whose system calls are redirected to the hook.

use std::collections::BTreeSet;

use fastpath_os::foreign::Identity;

use crate::abi::Hook;
use crate::abi::sites::expected;
use crate::target::maps::Mapping;
use crate::target::memory::PAGE;
use crate::target::open_path;
use crate::target::program::{self, Code, is_c_library};
use crate::target::sites::{Cache, Role, Site};

/// A mapped file whose calls the hook must see.
pub struct HookedFile {
    pub sites: Vec<Site>,
    /// Load bias: its addresses in memory less those in the file.
    pub bias: u64,
    /// Address at which it is mapped.
    pub loaded: u64,
}

impl HookedFile {
    /// Returns the addresses of the pages that have the bytes by which its sites are known.
    pub fn pages(&self) -> BTreeSet<u64> {
        let pages = |site: &Site| {
            let place = self.bias.wrapping_add(site.address);
            expected(&site.shape).into_iter().flat_map(move |(offset, bytes)| {
                let first = place.wrapping_add_signed(offset);
                let ends = [first, first.wrapping_add(bytes.len() as u64).wrapping_sub(1)];
                ends.map(|address| address / PAGE * PAGE)
            })
        };
        self.sites.iter().flat_map(pages).collect()
    }
}

/// Returns the files of a program at its exec whose calls matter. The thunks beside its interpreter also serve the
/// libraries that are mapped later.
pub fn at_exec(code: &Code, hook: &Hook) -> Vec<HookedFile> {
    let mut files = Vec::new();
    let (program, bias) = &code.program;
    // A dynamic linker's thunks also serve the libraries that it maps.
    if !program.sites.is_empty() || code.linker.is_some() {
        files.push(HookedFile {
            sites: program.sites.clone(),
            bias: *bias,
            loaded: code.loaded,
        });
    }
    if let Some((scan, bias)) = &code.interpreter
        && (!scan.sites.is_empty() || hook.entry.is_some())
    {
        let mut sites = scan.sites.clone();
        // An interpreter without a C library makes none of these calls once its program runs: it needs no reason.
        sites.retain(|site| !(site.shape.is_fixed() && code.has_more_to_come()));
        files.push(HookedFile {
            sites,
            bias: *bias,
            loaded: bias.wrapping_add(scan.lowest),
        });
    }
    files
}

/// Returns the files of a running process that have wanted sites, with those. Leaves out files that cannot be read.
pub fn find(pid: i32, maps: &[Mapping], scans: &Cache, is_wanted: impl Fn(&Site) -> bool) -> Vec<HookedFile> {
    let mut found: Vec<HookedFile> = Vec::new();
    let exe = open_path(&format!("/proc/{pid}/exe")).ok();
    let exe_inode = exe
        .as_ref()
        .and_then(|exe| Identity::read(exe).ok())
        .map(|exe| exe.inode);
    let mut libraries = 0;
    for mapping in program::code_of_files(maps) {
        let is_library = is_c_library(&mapping.name) || is_musl(&mapping.name);
        libraries += usize::from(is_library);
        let scanned = if is_library && libraries <= program::MOST_LIBRARIES {
            program::library(pid, scans, maps, mapping)
        } else if Some(mapping.inode) == exe_inode {
            let scan = exe.as_ref().and_then(|file| scans.scan(file, Role::Program).ok());
            scan.zip(program::file_start(maps, mapping.start))
                .map(|(scan, start)| (scan.clone(), start.wrapping_sub(scan.lowest)))
        } else {
            None
        };
        let Some((scan, bias)) = scanned else { continue };
        let sites: Vec<Site> = scan.sites.iter().filter(|site| is_wanted(site)).cloned().collect();
        if sites.is_empty() {
            continue;
        }
        // One file may have several mappings with code.
        if found.iter().all(|known| known.bias != bias) {
            let loaded = program::file_start(maps, mapping.start).unwrap_or(mapping.start);
            found.push(HookedFile { sites, bias, loaded });
        }
    }
    found
}

/// Returns whether a file is musl, by the name of its interpreter or that of the file to which that is often a link.
fn is_musl(path: &str) -> bool {
    path.contains("/ld-musl-") || path.ends_with("/libc.so")
}
