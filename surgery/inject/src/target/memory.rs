//! Memory of another process, through /proc/PID/mem and /proc/PID/pagemap.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::error::{Error, Result};

/// Open memory of a process. It stays that of the program that ran when it was opened: after an exec, reads return
/// nothing.
pub struct Memory {
    path: String,
    file: File,
}

impl Memory {
    /// Opens the memory for reading.
    pub fn open(pid: i32) -> Result<Memory> {
        Memory::with(pid, File::options().read(true))
    }

    /// Opens the memory for reading and writing.
    pub fn writable(pid: i32) -> Result<Memory> {
        Memory::with(pid, File::options().read(true).write(true))
    }

    fn with(pid: i32, options: &std::fs::OpenOptions) -> Result<Memory> {
        let path = format!("/proc/{pid}/mem");
        match options.open(&path) {
            Ok(file) => Ok(Memory { path, file }),
            Err(e) => Err(Error::io(path, e)),
        }
    }

    /// Reads all of `bytes`, or returns an error.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(bytes, address);
        read.map_err(|e| Error::io(&self.path, e))
    }

    /// Returns `count` bytes.
    pub fn bytes(&self, address: u64, count: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.read(address, &mut bytes).map(|()| bytes)
    }

    /// Returns the address of the first of these pieces that has other bytes in the process. Successive pieces in one page
    /// are read at once.
    pub fn first_changed(&self, pieces: &[(u64, &[u8])]) -> Result<Option<u64>> {
        for pieces in pieces.chunk_by(|one, other| one.0 / PAGE == other.0 / PAGE) {
            let end = |(address, bytes): &(u64, &[u8])| address + bytes.len() as u64;
            let first = pieces.iter().map(|piece| piece.0).min().unwrap_or(0);
            let last = pieces.iter().map(end).max().unwrap_or(0);
            let found = self.bytes(first, (last - first) as usize)?;
            let is_changed = |(at, bytes): &&(u64, &[u8])| !found[(at - first) as usize..].starts_with(bytes);
            if let Some((address, _)) = pieces.iter().find(is_changed) {
                return Ok(Some(*address));
            }
        }
        Ok(None)
    }

    /// Writes all of `bytes`, to read-only pages too (the kernel copies a private page first).
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all_at(bytes, address);
        written.map_err(|e| Error::io(&self.path, e))
    }
}

/// Size of a page of every supported architecture.
pub const PAGE: u64 = 4096;

/// Which pages of a process are in memory (Documentation/admin-guide/mm/pagemap.rst). Reading others could wait for
/// their file system, or for a thread of the process (userfaultfd(2)).
pub struct Pagemap(Option<File>);

impl Pagemap {
    /// Opens the page map of a process.
    pub fn open(pid: i32) -> Pagemap {
        Pagemap(File::open(format!("/proc/{pid}/pagemap")).ok())
    }

    /// Returns whether this kernel reports which pages are present (CONFIG_PROC_PAGE_MONITOR).
    pub fn is_known(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether the page at an address, which was read just now, is still that of its file: no tool has written to
    /// it, since that makes a copy. False if the kernel does not report it.
    pub fn is_of_file(&self, address: u64) -> bool {
        /// Bit 61: the page is of a file, or of shared memory.
        const OF_FILE: u64 = 1 << 61;
        let mut entry = [0; 8];
        let read = self
            .0
            .as_ref()
            .map(|file| file.read_exact_at(&mut entry, address / PAGE * 8));
        matches!(read, Some(Ok(()))) && u64::from_ne_bytes(entry) & OF_FILE != 0
    }

    /// Returns whether each page of a range is in memory or swapped out; true if the kernel does not report it.
    pub fn present(&self, range: Range<u64>) -> Vec<bool> {
        /// Bit 63: the page is present; bit 62: it is swapped out.
        const PRESENT_OR_SWAPPED: u64 = 3 << 62;
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        let count = (pages.end - pages.start) as usize;
        let Some(pagemap) = &self.0 else {
            return vec![true; count];
        };
        let mut entries = vec![0; count * 8];
        if pagemap.read_exact_at(&mut entries, pages.start * 8).is_err() {
            return vec![false; count];
        }
        let (entries, _) = entries.as_chunks();
        let is_present = |entry: &[u8; 8]| u64::from_ne_bytes(*entry) & PRESENT_OR_SWAPPED != 0;
        entries.iter().map(is_present).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_that_has_changed_is_found_wherever_it_is_in_its_page() {
        let here: Vec<u8> = (0..3 * PAGE).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        let start = here.as_ptr() as u64;
        let pieces: Vec<_> = [5000, 5010, 4990, 100, 9000]
            .map(|at| (start + at as u64, &here[at..at + 4]))
            .to_vec();
        let own = Memory::open(std::process::id() as i32).unwrap();
        assert_eq!(own.first_changed(&[]).unwrap(), None);
        assert_eq!(own.first_changed(&pieces).unwrap(), None);
        for changed in 0..pieces.len() {
            let mut pieces = pieces.clone();
            pieces[changed].1 = b"none";
            assert_eq!(own.first_changed(&pieces).unwrap(), Some(pieces[changed].0));
        }
        assert!(own.first_changed(&[(0, b"none")]).is_err());
    }
}
