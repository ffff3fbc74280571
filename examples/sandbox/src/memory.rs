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

    /// Returns the string at `address`, without its NUL. A string longer than any path is an error.
    pub fn string(&self, address: u64) -> io::Result<Vec<u8>> {
        /// Chunks end at multiples of it. It divides the page size, so no read extends into a page that may not be
        /// mapped.
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
