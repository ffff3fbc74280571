//! Opens the files of an audit.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file. Does not block if it is something else by now.
pub(crate) fn open(path: &Path) -> std::io::Result<(File, Metadata)> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY)
        .open(path)?;
    let meta = file.metadata()?;
    Ok((file, meta))
}

/// Reads a whole small file.
pub(crate) fn read_small(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let (file, meta) = open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    if !meta.is_file() || meta.len() > most {
        return Err(format!("{}: not a file, or larger than {most} bytes", path.display()));
    }
    let mut bytes = Vec::new();
    file.take(most)
        .read_to_end(&mut bytes)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(bytes)
}
