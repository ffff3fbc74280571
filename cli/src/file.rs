//! Files that other processes read while they are written, and files from other hosts.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, FcntlArg, OFlag, fcntl, open, openat, readlinkat, renameat};
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::output;

/// Limit of links, the kernel's own (path_resolution(7)).
const MOST_LINKS: u32 = 40;

/// Replaces a file by `contents`, completely or not at all; a symbolic link keeps pointing to it. Other kinds of files
/// (a pipe, a device, any descriptor of this process) are written to. A link of another user is not followed: in /tmp,
/// it could point to any file of this user. The error names what failed.
pub fn replace(path: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let contents = contents.as_ref();
    // The descriptor may be a file without a name: replacing it would replace the link.
    if let Some(fd) = descriptor_at(path) {
        return descriptor(fd)?.write_all(contents);
    }
    // Through links: else a link would be replaced by a file, and readers of its target would still read the old
    // contents.
    let place = Place::find(path)?;
    if place.is_special() {
        return place.open(OFlag::empty())?.write_all(contents);
    }
    let (mut file, beside) = place.create_beside()?;
    let directory = &place.directory;
    let written = file
        .write_all(contents)
        .and_then(|()| Ok(renameat(directory, &*beside, directory, &*place.name)?));
    if written.is_err() {
        let _ = unlinkat(directory, &*beside, UnlinkatFlags::NoRemoveDir);
    }
    written
}

/// Opens a file anew for writing. A link of another user is not followed.
pub fn create(path: &Path) -> io::Result<File> {
    match descriptor_at(path) {
        Some(fd) => descriptor(fd),
        None => Place::find(path)?.open(OFlag::O_CREAT | OFlag::O_TRUNC),
    }
}

/// A file's place: a directory that is open, so that no other can be put in its place, and a name in it.
struct Place {
    directory: OwnedFd,
    name: OsString,
}

impl Place {
    /// Resolves a path whose last part need not exist. Only links of this user and of root are followed.
    fn find(path: &Path) -> io::Result<Place> {
        let absolute = std::path::absolute(path)?;
        let root = || open("/", DIRECTORY, Mode::empty());
        // The last one is next.
        let mut ahead: Vec<PathBuf> = parts(&absolute);
        let (mut directory, mut resolved, mut links) = (root()?, PathBuf::from("/"), 0);
        while let Some(part) = ahead.pop() {
            let about = fstatat(&directory, &part, AtFlags::AT_SYMLINK_NOFOLLOW);
            if about.is_ok_and(|about| about.st_mode & libc::S_IFMT == libc::S_IFLNK) {
                let link = openat(&directory, &part, OFlag::O_PATH | NO_LINK, Mode::empty())?;
                // By descriptor: another link may have been put in its place.
                let owner = fstat(&link)?.st_uid;
                if !is_trusted(owner) {
                    let shown = resolved.join(&part);
                    let why = format!("{} is a link of user {owner}, and is not followed", shown.display());
                    return Err(io::Error::other(why));
                }
                links += 1;
                if links > MOST_LINKS {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                let target = PathBuf::from(readlinkat(&link, "")?);
                ahead.extend(parts(&target));
                if target.is_absolute() {
                    (directory, resolved) = (root()?, PathBuf::from("/"));
                }
            } else if ahead.is_empty() && part != Path::new("..") {
                let name = part.into_os_string();
                return Ok(Place { directory, name });
            } else {
                // ENOTDIR if it has become a link since.
                directory = openat(&directory, &part, DIRECTORY | NO_LINK, Mode::empty())?;
                resolved.push(part);
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no file's name"))
    }

    /// Returns whether it is a pipe, a device or a socket.
    fn is_special(&self) -> bool {
        let about = fstatat(&self.directory, &*self.name, AtFlags::AT_SYMLINK_NOFOLLOW);
        about.is_ok_and(|about| ![libc::S_IFREG, libc::S_IFDIR].contains(&(about.st_mode & libc::S_IFMT)))
    }

    /// Opens the file for writing. It fails for a pipe that nothing reads, and for one of another user.
    fn open(&self, how: OFlag) -> io::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | NO_LINK | how;
        let file = File::from(openat(
            &self.directory,
            &*self.name,
            flags,
            Mode::from_bits_truncate(0o666),
        )?);
        let about = file.metadata()?;
        if about.file_type().is_fifo() && !is_trusted(about.uid()) {
            let why = format!("it is a pipe of user {}", about.uid());
            return Err(io::Error::other(why));
        }
        // Writes may wait, as they do everywhere.
        fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
        Ok(file)
    }

    /// Creates a file in the same directory: a rename is atomic within one file system only. Never opens an existing
    /// file: in a directory where every user can write, another user may have put a link in its place.
    fn create_beside(&self) -> io::Result<(File, OsString)> {
        let mut attempt = 0;
        loop {
            // The name ends in no suffix that a reader looks for.
            let mut beside = self.name.clone();
            beside.push(format!(".{}-{attempt}", std::process::id()));
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | NO_LINK;
            match openat(&self.directory, &*beside, flags, Mode::from_bits_truncate(0o666)) {
                Err(Errno::EEXIST) if attempt < ATTEMPTS => attempt += 1,
                file => return Ok((File::from(file?), beside)),
            }
        }
    }
}

/// Flags for a directory that is only passed through.
const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
/// Flags by which a path that is a link is not followed.
const NO_LINK: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_CLOEXEC);

/// Returns whether this user relies on what a user has made.
fn is_trusted(owner: u32) -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    [0, unsafe { libc::geteuid() }].contains(&owner)
}

