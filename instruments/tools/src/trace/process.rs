//! Processes over time: the program that each one ran at a moment, and its mappings.

use crate::trace::call::CallSite;
use fastpath_os::foreign::{self, Reader};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageMapping {
    pub range: Range<u64>,
    /// Offset in the file.
    pub offset: u64,
    /// A path, `[vdso]`, `//anon`, or empty.
    pub path: String,
}

/// A program that a process runs, until it executes another one.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgramImage {
    /// CLOCK_MONOTONIC. 0 if it ran before the trace began.
    pub since_ns: u64,
    pub comm: String,
    pub program: Option<String>,
    pub maps: Vec<ImageMapping>,
    /// Whether `maps` contains everything that was mapped before the trace began.
    is_complete: bool,
}

impl ProgramImage {
    pub(crate) fn mapping(&self, address: u64) -> Option<&ImageMapping> {
        self.maps.iter().find(|mapping| mapping.range.contains(&address))
    }

    pub(crate) fn has_kernel_vdso(&self) -> bool {
        self.maps.iter().any(|mapping| mapping.path == "[vdso]")
    }

    fn map(&mut self, mapping: ImageMapping) {
        self.maps
            .retain(|old| old.range.end <= mapping.range.start || mapping.range.end <= old.range.start);
        self.maps.push(mapping);
    }

    /// Adds mappings that do not overlap, lowest first. A process may have tens of thousands.
    fn map_all(&mut self, new: Vec<ImageMapping>) {
        self.maps.retain(|old| {
            let next = new.partition_point(|new| new.range.end <= old.range.start);
            new.get(next).is_none_or(|new| old.range.end <= new.range.start)
        });
        self.maps.extend(new);
    }
}

/// All known processes.
#[derive(Default)]
pub(crate) struct Processes {
    images: HashMap<u32, Vec<ProgramImage>>,
    parents: HashMap<u32, u32>,
    ended: HashSet<u32>,
}

impl Processes {
    /// Returns all existing processes, so that one that ends soon has a name.
    pub(crate) fn look() -> Processes {
        let mut processes = Processes::default();
        for pid in fastpath_os::processes().into_iter().flatten() {
            let pid = pid as u32;
            processes.images.insert(pid, vec![name(pid)]);
        }
        processes
    }

    pub(crate) fn fork(&mut self, parent: u32, child: u32, now_ns: u64) {
        let mut image = self.current(parent).clone();
        image.since_ns = now_ns;
        self.ended.remove(&child);
        self.parents.insert(child, parent);
        self.images.entry(child).or_default().push(image);
    }

    pub(crate) fn exec(&mut self, pid: u32, comm: String, now_ns: u64) {
        self.images.entry(pid).or_default().push(ProgramImage {
            since_ns: now_ns,
            comm,
            is_complete: true,
            ..ProgramImage::default()
        });
    }

    /// Records an exec for which no mapping events will come: the mappings can be read.
    pub(crate) fn exec_seen(&mut self, pid: u32, comm: String, now_ns: u64) {
        self.images.entry(pid).or_default().push(ProgramImage {
            since_ns: now_ns,
            comm,
            program: program(pid),
            ..ProgramImage::default()
        });
    }

    pub(crate) fn rename(&mut self, pid: u32, comm: String) {
        self.current(pid).comm = comm;
    }

    /// Records a mapping. The first file that a new program maps is its own.
    pub(crate) fn map(&mut self, pid: u32, mapping: ImageMapping) {
        let image = self.current(pid);
        if image.is_complete && image.program.is_none() && mapping.path.starts_with('/') {
            image.program = Some(mapping.path.clone());
        }
        image.map(mapping);
    }

    pub(crate) fn exit(&mut self, pid: u32) {
        self.ended.insert(pid);
    }

    pub(crate) fn has_ended(&self, pid: u32) -> bool {
        self.ended.contains(&pid)
    }

    /// Forgets processes that have ended, except those for which `is_needed` is true.
    pub(crate) fn forget(&mut self, is_needed: impl Fn(u32) -> bool) {
        self.images
            .retain(|pid, _| !self.ended.contains(pid) || is_needed(*pid));
    }

    fn current(&mut self, pid: u32) -> &mut ProgramImage {
        let images = self.images.entry(pid).or_insert_with(|| vec![name(pid)]);
        images.last_mut().expect("every process has an image")
    }

    /// Returns the program that was running when a site was first seen, with all of its mappings if they are still
    /// available.
    pub(crate) fn at(&mut self, site: &CallSite, first_ns: u64, comm: &str) -> &ProgramImage {
        let pid = site.pid;
        let images = self.images.entry(pid).or_insert_with(|| vec![name(pid)]);
        let index = images.iter().rposition(|image| image.since_ns <= first_ns).unwrap_or(0);
        let is_current = index + 1 == images.len();
        let image = &mut images[index];
        if image.comm.is_empty() {
            image.comm = comm.to_owned();
        }
        // Mapped before the trace began, or its event was lost.
        let is_missing = site.ip != 0 && image.mapping(site.ip).is_none();
        if is_current && (is_missing || !image.is_complete) && !self.ended.contains(&pid) {
            image.is_complete = true;
            image.map_all(mappings(pid).collect());
            if image.program.is_none() {
                image.program = program(pid);
            }
        }
        image
    }

