//! Files that other processes or users name: the one way in which they are opened and read.
//!
//! Whoever owns such a file may truncate or replace it, put a FIFO, a device or a link in its place, or serve it himself
//! and never answer (FUSE). So it is opened beneath the root of the process that names it, only if it is regular, without
//! waiting, and never mapped: it is read in bounded pieces. Where this process must go on, a [`Worker`] reads what is not on a
//! disk ([`Reader`]).

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Mapping;
pub use crate::identity::Identity;
use crate::worker::Worker;

/// Opens a path of this process's as a handle only (O_PATH).
pub fn handle(path: &Path) -> io::Result<OwnedFd> {
    let path = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
    Ok(path.into())
}

/// Opens a path as a handle only, as a process with that root resolves it. Links of /proc are not followed: they lead
/// out of the root.
pub fn handle_beneath(root: &Path, path: &Path) -> io::Result<OwnedFd> {
    let root = handle(root)?;
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: zeroes are valid for the structure, which has only numbers.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: a C string, and a structure with its size.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            root.as_raw_fd(),
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    };
    match fd {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: openat2 has just returned this descriptor.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
    }
}

/// Returns the link to the file that is mapped in a process, whose directory in /proc is `directory`. It needs a privilege,
/// and leads to the file even if that has another name, or none.
pub fn link_of_mapped(directory: &Path, mapping: &Mapping) -> PathBuf {
    directory.join(format!("map_files/{:x}-{:x}", mapping.start, mapping.end))
}

/// Returns a handle of the file that is mapped in a process, whose directory in /proc is `directory`. It fails if the
/// file's name refers to another one by now.
pub fn handle_of_mapped(directory: &Path, mapping: &Mapping) -> io::Result<OwnedFd> {
    let found = match handle(&link_of_mapped(directory, mapping)) {
        Ok(found) => found,
        Err(_) => handle_beneath(&directory.join("root"), Path::new(&mapping.name))?,
    };
    match Identity::read(&found)?.inode == mapping.inode {
        true => Ok(found),
        false => Err(io::Error::other("its name is another file's by now")),
    }
}

/// Opens a regular file by its handle for reading, and refuses every other kind: opening a FIFO waits for its other end,
/// and opening a device may trigger it. O_NONBLOCK keeps a lease of another process (fcntl(2), F_SETLEASE) from blocking
/// this one.
pub fn open(handle: impl AsFd) -> io::Result<File> {
    if !Identity::read(&handle)?.is_regular() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    options.open(crate::path_of(&handle.as_fd().as_raw_fd()))
}

/// Most bytes that are read at once.
const PIECE: usize = 4 << 20;
/// Bytes that are read at once, and kept, where fewer are asked for: a parser asks for many small pieces that lie side by
/// side, and the worker's answer to each would take as long as to read all of them.
const BLOCK: usize = 64 << 10;

/// An open foreign file.
pub struct Reader {
    source: Source,
    until: Instant,
    left: u64,
    at: u64,
    length: u64,
    /// Blocks by their offsets.
    blocks: HashMap<u64, Vec<u8>>,
}

enum Source {
    Worker(Worker),
    /// On a disk, or where no process can be started (RLIMIT_NPROC, pids.max).
    Here(File),
}

impl Reader {
    /// Opens the file of a handle. At most `most` bytes are read, and until `timeout` is over. A file on a disk is read in
    /// this process: the kernel reads it in the same way when a program executes it. A worker reads every other file.
    pub fn open(handle: BorrowedFd<'_>, most: u64, timeout: Duration) -> io::Result<Reader> {
        if Identity::read(handle)?.is_on_disk() {
            return Reader::new(Source::Here(open(handle)?), most, timeout);
        }
        let fd = handle.as_raw_fd();
        // SAFETY: the child keeps this descriptor open.
        let open_there = move || open(unsafe { BorrowedFd::borrow_raw(fd) });
        Reader::start(&[fd], open_there, most, timeout)
    }

    /// Opens the file that `open` returns, in a worker.
    pub fn start(
        keeps: &[i32],
        open: impl Fn() -> io::Result<File>,
        most: u64,
        timeout: Duration,
    ) -> io::Result<Reader> {
        let mut file = None;
        let worker = Worker::start(keeps, |[offset, size]| {
            let answer = answer(&mut file, &open, offset, size);
            answer.unwrap_or_else(|error| error.raw_os_error().unwrap_or(libc::EINVAL).to_ne_bytes().to_vec())
        });
        let source = match worker {
            Ok(worker) => Source::Worker(worker),
            Err(_) => Source::Here(open()?),
        };
        Reader::new(source, most, timeout)
    }

    fn new(source: Source, most: u64, timeout: Duration) -> io::Result<Reader> {
        let mut reader = Reader {
            source,
            until: Instant::now() + timeout,
            left: most,
            at: 0,
            length: 0,
            blocks: HashMap::new(),
        };
        reader.length = match &reader.source {
            Source::Here(file) => Identity::read(file)?.size,
            Source::Worker(_) => {
                let mut length = [0; size_of::<u64>()];
                reader.ask(0, 0, &mut length)?;
                u64::from_ne_bytes(length)
            }
        };
        Ok(reader)
    }

