//! The options and limits of an audit, and its progress.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Limits for one archive.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest number of bytes that come out of it.
    pub bytes: u64,
    /// Longest time to read it.
    pub time: Duration,
    /// Largest number of bytes that come out of one byte of it. The limit of gzip is 1,032.
    pub ratio: u64,
    /// Size of the largest ELF file in it that is judged; a larger one is listed as not judged.
    pub file_bytes: u64,
    /// Largest number of bytes of all names in it.
    pub name_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            bytes: 64 << 30,
            time: Duration::from_secs(600),
            ratio: 2_000,
            file_bytes: 2 << 30,
            name_bytes: 64 << 20,
        }
    }
}

/// Options of an audit.
#[derive(Clone, Copy, Debug, Default)]
pub struct AuditOptions {
    pub limits: Limits,
    /// Whether all programs are listed, including those without findings.
    pub with_programs: bool,
    /// Whether they are listed with what `--rescue` does with their system calls.
    pub with_sites: bool,
}

/// Counters of a running audit, for a progress display.
#[derive(Debug, Default)]
pub struct Progress {
    pub files: AtomicU64,
    pub bytes: AtomicU64,
}

impl Progress {
    pub(crate) fn add(&self, bytes: u64) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
