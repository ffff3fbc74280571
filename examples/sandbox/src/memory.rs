//! The guest's memory, while it is stopped.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::unistd::Pid;

/// Reads and writes through /proc/PID/mem: what is mapped without write permission can be written as well.
pub struct Memory(File);

impl Memory {
    /// The memory of one process; not to be kept across an exec.
    pub fn of(guest: Pid) -> io::Result<Memory> {
        let path = format!("/proc/{guest}/mem");
        Ok(Memory(File::options().read(true).write(true).open(path)?))
    }

    /// Fills `bytes` from `address`.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, address)
    }

    /// Puts `bytes` at `address`.
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, address)
    }

    /// One word.
    pub fn word(&self, address: u64) -> io::Result<u64> {
        let mut word = [0; 8];
        self.read(address, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// The string at `address`, without its NUL. Longer than any path is an error.
    pub fn string(&self, address: u64) -> io::Result<Vec<u8>> {
        /// No string is read across the end of a page that may be the last.
        const CHUNK: u64 = 256;
        let mut string = Vec::new();
        while string.len() < libc::PATH_MAX as usize {
            let at = address + string.len() as u64;
            let mut chunk = [0; CHUNK as usize];
            let chunk = &mut chunk[..(CHUNK - at % CHUNK) as usize];
            self.read(at, chunk)?;
            if let Some(end) = chunk.iter().position(|byte| *byte == 0) {
                string.extend_from_slice(&chunk[..end]);
                return Ok(string);
            }
            string.extend_from_slice(chunk);
        }
        Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG))
    }
}
