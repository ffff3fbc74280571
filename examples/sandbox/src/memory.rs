//! The guest's memory, while it is stopped.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::unistd::Pid;

/// Accesses memory through /proc/PID/mem, which can also write mappings without write permission.
pub struct Memory(File);

impl Memory {
    /// Opens the memory of one process; it does not stay valid across an exec.
    pub fn open(guest: Pid) -> io::Result<Memory> {
        let path = format!("/proc/{guest}/mem");
        Ok(Memory(File::options().read(true).write(true).open(path)?))
    }

    /// Fills `bytes` from `address`.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, address)
    }

    /// Writes `bytes` to `address`.
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, address)
    }

    /// Reads one word.
    pub fn word(&self, address: u64) -> io::Result<u64> {
        let mut word = [0; 8];
        self.read(address, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }
}
