//! Memory of another process, through /proc/PID/mem.

use std::fs::File;
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
    pub fn of(pid: i32) -> Result<Memory> {
        Memory::open(pid, File::options().read(true))
    }

    /// Opens the memory for reading and writing.
    pub fn writable(pid: i32) -> Result<Memory> {
        Memory::open(pid, File::options().read(true).write(true))
    }

    fn open(pid: i32, options: &std::fs::OpenOptions) -> Result<Memory> {
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
