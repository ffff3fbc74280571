//! Paths as another process resolves them.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2, readlinkat};
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use crate::error::{Error, Result};
use crate::target::{HANDLE, ThreadStatus, open_path};

/// Most symbolic links in one path (include/linux/namei.h, MAXSYMLINKS).
const MOST_LINKS: u32 = 40;
/// Inode of the root directory of a procfs (include/linux/proc_ns.h).
const PROC_ROOT_INO: u64 = 1;

/// A thread's view of paths: its root and its working directory, and what it calls /proc/self.
pub struct View {
    root: OwnedFd,
    /// Link to the directory at which relative paths start.
    start: String,
    /// Its number in this process's /proc, or `self`.
    tid: String,
}

impl View {
    /// Reads the view of the thread `tid` from /proc. Relative paths start at `dirfd` (AT_FDCWD: its working directory).
    pub fn read(tid: &str, dirfd: i32) -> Result<View> {
        let start = if dirfd == libc::AT_FDCWD {
            format!("/proc/{tid}/cwd")
        } else {
            format!("/proc/{tid}/fd/{dirfd}")
        };
        Ok(View {
            root: open_path(&format!("/proc/{tid}/root"))?,
            start,
            tid: tid.to_owned(),
        })
    }

    /// Opens a path as the thread would, as a handle only (O_PATH).
    pub fn open(&self, path: &OsStr) -> Result<OwnedFd> {
        if path.is_empty() {
            return open_path(&self.start);
        }
        let start;
        let (from, resolve) = match path.as_bytes().starts_with(b"/") {
            true => (&self.root, ResolveFlag::RESOLVE_IN_ROOT),
            false => {
                start = open_path(&self.start)?;
                (&start, ResolveFlag::empty())
            }
        };
        let how = OpenHow::new().flags(HANDLE);
        let how = how.resolve(resolve | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let opened = match openat2(from, path, how) {
            // By way of /proc, which is another one for this process: links to /proc/self exist for both.
            Err(Errno::ELOOP | Errno::ENOENT | Errno::EACCES | Errno::ENOTDIR) => self.walk(path),
            opened => opened,
        };
        opened.map_err(|errno| match errno {
            Errno::ENOSYS => Error::Unsupported("this kernel has no openat2 (Linux has it since 5.6)".into()),
            _ => Error::io(path.to_string_lossy(), errno.into()),
        })
    }

    /// The same, component by component.
    fn walk(&self, path: &OsStr) -> nix::Result<OwnedFd> {
        let again = |fd: &OwnedFd| fd.try_clone().map_err(|_| Errno::EMFILE);
        let mut at = match path.as_bytes().starts_with(b"/") {
            true => again(&self.root)?,
            false => open(self.start.as_str(), HANDLE, Mode::empty())?,
        };
        let mut links = 0;
        // The last component comes first.
        let mut rest = Vec::new();
        add_components(&mut rest, path);
        while let Some(component) = rest.pop() {
            match component.as_bytes() {
                b"/" => at = again(&self.root)?,
                b"." => {}
                b".." if is_same(&fstat(&at)?, &fstat(&self.root)?) => {}
                _ => {
                    let found = open_in(&at, &component, OFlag::O_NOFOLLOW)?;
                    if fstat(&found)?.st_mode & libc::S_IFMT != libc::S_IFLNK {
                        at = found;
                        continue;
                    }
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(Errno::ELOOP);
                    }
                    at = match self.link_of_proc(&at, &component)? {
                        Some(target) => target,
                        None => {
                            add_components(&mut rest, &readlinkat(&found, "")?);
                            continue;
                        }
                    };
                }
            }
        }
        Ok(at)
    }

    /// Follows a link in a procfs that is not its text: one of a process, or one to the process that asks. `None`: it is
    /// its text.
    fn link_of_proc(&self, directory: &OwnedFd, name: &OsStr) -> nix::Result<Option<OwnedFd>> {
        if fstatfs(directory)?.filesystem_type() != PROC_SUPER_MAGIC {
            return Ok(None);
        }
        let process = || Some(format!("/proc/{}", ThreadStatus::read(&self.tid).ok()?.group));
        let own = match (name.as_bytes(), self.tid.as_str()) {
            _ if fstat(directory)?.st_ino != PROC_ROOT_INO => {
                return open_in(directory, name, OFlag::empty()).map(Some);
            }
            (b"self", _) => process(),
            (b"thread-self", "self") => Some("/proc/thread-self".to_owned()),
            (b"thread-self", tid) => process().map(|process| format!("{process}/task/{tid}")),
            _ => return Ok(None),
        };
        own.and_then(|own| open_path(&own).ok()).map(Some).ok_or(Errno::ENOENT)
    }
}

fn open_in(directory: &OwnedFd, name: &OsStr, flags: OFlag) -> nix::Result<OwnedFd> {
    openat2(directory, name, OpenHow::new().flags(HANDLE | flags))
}

fn is_same(one: &FileStat, other: &FileStat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Adds the components of a path, the last one first; `/` stands for the root.
fn add_components(rest: &mut Vec<OsString>, path: &OsStr) {
    let components = path.as_bytes().split(|byte| *byte == b'/').rev();
    let components = components.filter(|component| !component.is_empty());
    rest.extend(components.map(|component| OsStr::from_bytes(component).to_owned()));
    if path.as_bytes().starts_with(b"/") {
        rest.push("/".into());
    }
}