/// Returns the parts of an absolute path behind the root, the last one first.
fn parts(path: &Path) -> Vec<PathBuf> {
    let all = path
        .components()
        .filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
    all.rev().map(|part| PathBuf::from(part.as_os_str())).collect()
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

/// Size limit in bytes: the reports of a thousand hosts are shorter. A longer file is something else, or has no end.
const LONGEST: u64 = 256 << 20;

/// Reads a file with the output of other commands, or standard input (`-`); returns its name and its text.
///
/// # Errors
/// Names the file.
pub fn read(path: &Path) -> Result<(String, String), String> {
    let is_standard_input = path == Path::new("-");
    let name = match is_standard_input {
        true => "standard input".to_owned(),
        false => path.to_string_lossy().into_owned(),
    };
    let text = match is_standard_input {
        true => text(io::stdin().lock()),
        false => File::open(path).and_then(text),
    };
    let text = text.map_err(|error| format!("{name}: {error}"))?;
    Ok((name, text))
}

fn text(from: impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(io::Error::other(format!(
            "longer than {} MiB: this is no host's JSON",
            LONGEST >> 20
        )));
    }
    // Text that is not UTF-8 is not JSON either; the JSON error reports its position.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns whether a file's name means standard output: `-`, as for other commands.
pub fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-")
}

/// Returns the descriptor of this process that a name such as /dev/stdout or `-` points to.
fn descriptor_at(path: &Path) -> Option<i32> {
    if is_standard_output(path) {
        return Some(1);
    }
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

/// Limit of attempts: each fastpath of the same process id that was killed at the wrong moment leaves a file behind.
const ATTEMPTS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::OpenOptionsExt;

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
    fn a_link_of_another_user_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (victim, link) = (directory.path().join("victim"), directory.path().join("link"));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        if std::os::unix::fs::lchown(&link, Some(65534), None).is_err() {
            return eprintln!("SKIPPED: only root can be other users");
        }
        let through = directory.path().join("through");
        std::os::unix::fs::symlink("link", &through).unwrap();
        let planted = directory.path().join("planted");
        std::os::unix::fs::symlink(".", &planted).unwrap();
        std::os::unix::fs::lchown(&planted, Some(65534), None).unwrap();
        for path in [link, through, planted.join("file")].iter() {
            for refused in [replace(path, "new"), create(path).map(drop)] {
                let why = refused.unwrap_err().to_string();
                assert!(why.contains("link of user 65534"), "{why}");
            }
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_device_is_written_to_and_stays_one() {
        let full = Path::new("/dev/full");
        let error = replace(full, "x").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
        assert!(fs::metadata(full).unwrap().file_type().is_char_device());
        replace(Path::new("/dev/null"), "x").unwrap();
    }

    #[test]
    fn a_pipe_that_nothing_reads_or_of_another_user_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::from_bits_truncate(0o666)).unwrap();
        let refuse = || {
            let refused = [replace(&pipe, "x"), create(&pipe).map(drop)];
            refused.map(|refused| refused.unwrap_err().to_string())
        };
        for why in refuse() {
            assert!(why.contains("No such device or address"), "{why}");
        }
        let mut reader = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&pipe)
            .unwrap();
        replace(&pipe, "text").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        if std::os::unix::fs::chown(&pipe, Some(65534), None).is_err() {
            return eprintln!("SKIPPED: only root can be other users");
        }
        for why in refuse() {
            assert!(why.contains("of user 65534"), "{why}");
        }
    }

    #[test]
    fn a_directory_that_another_user_exchanges_with_a_link_is_not_left() {
        let directory = tempfile::tempdir().unwrap();
        let [own, link, private] = ["own", "link", "private"].map(|name| directory.path().join(name));
        for made in [&own, &private] {
            fs::create_dir(made).unwrap();
        }
        std::os::unix::fs::symlink(&private, &link).unwrap();
        if std::os::unix::fs::lchown(&link, Some(65534), None).is_err() {
            return eprintln!("SKIPPED: only root can be other users");
        }
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let exchange = nix::fcntl::RenameFlags::RENAME_EXCHANGE;
                    nix::fcntl::renameat2(nix::fcntl::AT_FDCWD, &own, nix::fcntl::AT_FDCWD, &link, exchange).unwrap();
                }
            });
            for _ in 0..2000 {
                let _ = replace(&own.join("file"), "x");
                let _ = create(&own.join("other"));
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(fs::read_dir(&private).unwrap().count(), 0);
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
        use std::io::Seek;
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
