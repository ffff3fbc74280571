//! The page as a sealed memfd: writable here, and read-only for the processes that get a descriptor.

use std::ffi::CStr;
use std::fs::{File, Permissions};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::ptr::NonNull;

use fastpath_page::layout::Header;
use fastpath_page::{MEMFD_NAME, PAGE_SIZE, Page, writer::Writer};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;

/// F_SEAL_FUTURE_WRITE, include/uapi/linux/fcntl.h (Linux 5.1).
const F_SEAL_FUTURE_WRITE: libc::c_int = 0x10;
/// F_SEAL_EXEC, include/uapi/linux/fcntl.h (Linux 6.3).
const F_SEAL_EXEC: libc::c_int = 0x20;

/// Seals against truncation, which would make a reader fault, and against further seals.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
/// Mode of the file: not even its owner opens it for writing by accident.
const OWNER_ONLY: u32 = 0o400;
/// The file's mode while [`SharedPage::adopt`] opens it for writing. A publisher that is killed in between leaves it.
const TAKING_UP: u32 = 0o600;

/// Offset of the page's keeper.
const KEEPER: usize = offset_of!(Page, header) + offset_of!(Header, keeper);

/// Reason why a file is refused as a page.
#[derive(Debug, thiserror::Error)]
pub enum NotAPage {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It was not made by a publisher like this process.
    #[error("it is not a page that this publisher made, or one before it in its place")]
    Foreign,
    /// Another layout version, or unfinished.
    #[error(transparent)]
    Contents(#[from] fastpath_page::PageError),
}

/// A page that this process writes.
pub struct SharedPage {
    map: NonNull<u8>,
    file: File,
}

// SAFETY: the page is only accessed through the atomics of its layout.
unsafe impl Send for SharedPage {}
// SAFETY: as above.
unsafe impl Sync for SharedPage {}

impl SharedPage {
    /// Makes an unseeded page. From here on no process can map it writable, shrink it or unseal it.
    pub fn create() -> io::Result<SharedPage> {
        SharedPage::create_as(MEMFD_NAME, None)
    }

    /// Makes an unseeded page, of memory with this name. With a keeper, it outlives this process: another process of this
    /// user with the same keeper can [`SharedPage::adopt`] it. Instead of a seal the file's mode keeps others from
    /// writing: only its owner may open it, and others get descriptors for reading.
    pub fn create_as(name: &CStr, keeper: Option<u64>) -> io::Result<SharedPage> {
        let file = memory(name)?;
        let Some(keeper) = keeper else {
            let page = SharedPage::map(file)?;
            seal(&page.file, SEALS | F_SEAL_FUTURE_WRITE)?;
            return Ok(page);
        };
        lock(&file)?;
        file.set_permissions(Permissions::from_mode(OWNER_ONLY))?;
        seal(&file, SEALS)?;
        let page = SharedPage::map(file)?;
        page.writer().set_keeper(keeper);
        Ok(page)
    }

    /// Takes over a page with a keeper that lost its publisher. `file` is open for reading.
    /// A page of another keeper is left unchanged: that keeper's next publisher may take it over.
    pub fn adopt(file: &File, keeper: u64) -> Result<SharedPage, NotAPage> {
        let about = file.metadata()?;
        // SAFETY: fcntl without an argument accesses no memory.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        // SAFETY: geteuid accesses no memory and always succeeds.
        let is_own = about.uid() == unsafe { libc::geteuid() };
        // Where vm.memfd_noexec requires it, the kernel also seals memory against being executed (Linux 6.3).
        let seals = seals & !F_SEAL_EXEC;
        let is_private = [OWNER_ONLY, TAKING_UP].contains(&(about.mode() & 0o7777));
        if !is_own || seals != SEALS || about.len() != PAGE_SIZE as u64 || !is_private {
            return Err(NotAPage::Foreign);
        }
        // Before the file is locked, because another keeper's next publisher may be trying it as well.
        let mut found = [0; size_of::<u64>()];
        file.read_exact_at(&mut found, KEEPER as u64)?;
        if u64::from_ne_bytes(found) != keeper {
            return Err(NotAPage::Foreign);
        }
        file.set_permissions(Permissions::from_mode(TAKING_UP))?;
        // Another process may hold a lease on it (fcntl(2), F_SETLEASE), which must not block.
        let writable = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(fastpath_os::path_of(file));
        file.set_permissions(Permissions::from_mode(OWNER_ONLY))?;
        let writable = writable?;
        lock(&writable)?;
        let page = SharedPage::map(writable)?;
        page.page().check()?;
        Ok(page)
    }

