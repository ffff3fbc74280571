//! The page as a sealed memfd: written here, only read by those it is given to.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use fastpath_page::{PAGE_SIZE, writer::Writer};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;

/// F_SEAL_FUTURE_WRITE, include/uapi/linux/fcntl.h (Linux 5.1).
const F_SEAL_FUTURE_WRITE: libc::c_int = 0x10;

/// A page that this process writes.
pub struct SharedPage {
    map: NonNull<u8>,
    file: File,
}

// SAFETY: the page is only touched through the atomics of its layout.
unsafe impl Send for SharedPage {}
// SAFETY: as above.
unsafe impl Sync for SharedPage {}

impl SharedPage {
    /// Makes an unseeded page. From here on nobody can map it writable, shrink it or unseal it.
    pub fn create() -> io::Result<SharedPage> {
        let fd = memfd_create(c"fastpath-page", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        nix::unistd::ftruncate(&fd, PAGE_SIZE as i64)?;
        // SAFETY: a fresh shared mapping of a file of this size.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
        // SAFETY: fcntl with an int argument.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let map = NonNull::new(map.cast()).ok_or_else(|| io::Error::from(Errno::EFAULT))?;
        Ok(SharedPage { map, file: fd.into() })
    }

    /// A descriptor for those who only read.
    pub fn reader(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(nix::fcntl::open(
            path.as_str(),
            OFlag::O_RDONLY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?)
    }

    /// A writer. The caller sees to it that only one is used.
    pub fn writer(&self) -> Writer<'_> {
        // SAFETY: mapped, page-aligned and writable for as long as `self` lives; other processes can map it read-only.
        unsafe { Writer::from_ptr(self.map) }
    }

    /// The page for reading.
    pub fn page(&self) -> &fastpath_page::Page {
        // SAFETY: as in `writer`; a page is made of atomics and valid in any bit pattern.
        unsafe { self.map.cast().as_ref() }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `create`; the borrows that `writer` and `page` gave end with `self`.
        unsafe { libc::munmap(self.map.as_ptr().cast(), PAGE_SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_can_write_shrink_or_unseal_the_page() {
        let page = SharedPage::create().unwrap();
        let path = format!("/proc/self/fd/{}", page.file.as_raw_fd());
        let again = File::options().read(true).write(true).open(path).unwrap();
        let map = |protection| {
            // SAFETY: a fresh mapping, not used.
            unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    PAGE_SIZE,
                    protection,
                    libc::MAP_SHARED,
                    again.as_raw_fd(),
                    0,
                )
            }
        };
        assert_eq!(map(libc::PROT_READ | libc::PROT_WRITE), libc::MAP_FAILED);
        assert_ne!(map(libc::PROT_READ), libc::MAP_FAILED);
        assert!(again.set_len(0).is_err());
        assert!(std::io::Write::write(&mut &again, b"x").is_err());
        // SAFETY: fcntl with an int argument.
        let sealed = unsafe { libc::fcntl(again.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
        assert_eq!(sealed, -1);
    }
}
