//! Memory of another process, through /proc/PID/mem and /proc/PID/pagemap.

use std::cell::RefCell;
use std::collections::BTreeMap;
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

    /// Writes all of `bytes`, to read-only pages too (the kernel copies a private page first).
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all_at(bytes, address);
        written.map_err(|e| Error::io(&self.path, e))
    }
}

/// Size of the smallest page of every supported architecture.
pub const PAGE: u64 = 4096;

/// Returns the size of this kernel's pages, which is the same in all programs.
pub fn kernels_page() -> u64 {
    rustix::param::page_size() as u64
}

/// Code of a process, which does not run meanwhile: a page of it is read once, and changes in one page are one write.
pub struct CodePages<'a> {
    memory: &'a Memory,
    pages: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl<'a> CodePages<'a> {
    /// Returns no pages yet.
    pub fn new(memory: &'a Memory) -> CodePages<'a> {
        CodePages {
            memory,
            pages: RefCell::default(),
        }
    }

    /// Adds pages that were read already.
    pub fn add(&self, address: u64, bytes: &[u8]) {
        let pages = bytes.chunks_exact(PAGE as usize).map(<[u8]>::to_vec);
        let numbers = address / PAGE..;
        self.pages.borrow_mut().extend(numbers.zip(pages));
    }

    /// Returns whether the process has these bytes there.
    pub fn has(&self, address: u64, bytes: &[u8]) -> Result<bool> {
        let end = address + bytes.len() as u64;
        let mut at = address;
        while at < end {
            let next = ((at / PAGE + 1) * PAGE).min(end);
            let expected = &bytes[(at - address) as usize..(next - address) as usize];
            if !self.with(at / PAGE, |page| page[(at % PAGE) as usize..].starts_with(expected))? {
                return Ok(false);
            }
            at = next;
        }
        Ok(true)
    }

    /// Writes pieces, in this order. Those that follow each other in one page are one write, which the death of fastpath
    /// does not cut in two.
    pub fn write(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        let ends_at = |(address, bytes): &(u64, &[u8])| address + bytes.len() as u64;
        let number = pieces.first().map_or(0, |piece| piece.0 / PAGE);
        if pieces.len() == 1 && ends_at(&pieces[0]) > (number + 1) * PAGE {
            self.pages
                .borrow_mut()
                .retain(|kept, _| *kept < number || *kept > ends_at(&pieces[0]) / PAGE);
            return self.memory.write(pieces[0].0, pieces[0].1);
        }
        let first = pieces.iter().map(|piece| piece.0).min().unwrap_or(0);
        let last = pieces.iter().map(ends_at).max().unwrap_or(0);
        self.with(number, |page| {
            for (address, bytes) in pieces {
                page[(address % PAGE) as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            self.memory
                .write(first, &page[(first % PAGE) as usize..][..(last - first) as usize])
        })?
    }

    fn with<T>(&self, number: u64, act: impl FnOnce(&mut Vec<u8>) -> T) -> Result<T> {
        let mut pages = self.pages.borrow_mut();
        if let Some(page) = pages.get_mut(&number) {
            return Ok(act(page));
        }
        let mut page = self.memory.bytes(number * PAGE, PAGE as usize)?;
        let result = act(&mut page);
        pages.insert(number, page);
        Ok(result)
    }
}

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
            .map(|file| file.read_exact_at(&mut entry, address / kernels_page() * 8));
        matches!(read, Some(Ok(()))) && u64::from_ne_bytes(entry) & OF_FILE != 0
    }

    /// Returns whether each of the kernel's pages of a range is in memory or swapped out; true if the kernel does not report it.
    pub fn present(&self, range: Range<u64>) -> Vec<bool> {
        /// Bit 63: the page is present; bit 62: it is swapped out.
        const PRESENT_OR_SWAPPED: u64 = 3 << 62;
        let pages = range.start / kernels_page()..range.end.div_ceil(kernels_page());
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
    fn a_page_is_read_once_and_its_pieces_are_written_at_once() {
        let mut here: Vec<u8> = (0..4 * PAGE).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        let start = (here.as_ptr() as u64).next_multiple_of(PAGE);
        let first = (start - here.as_ptr() as u64) as usize;
        let own = Memory::writable(std::process::id() as i32).unwrap();
        let code = CodePages::new(&own);
        assert!(code.has(start + 100, &here[first + 100..first + 9000]).unwrap());
        assert!(!code.has(start + 4090, b"0123456789").unwrap());
        assert!(code.has(0, b"none").is_err());
        let between = here[first + 109];
        // What changes later is not seen: the process must not run meanwhile.
        here[first + 120] = b'?';
        assert!(!code.has(start + 120, b"?").unwrap());
        code.write(&[(start + 130, b"one"), (start + 110, b"two"), (start + 131, b"ther")])
            .unwrap();
        // Opaque to the compiler, as the kernel has written there.
        let here = std::hint::black_box(&mut here);
        assert_eq!(&here[first + 110..first + 113], b"two");
        assert_eq!(&here[first + 130..first + 135], b"other");
        assert_eq!(here[first + 109], between);
        assert_ne!(here[first + 120], b'?', "between them are the bytes that were read");
        assert!(code.has(start + 130, b"other").unwrap());
        // A piece across two pages is written by itself, and its pages are read anew.
        code.write(&[(start + PAGE - 2, b"edge")]).unwrap();
        assert!(code.has(start + PAGE - 2, b"edge").unwrap());
    }
}