    pub(crate) fn image(&self, pid: u32, since_ns: u64) -> Option<&ProgramImage> {
        self.images.get(&pid)?.iter().find(|image| image.since_ns == since_ns)
    }

    /// Returns whether a process is `root` or descends from it by recorded forks.
    pub(crate) fn descends(&self, pid: u32, root: u32) -> bool {
        let mut pid = pid;
        // No chain is longer than the number of processes.
        for _ in 0..=self.parents.len() {
            if pid == root {
                return true;
            }
            match self.parents.get(&pid) {
                Some(parent) => pid = *parent,
                None => return false,
            }
        }
        false
    }
}

fn name(pid: u32) -> ProgramImage {
    ProgramImage {
        comm: fastpath_os::comm(pid).unwrap_or_default(),
        program: program(pid),
        ..ProgramImage::default()
    }
}

fn program(pid: u32) -> Option<String> {
    let link = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    Some(String::from_utf8_lossy(link.as_os_str().as_bytes()).into_owned())
}

/// Returns the executable mappings.
fn mappings(pid: u32) -> impl Iterator<Item = ImageMapping> {
    let maps = fastpath_os::maps::read(pid).unwrap_or_default().into_iter();
    maps.filter(|mapping| mapping.executable).map(|mapping| ImageMapping {
        range: mapping.range(),
        offset: mapping.offset,
        path: mapping.name,
    })
}

/// Most bytes that are read of a file.
const MOST_FILE_BYTES: u64 = 512 << 20;
/// Time for which a file is read: its server may not answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Opens a file of another process: as that one sees it, while it lives.
pub(crate) fn open(pid: u32, path: &str) -> Option<Reader> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let open = || match foreign::handle(&root) {
        Ok(_) => foreign::open(foreign::handle_beneath(&root, Path::new(path))?),
        // It has ended, and was most likely in the same root.
        Err(_) => foreign::open(foreign::handle(Path::new(path))?),
    };
    Reader::start(&[], open, MOST_FILE_BYTES, TIMEOUT).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::call::CallAbi;
    use fastpath_code::TimeCall;

    fn site(pid: u32, ip: u64) -> CallSite {
        CallSite {
            pid,
            function: TimeCall::Time,
            abi: CallAbi::Native,
            clock: 0,
            ip,
        }
    }

    fn mapping(start: u64, path: &str) -> ImageMapping {
        ImageMapping {
            range: start..start + 0x1000,
            offset: 0,
            path: path.to_owned(),
        }
    }

    /// No process has this number (it is above the limit of pid_max).
    const NOBODY: u32 = 5_000_000;

    #[test]
    fn a_call_belongs_to_the_program_that_ran_when_it_was_made() {
        let mut processes = Processes::default();
        processes.exec(NOBODY, "sh".to_owned(), 10);
        processes.fork(NOBODY, NOBODY + 1, 20);
        processes.exec(NOBODY + 1, "date".to_owned(), 30);
        processes.map(NOBODY + 1, mapping(0x1000, "/bin/date"));
        processes.exit(NOBODY + 1);
        assert_eq!(processes.at(&site(NOBODY + 1, 0x1000), 25, "").comm, "sh");
        let date = processes.at(&site(NOBODY + 1, 0x1000), 31, "");
        assert_eq!(
            (date.comm.as_str(), date.program.as_deref()),
            ("date", Some("/bin/date"))
        );
        assert!(processes.descends(NOBODY + 1, NOBODY) && !processes.descends(NOBODY, NOBODY + 1));
    }

    #[test]
    fn what_is_mapped_over_something_replaces_it() {
        let mut processes = Processes::default();
        processes.exec(NOBODY, "x".to_owned(), 1);
        processes.map(NOBODY, mapping(0x1000, "/old"));
        processes.map(NOBODY, mapping(0x1800, "/new"));
        let image = processes.at(&site(NOBODY, 0x1900), 2, "");
        assert_eq!(image.mapping(0x1900).map(|m| m.path.as_str()), Some("/new"));
        assert_eq!(image.mapping(0x1000), None);
        let mut image = image.clone();
        image.map_all(vec![mapping(0x1000, "/low"), mapping(0x2000, "/high")]);
        let paths = [0x1000, 0x1900, 0x2000].map(|at| image.mapping(at).map(|m| m.path.as_str()));
        assert_eq!(paths, [Some("/low"), Some("/low"), Some("/high")]);
        assert_eq!(image.maps.len(), 2);
        assert_eq!(image.program.as_deref(), Some("/old"));
    }
}