    fn map(file: File) -> io::Result<SharedPage> {
        // SAFETY: a new shared mapping of a file of this size.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let map = NonNull::new(map.cast()).ok_or_else(|| io::Error::from(Errno::EFAULT))?;
        Ok(SharedPage { map, file })
    }

    /// Returns a read-only descriptor.
    pub fn reader(&self) -> io::Result<OwnedFd> {
        Ok(nix::fcntl::open(
            fastpath_os::path_of(&self.file).as_str(),
            OFlag::O_RDONLY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?)
    }

    /// Returns the memfd, as its publisher has it open.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns a writer. The caller ensures that only one is used at a time.
    pub fn writer(&self) -> Writer<'_> {
        // SAFETY: mapped, page-aligned and writable for as long as `self` lives; other processes can map it read-only.
        unsafe { Writer::from_ptr(self.map) }
    }

    /// Returns the page for reading.
    pub fn page(&self) -> &fastpath_page::Page {
        // SAFETY: as in `writer`; a page is made of atomics and valid in any bit pattern.
        unsafe { self.map.cast().as_ref() }
    }
}

/// Returns a memfd of a page's size.
fn memory(name: &CStr) -> io::Result<File> {
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    nix::unistd::ftruncate(&fd, PAGE_SIZE as libc::off_t)?;
    Ok(fd.into())
}

/// Locks the file, so that there is one writer at a time, until its process closes the file. Readers have another open
/// file description.
fn lock(file: &File) -> io::Result<()> {
    // SAFETY: flock of an open descriptor accesses no memory.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn seal(file: &File, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: fcntl with an int argument accesses no memory.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
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

    const KEEPER_HERE: u64 = 7;

    #[test]
    fn nobody_else_can_write_shrink_or_unseal_the_page() {
        let page = SharedPage::create().unwrap();
        let path = fastpath_os::path_of(&page.file);
        let again = File::options().read(true).write(true).open(path).unwrap();
        let map = |protection| {
            // SAFETY: a new mapping, which is not accessed.
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
        // SAFETY: fcntl with an int argument accesses no memory.
        let sealed = unsafe { libc::fcntl(again.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
        assert_eq!(sealed, -1);
    }

    /// Takes over the page, with retries: a child that another test forks shares the lock of the page's publisher until
    /// its exec, or its end.
    fn adopted_at_last(reader: &File) -> Option<SharedPage> {
        let attempts = (0..60_000).map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            SharedPage::adopt(reader, KEEPER_HERE).ok()
        });
        attempts.flatten().next()
    }

    #[test]
    fn a_page_outlives_its_publisher_and_another_continues_it() {
        let page = SharedPage::create_as(MEMFD_NAME, Some(KEEPER_HERE)).unwrap();
        page.writer().init(&fastpath_page::Init::default());
        page.writer().withdraw(fastpath_page::Reason::Warp, || 0);
        let reader = File::from(page.reader().unwrap());
        drop(page);
        // Another keeper's publisher leaves it unchanged and unlocked.
        let by_another = SharedPage::adopt(&reader, KEEPER_HERE + 1);
        assert!(matches!(by_another, Err(NotAPage::Foreign)));
        let page = adopted_at_last(&reader).unwrap();
        assert_eq!(
            fastpath_page::Reader::new(page.page()).stats().withdrawn_reason,
            Some(fastpath_page::Reason::Warp)
        );
        assert_eq!(reader.metadata().unwrap().mode() & 0o7777, OWNER_ONLY);
    }

    #[test]
    fn a_page_sealed_against_execution_is_adopted_too() {
        let page = SharedPage::create_as(MEMFD_NAME, Some(KEEPER_HERE)).unwrap();
        page.writer().init(&fastpath_page::Init::default());
        // As under vm.memfd_noexec=1; the page's own seals keep others from being added.
        let file: File = memfd_create(MEMFD_NAME, MFdFlags::MFD_CLOEXEC | MFdFlags::from_bits_retain(8))
            .unwrap()
            .into();
        let bytes = std::fs::read(fastpath_os::path_of(&page.file)).unwrap();
        file.set_len(PAGE_SIZE as u64).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
        file.set_permissions(Permissions::from_mode(OWNER_ONLY)).unwrap();
        seal(&file, SEALS).unwrap();
        let reader = File::open(fastpath_os::path_of(&file)).unwrap();
        drop(file);
        assert!(adopted_at_last(&reader).is_some());
    }

    #[test]
    fn a_page_is_adopted_after_an_adoption_was_killed() {
        let page = SharedPage::create_as(MEMFD_NAME, Some(KEEPER_HERE)).unwrap();
        page.writer().init(&fastpath_page::Init::default());
        let reader = File::from(page.reader().unwrap());
        page.file.set_permissions(Permissions::from_mode(TAKING_UP)).unwrap();
        drop(page);
        assert!(adopted_at_last(&reader).is_some());
        assert_eq!(reader.metadata().unwrap().mode() & 0o7777, OWNER_ONLY);
    }

    #[test]
    fn a_page_that_another_publisher_keeps_is_not_taken_up() {
        let page = SharedPage::create_as(MEMFD_NAME, Some(KEEPER_HERE)).unwrap();
        page.writer().init(&fastpath_page::Init::default());
        let reader = File::from(page.reader().unwrap());
        assert!(matches!(SharedPage::adopt(&reader, KEEPER_HERE), Err(NotAPage::Io(_))));
        drop(page);
        assert!(adopted_at_last(&reader).is_some());
    }

    #[test]
    fn what_no_publisher_made_is_not_adopted() {
        let sealed_otherwise = SharedPage::create().unwrap();
        sealed_otherwise.writer().init(&fastpath_page::Init::default());
        let unfinished = SharedPage::create_as(MEMFD_NAME, Some(KEEPER_HERE)).unwrap();
        let open_to_others = SharedPage::create_as(MEMFD_NAME, Some(KEEPER_HERE)).unwrap();
        open_to_others.writer().init(&fastpath_page::Init::default());
        open_to_others
            .file
            .set_permissions(Permissions::from_mode(0o644))
            .unwrap();
        for page in [sealed_otherwise, unfinished, open_to_others] {
            let reader = File::from(page.reader().unwrap());
            assert!(SharedPage::adopt(&reader, KEEPER_HERE).is_err());
        }
        assert!(SharedPage::adopt(&memory(MEMFD_NAME).unwrap(), KEEPER_HERE).is_err());
    }

    #[test]
    fn another_user_with_a_readers_descriptor_cannot_write_the_page() {
        if crate::skip::needs_root().is_none() {
            return;
        }
        let page = SharedPage::create_as(MEMFD_NAME, Some(KEEPER_HERE)).unwrap();
        let reader = page.reader().unwrap();
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above; the path ends with a 0 and outlives the call.
            unsafe {
                libc::setresgid(65534, 65534, 65534);
                libc::setresuid(65534, 65534, 65534);
                // A process that changed its user may not look at /proc/self before this.
                libc::prctl(libc::PR_SET_DUMPABLE, 1);
                let write = libc::fchmod(reader.as_raw_fd(), 0o600) == 0
                    || libc::mmap(
                        std::ptr::null_mut(),
                        PAGE_SIZE,
                        libc::PROT_WRITE,
                        libc::MAP_SHARED,
                        reader.as_raw_fd(),
                        0,
                    ) != libc::MAP_FAILED
                    || File::options().write(true).open(fastpath_os::path_of(&reader)).is_ok();
                libc::_exit(i32::from(write))
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child just made.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0, "another user could write the page");
    }
}
