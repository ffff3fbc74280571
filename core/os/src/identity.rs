//! What identifies a file, by statx(2).

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What identifies a file, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
    /// Time of the last change, of what it contains or of who may do what with it, in ns.
    pub changed_ns: i128,
    pub size: u64,
    mode: u16,
}

impl Identity {
    /// Returns the identity of an open file or a handle (O_PATH), as the kernel knows it: the server of a file system is
    /// not asked.
    pub fn read(file: impl AsFd) -> io::Result<Identity> {
        Identity::statx(file.as_fd().as_raw_fd(), c"", libc::AT_EMPTY_PATH)
    }

    /// Returns the identity of the file to which a link of /proc leads, which is not opened.
    pub fn of_link(link: &Path) -> io::Result<Identity> {
        Identity::statx(libc::AT_FDCWD, &CString::new(link.as_os_str().as_bytes())?, 0)
    }

    fn statx(fd: i32, path: &CStr, flags: i32) -> io::Result<Identity> {
        let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
        let flags = flags | libc::AT_STATX_DONT_SYNC;
        // SAFETY: a C string, and room for the result.
        let result = unsafe { libc::statx(fd, path.as_ptr(), flags, libc::STATX_BASIC_STATS, found.as_mut_ptr()) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: statx(2) has filled it in; zeroes are valid, too.
        let found = unsafe { found.assume_init() };
        Ok(Identity {
            device: libc::makedev(found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            changed_ns: i128::from(found.stx_ctime.tv_sec) * 1_000_000_000 + i128::from(found.stx_ctime.tv_nsec),
            size: found.stx_size,
            mode: found.stx_mode,
        })
    }

    /// Returns whether a disk has it: network file systems, FUSE and those in memory have devices of no driver, and are
    /// numbered without a major number. (A file system of FUSE on a disk is mounted by root.)
    pub(crate) fn is_on_disk(&self) -> bool {
        libc::major(self.device) != 0
    }

    pub(crate) fn is_regular(&self) -> bool {
        u32::from(self.mode) & libc::S_IFMT == libc::S_IFREG
    }
}
