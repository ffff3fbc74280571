//! Files that other processes read while they are written.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::FromRawFd;
use std::path::{Path, PathBuf};

use crate::output;

/// Replaces a file by `contents`, completely or not at all; a symbolic link keeps pointing to it. Other kinds of files
/// (a pipe, a device, any descriptor of this process) are written to. The error names what failed.
pub fn replace(path: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let contents = contents.as_ref();
    // The descriptor may be a file without a name: replacing it would replace the link.
    if let Some(fd) = descriptor_at(path) {
        return descriptor(fd)?.write_all(contents);
    }
    // Through links: else a link would be replaced by a file, and readers of its target would still read the old
    // contents.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(path).is_ok_and(|is| !is.is_file() && !is.is_dir()) {
        return File::options().write(true).open(path)?.write_all(contents);
    }
    let (mut file, beside) = create_beside(path)?;
    let written = file.write_all(contents).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Opens a file anew for writing.
pub fn create(path: &Path) -> io::Result<File> {
    match descriptor_at(path) {
        Some(fd) => descriptor(fd),
        None => File::create(path),
    }
}

/// Duplicates a descriptor of this process.
fn descriptor(fd: i32) -> io::Result<File> {
    if output::was_closed(fd) {
        return Err(io::Error::other(format!("descriptor {fd} is closed")));
    }
    // SAFETY: fcntl with integers; the result is a new descriptor.
    match unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: fcntl has just returned this descriptor, and nothing else owns it.
        new => Ok(unsafe { File::from_raw_fd(new) }),
    }
}

/// Returns the descriptor of this process that a name such as /dev/stdout points to.
fn descriptor_at(path: &Path) -> Option<i32> {
    /// Limit of links, the kernel's own (path_resolution(7)).
    const MOST_LINKS: u32 = 40;
    let descriptors = fs::canonicalize("/proc/self/fd").ok()?;
    let mut path = std::path::absolute(path).ok()?;
    for _ in 0..MOST_LINKS {
        let directory = fs::canonicalize(path.parent()?).ok()?;
        if directory == descriptors {
            return path.file_name()?.to_str()?.parse().ok();
        }
        path = directory.join(fs::read_link(&path).ok()?);
    }
    None
}

/// Creates a file in the same directory: a rename is atomic within one file system only. Never opens an existing file:
/// in a directory where every user can write, another user may have put a link in its place.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "this is no file's name"))?;
    let mut attempt = 0;
    loop {
        // The name ends in no suffix that a reader looks for.
        let mut beside = name.to_owned();
        beside.push(format!(".{}-{attempt}", std::process::id()));
        let beside = path.with_file_name(beside);
        match File::create_new(&beside) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < ATTEMPTS => attempt += 1,
            file => return file.map(|file| (file, beside)),
        }
    }
}

/// Limit of attempts: each fastpath of the same process id that was killed at the wrong moment leaves a file behind.
const ATTEMPTS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_is_left_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.prom");
        for contents in ["old\n", "new\n"] {
            replace(&file, contents).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), contents);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        let lost = directory.path().join("none/a.prom");
        assert!(replace(&lost, "x").is_err());
        for no_file in [Path::new("/"), directory.path()] {
            assert!(replace(no_file, "x").is_err());
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_keeps_pointing_to_the_replaced_file() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        replace(&link, "new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn a_device_is_written_to_and_stays_one() {
        use std::os::unix::fs::FileTypeExt;
        let full = Path::new("/dev/full");
        let error = replace(full, "x").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
        assert!(fs::metadata(full).unwrap().file_type().is_char_device());
        replace(Path::new("/dev/null"), "x").unwrap();
    }

    #[test]
    fn names_of_descriptors_are_recognized() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/dev/stdout", &link).unwrap();
        for (name, fd) in [
            ("/proc/self/fd/0", Some(0)),
            ("/dev/stdout", Some(1)),
            ("/dev/fd/2", Some(2)),
            (link.to_str().unwrap(), Some(1)),
            ("/dev/null", None),
            ("/nonexistent/1", None),
        ] {
            assert_eq!(descriptor_at(Path::new(name)), fd, "{name}");
        }
    }

    #[test]
    fn a_descriptor_is_written_to_and_its_name_stays_even_if_its_file_has_none() {
        use std::io::{Read, Seek};
        use std::os::fd::AsRawFd;
        let mut file = tempfile::tempfile().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(format!("/proc/self/fd/{}", file.as_raw_fd()), &link).unwrap();
        replace(&link, "one ").unwrap();
        create(&link).unwrap().write_all(b"two").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one two");
    }

    #[test]
    fn a_link_at_the_temporary_name_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (file, victim) = (directory.path().join("file"), directory.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        let laid = directory.path().join(format!("file.{}-0", std::process::id()));
        std::os::unix::fs::symlink(&victim, laid).unwrap();
        replace(&file, "new").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    }
}