    /// Returns its size in bytes when it was opened.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Reads at most `size` bytes at `offset`, and returns how many.
    fn ask(&mut self, offset: u64, size: u64, to: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        let worker = match &mut self.source {
            Source::Worker(worker) => worker,
            Source::Here(_) if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
            Source::Here(file) => return file.read_at(&mut to[..size as usize], offset),
        };
        let answer = worker.ask([offset, size], left)?;
        let Some((error, bytes)) = answer.split_first_chunk() else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        match i32::from_ne_bytes(*error) {
            0 => Ok(copy(bytes, to)),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Reads into a buffer, which counts.
    fn fetch(&mut self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        let left = self.left.checked_sub(to.len() as u64);
        self.left = left.ok_or_else(|| io::Error::other("more of it would be read than may be"))?;
        self.ask(offset, to.len() as u64, to)
    }

    /// Returns the whole file.
    ///
    /// # Errors
    /// Fails if it is longer than what may be read.
    pub fn contents(&mut self) -> io::Result<Vec<u8>> {
        if self.length > self.left {
            return Err(io::Error::other(format!("it is larger than {} MiB", self.left >> 20)));
        }
        let mut bytes = Vec::new();
        let has_room = bytes.try_reserve_exact(self.length as usize);
        has_room.map_err(|_| io::ErrorKind::OutOfMemory)?;
        bytes.resize(self.length as usize, 0);
        self.at = 0;
        io::Read::read_exact(self, &mut bytes)?;
        Ok(bytes)
    }
}

/// Reads in the worker: an errno, 0 for none, and the bytes. Without a size, it opens the file, and answers with its
/// length.
fn answer(
    file: &mut Option<File>,
    open: &impl Fn() -> io::Result<File>,
    offset: u64,
    size: u64,
) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size_of::<i32>()];
    let Some(file) = file.as_ref().filter(|_| size > 0) else {
        let opened = open()?;
        bytes.extend(Identity::read(&opened)?.size.to_ne_bytes());
        *file = Some(opened);
        return Ok(bytes);
    };
    bytes.resize(size_of::<i32>() + size.min(PIECE as u64) as usize, 0);
    let read = file.read_at(&mut bytes[size_of::<i32>()..], offset)?;
    bytes.truncate(size_of::<i32>() + read);
    Ok(bytes)
}

impl io::Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let size = buffer.len().min(PIECE);
        let read = if size >= BLOCK {
            self.fetch(self.at, &mut buffer[..size])?
        } else {
            let start = self.at / BLOCK as u64 * BLOCK as u64;
            if !self.blocks.contains_key(&start) {
                let mut block = vec![0; BLOCK];
                let read = self.fetch(start, &mut block)?;
                block.truncate(read);
                self.blocks.insert(start, block);
            }
            let block = &self.blocks[&start];
            copy(block.get((self.at - start) as usize..).unwrap_or_default(), buffer)
        };
        self.at += read as u64;
        Ok(read)
    }
}

/// Copies as much as there is room for, and returns how much that is.
fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let count = from.len().min(to.len());
    to[..count].copy_from_slice(&from[..count]);
    count
}

impl io::Seek for Reader {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.at = match to {
            io::SeekFrom::Start(at) => at,
            io::SeekFrom::End(by) => self.length.saturating_add_signed(by),
            io::SeekFrom::Current(by) => self.at.saturating_add_signed(by),
        };
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Tree {
            let tree = Tree(std::env::temp_dir().join(format!("fastpath-foreign-{name}-{}", std::process::id())));
            std::fs::create_dir_all(tree.0.join("root/lib")).unwrap();
            std::fs::write(tree.0.join("root/lib/file"), "inside").unwrap();
            std::fs::write(tree.0.join("secret"), "outside").unwrap();
            tree
        }

        fn read(&self, path: &str) -> io::Result<String> {
            let mut text = String::new();
            let handle = handle_beneath(&self.0.join("root"), Path::new(path))?;
            open(handle)?.read_to_string(&mut text)?;
            Ok(text)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_is_opened_beneath_its_root_and_links_do_not_lead_out_of_it() {
        let tree = Tree::new("links");
        let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, tree.0.join("root").join(name)).unwrap();
        link(Path::new("/lib/file"), "absolute");
        link(&tree.0.join("secret"), "out");
        link(Path::new("../../secret"), "up");
        link(Path::new("/proc/self/fd/0"), "magic");
        for path in ["/lib/file", "/absolute", "/../lib/file"] {
            assert_eq!(tree.read(path).unwrap(), "inside", "{path}");
        }
        for path in ["/out", "/up", "/magic", "/../secret"] {
            assert!(tree.read(path).is_err(), "{path}");
        }
    }

    #[test]
    fn what_is_not_a_regular_file_is_not_opened() {
        let tree = Tree::new("fifo");
        let fifo = CString::new(tree.0.join("root/fifo").as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        for path in ["/fifo", "/lib"] {
            assert_eq!(tree.read(path).unwrap_err().to_string(), "not a regular file");
        }
        assert!(open(handle(Path::new("/dev/null")).unwrap()).is_err());
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_read_ends_and_no_more_is_read_than_may_be() {
        let tree = Tree::new("shrinks");
        let path = tree.0.join("file");
        std::fs::write(&path, vec![7; 3 * PIECE]).unwrap();
        let handle = handle(&path).unwrap();
        let start = |most| Reader::open(handle.as_fd(), most, Duration::from_secs(20)).unwrap();
        assert_eq!(start(u64::MAX).contents().unwrap(), vec![7; 3 * PIECE]);
        assert!(start(PIECE as u64).contents().is_err());
        let mut reader = start(u64::MAX);
        File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
        assert_eq!(reader.length(), 3 * PIECE as u64);
        assert!(reader.contents().is_err());
        assert_eq!(start(u64::MAX).contents().unwrap().len(), 100);
    }

    #[test]
    fn a_file_that_does_not_answer_is_given_up() {
        let begun = Instant::now();
        let forever = || {
            std::thread::sleep(Duration::from_secs(60));
            Err(io::ErrorKind::Other.into())
        };
        let late = Reader::start(&[], forever, 1, Duration::from_millis(50)).err().unwrap();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
