//! Reads files below a root, and records those that could not be read.

use fastpath_os::foreign;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Most bytes of a file that is read whole. The largest is /proc/PID/maps of a large JVM.
const LONGEST: u64 = 64 << 20;

/// Evidence that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Unseen {
    /// The evidence, in a user's words.
    pub what: String,
    /// The file or system call.
    pub source: String,
    /// The system's answer.
    pub why: String,
    /// What to do to make it visible.
    pub remedy: String,
}

/// The files of a host: below `/`, or below a directory that contains a copy of them.
pub(super) struct Root {
    path: PathBuf,
    unseen: RefCell<Vec<Unseen>>,
}

impl Root {
    pub(super) fn at(path: &Path) -> Root {
        Root {
            path: path.to_owned(),
            unseen: RefCell::new(Vec::new()),
        }
    }

    /// Returns whether these are the running host's own files, so that system calls and instructions describe the same
    /// host.
    pub(super) fn is_host(&self) -> bool {
        self.path == Path::new("/")
    }

    pub(super) fn path_of(&self, file: &str) -> PathBuf {
        self.path.join(file.trim_start_matches('/'))
    }

    /// Opens a file of the kernel's, as those of /proc and /sys.
    pub(super) fn open(&self, file: &str) -> io::Result<File> {
        File::open(self.path_of(file))
    }

    /// Returns the bytes of a file as a process names it, whose directory in /proc is `directory`.
    pub(super) fn bytes_of(&self, directory: &str, file: &str, most: u64) -> io::Result<Vec<u8>> {
        let root = self.path_of(&format!("{directory}/root"));
        let mut bytes = Vec::new();
        foreign::open(foreign::handle_beneath(&root, Path::new(file))?)?
            .take(most)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn bytes(&self, file: &str) -> io::Result<Vec<u8>> {
        // The kernel states no size: without room, the reads of each process's maps begin with 32 bytes.
        let mut bytes = Vec::with_capacity(8 << 10);
        self.open(file)?.take(LONGEST).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn text(&self, file: &str) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&self.bytes(file)?).into_owned())
    }

    /// Reads a file of one line. Returns `None` if it does not exist or is empty.
    pub(super) fn line(&self, file: &str) -> Option<String> {
        let text = self.text(file).ok()?;
        let line = text.trim_end_matches('\0').trim();
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// Reads a file, and records it as missing if it cannot be read.
    pub(super) fn expect(&self, what: &str, file: &str, remedy: &str) -> Option<String> {
        let text = self.text(file);
        text.map_err(|error| self.miss(what, file, &error, remedy)).ok()
    }

    pub(super) fn link(&self, file: &str) -> io::Result<String> {
        let link = fs::read_link(self.path_of(file))?;
        Ok(link.to_string_lossy().into_owned())
    }

    /// Returns the names in a directory, in order; none if it cannot be read.
    pub(super) fn names(&self, directory: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path_of(directory)) else {
            return Vec::new();
        };
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let mut names: Vec<String> = entries.flatten().map(name).collect();
        names.sort();
        names
    }

    /// Records that something could not be seen.
    pub(super) fn miss(&self, what: &str, source: &str, why: &dyn std::fmt::Display, remedy: &str) {
        self.unseen.borrow_mut().push(Unseen {
            what: what.to_owned(),
            source: source.to_owned(),
            why: plain(&why.to_string()),
            remedy: remedy.to_owned(),
        });
    }

    /// Adds what another look at the same host could not see.
    pub(super) fn add_unseen(&self, unseen: Vec<Unseen>) {
        self.unseen.borrow_mut().extend(unseen);
    }

    /// Returns what could not be seen since the last call.
    pub(super) fn take_unseen(&self) -> Vec<Unseen> {
        self.unseen.take()
    }

    pub(super) fn into_unseen(self) -> Vec<Unseen> {
        self.unseen.into_inner()
    }
}

/// Returns what lets this user see what was hidden: `otherwise`, or for root, to whom that says nothing, the capability.
pub(super) fn permission(capability: &str, otherwise: &str) -> String {
    // SAFETY: geteuid takes nothing and cannot fail.
    match unsafe { libc::geteuid() } {
        0 => format!(
            "give root {capability}, which it lacks here, or ask what else forbids it: a security module, or a setting of the kernel"
        ),
        _ => otherwise.to_owned(),
    }
}

/// Returns what lets this user examine another user's process.
pub(super) fn rights_to_examine() -> String {
    permission("CAP_SYS_PTRACE", "run doctor as that process's user, or as root")
}

/// Returns the error without its number: `Permission denied (os error 13)` says no more than `Permission denied`.
pub(super) fn plain(error: &str) -> String {
    match error.split_once(" (os error ") {
        Some((before, after)) => before.to_owned() + after.split_once(')').map_or("", |(_, rest)| rest),
        None => error.to_owned(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A temporary directory with these files, used as a root. It is removed when the value is dropped.
    pub(crate) struct Tree(PathBuf);

    impl Tree {
        pub(crate) fn new(files: &[(&str, &str)]) -> Tree {
            use std::sync::atomic::{AtomicU32, Ordering};
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let tree = Tree(std::env::temp_dir().join(format!("fastpath-doctor-{}-{number}", std::process::id())));
            fs::create_dir_all(&tree.0).unwrap();
            for (name, text) in files {
                tree.add(name, text.as_bytes());
            }
            tree
        }

        pub(crate) fn add(&self, name: &str, bytes: &[u8]) {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }

        pub(crate) fn link(&self, name: &str, to: &str) {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(to, path).unwrap();
        }

        pub(crate) fn root(&self) -> Root {
            Root::at(&self.0)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_cannot_be_read_is_kept_account_of_with_the_systems_answer() {
        let tree = Tree::new(&[("proc/cmdline", "quiet\n")]);
        let root = tree.root();
        assert!(!root.is_host());
        assert_eq!(root.line("/proc/cmdline").as_deref(), Some("quiet"));
        assert!(root.expect("the log", "/dev/kmsg", "be root").is_none());
        let unseen = root.into_unseen();
        assert_eq!(unseen.len(), 1);
        assert_eq!(
            (unseen[0].what.as_str(), unseen[0].why.as_str()),
            ("the log", "No such file or directory")
        );
    }

    #[test]
    fn an_empty_directory_and_a_missing_one_have_no_names() {
        let tree = Tree::new(&[("sys/b", ""), ("sys/a", "")]);
        assert_eq!(tree.root().names("/sys"), ["a", "b"]);
        assert!(tree.root().names("/sys/none").is_empty());
    }
}
