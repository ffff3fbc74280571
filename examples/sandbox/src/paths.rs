//! Determines the files that a system call would change.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::unistd::Pid;
use syscalls::Sysno;

use crate::call::Call;
use crate::memory::Memory;

/// The form in which a call names a file, by the positions of its arguments.
#[derive(Clone, Copy)]
enum Place {
    /// A path, relative to the working directory.
    Plain(usize),
    /// A path, relative to the directory of a descriptor.
    At(usize, usize),
    /// A descriptor.
    Descriptor(usize),
}

use Place::{At, Descriptor, Plain};

/// Returns the files that `call` would change, as absolute paths: each as it is named and, if that is a symbolic link,
/// its target as well. So the check is too strict for a call that would only change the link, and never too lenient.
pub fn changed_by(call: &Call, guest: Pid) -> io::Result<Vec<PathBuf>> {
    let mut changed = Vec::new();
    let places = places(call);
    if places.is_empty() {
        return Ok(changed);
    }
    // Opened only now, because it costs as much as the rest of a stop.
    let memory = Memory::open(guest)?;
    if opens_to_read(call, &memory)? {
        return Ok(changed);
    }
    for place in places {
        let named = name(*place, call, guest, &memory)?;
        changed.extend(std::fs::canonicalize(&named));
        changed.push(with_real_parent(&named));
    }
    Ok(changed)
}

fn places(call: &Call) -> &'static [Place] {
    #[cfg(target_arch = "x86_64")]
    match call.sysno {
        Some(
            Sysno::open
            | Sysno::creat
            | Sysno::mkdir
            | Sysno::rmdir
            | Sysno::mknod
            | Sysno::unlink
            | Sysno::chmod
            | Sysno::chown
            | Sysno::lchown
            | Sysno::utime
            | Sysno::utimes,
        ) => return &[Plain(0)],
        Some(Sysno::rename) => return &[Plain(0), Plain(1)],
        Some(Sysno::link | Sysno::symlink) => return &[Plain(1)],
        Some(Sysno::futimesat) => return &[At(0, 1)],
        _ => {}
    }
    match call.sysno {
        Some(Sysno::truncate | Sysno::setxattr | Sysno::lsetxattr | Sysno::removexattr | Sysno::lremovexattr) => {
            &[Plain(0)]
        }
        Some(
            Sysno::openat
            | Sysno::openat2
            | Sysno::mkdirat
            | Sysno::mknodat
            | Sysno::unlinkat
            | Sysno::fchmodat
            | Sysno::fchmodat2
            | Sysno::fchownat
            | Sysno::utimensat,
        ) => &[At(0, 1)],
        Some(Sysno::renameat | Sysno::renameat2) => &[At(0, 1), At(2, 3)],
        Some(Sysno::linkat) => &[At(2, 3)],
        Some(Sysno::symlinkat) => &[At(1, 2)],
        // Calls that also work on a descriptor which was opened for reading.
        Some(Sysno::fchmod | Sysno::fchown | Sysno::fsetxattr | Sysno::fremovexattr) => &[Descriptor(0)],
        _ => &[],
    }
}

/// Returns whether it is an open that neither writes nor creates.
fn opens_to_read(call: &Call, memory: &Memory) -> io::Result<bool> {
    let flags = match call.sysno {
        #[cfg(target_arch = "x86_64")]
        Some(Sysno::open) => call.args[1],
        Some(Sysno::openat) => call.args[2],
        // struct open_how begins with the flags.
        Some(Sysno::openat2) => memory.word(call.args[2])?,
        _ => return Ok(false),
    };
    let changing = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
    Ok(flags & changing as u64 == 0)
}

fn name(place: Place, call: &Call, guest: Pid, memory: &Memory) -> io::Result<PathBuf> {
    let (directory, path) = match place {
        Plain(path) => (libc::AT_FDCWD, call.args[path]),
        At(directory, path) => (call.args[directory] as i32, call.args[path]),
        Descriptor(descriptor) => (call.args[descriptor] as i32, 0),
    };
    let path = if path == 0 { Vec::new() } else { memory.string(path)? };
    let path = Path::new(OsStr::from_bytes(&path));
    if path.is_absolute() {
        return Ok(path.to_path_buf());
    }
    let start = if directory == libc::AT_FDCWD {
        format!("/proc/{guest}/cwd")
    } else {
        format!("/proc/{guest}/fd/{directory}")
    };
    // Without a path (futimens, AT_EMPTY_PATH) the call changes the descriptor's own file.
    Ok(std::fs::read_link(start)?.join(path))
}

/// Resolves symbolic links in the directory, as far as it exists, and keeps the last name.
fn with_real_parent(path: &Path) -> PathBuf {
    let mut missing = PathBuf::new();
    let mut at = path;
    while let (Some(parent), Some(last)) = (at.parent(), at.components().next_back()) {
        missing = Path::new(last.as_os_str()).join(missing);
        if let Ok(real) = std::fs::canonicalize(parent) {
            return without_dots(&real.join(missing));
        }
        at = parent;
    }
    without_dots(path)
}

fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_does_not_exist_yet_lies_in_its_real_directory() {
        let here = std::fs::canonicalize("/proc/self").unwrap();
        assert_eq!(with_real_parent(Path::new("/proc/self/new")), here.join("new"));
        assert_eq!(with_real_parent(Path::new("/proc/self/no/../new")), here.join("new"));
        assert_eq!(with_real_parent(Path::new("/")), Path::new("/"));
    }
}
