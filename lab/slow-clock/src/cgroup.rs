//! The cgroup that the command and its descendants are in (Documentation/admin-guide/cgroup-v2.rst).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use fastpath_os::bpf::{Map, MapKind};
use nix::fcntl::{Flock, FlockArg};
use std::os::fd::AsRawFd;

/// Start of the cgroups' names; the process's number follows.
const NAME: &str = "fastpath-slow-clock-";
/// Pauses of a millisecond until the processes that were killed must have ended.
const MOST_PAUSES: u32 = 5000;

/// A cgroup of this process's, a child of the one that it is in. Dropping it kills the processes in it and removes it.
pub struct Cgroup {
    path: PathBuf,
    /// Its directory, locked: a cgroup whose directory is not locked is a leftover.
    directory: Flock<File>,
}

impl Cgroup {
    /// Creates the cgroup, and removes those that killed processes have left.
    pub fn create() -> Result<Cgroup, String> {
        let parent = own()?;
        remove_leftovers(&parent);
        let path = parent.join(format!("{NAME}{}", std::process::id()));
        loop {
            match lock_new(&path) {
                // Until it was locked, another slow-clock may have taken it for a leftover.
                Ok(directory) if path.exists() => return Ok(Cgroup { path, directory }),
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(format!("{}: {e}", path.display())),
                _ => {}
            }
        }
    }

    /// Returns the file by which a process joins: it writes `0`.
    pub fn procs(&self) -> io::Result<File> {
        File::options().write(true).open(self.path.join("cgroup.procs"))
    }

    /// Returns a BPF map whose only element is this cgroup.
    pub fn map(&self) -> io::Result<Map> {
        let map = Map::new(MapKind::CgroupArray, 4, 4, 1)?;
        map.set(&0u32.to_ne_bytes(), &self.directory.as_raw_fd().to_ne_bytes())?;
        Ok(map)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Linux 5.14.
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        for _ in 0..MOST_PAUSES {
            match fs::remove_dir(&self.path) {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => thread::sleep(Duration::from_millis(1)),
                Err(e) => return eprintln!("slow-clock: {}: {e}", self.path.display()),
                Ok(()) => return,
            }
        }
        eprintln!("slow-clock: processes remain in {}", self.path.display());
    }
}

fn lock_new(path: &Path) -> io::Result<Flock<File>> {
    fs::create_dir(path)?;
    let directory = File::open(path)?;
    Flock::lock(directory, FlockArg::LockExclusive).map_err(|(_, e)| e.into())
}

/// Returns the directory of the cgroup that this process is in.
fn own() -> Result<PathBuf, String> {
    let read = |path| fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
    let mounts = read("/proc/self/mounts")?;
    let mount = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let path = fields.next()?;
        (fields.next() == Some("cgroup2")).then_some(path)
    });
    let Some(mount) = mount else {
        return Err("cgroup2 is not mounted; mount it: mount -t cgroup2 none /sys/fs/cgroup".into());
    };
    let cgroups = fastpath_os::cgroups("self").map_err(|e| format!("/proc/self/cgroup: {e}"))?;
    let unified = cgroups.iter().find(|(controllers, _)| controllers.is_empty());
    let (_, path) = unified.ok_or("this kernel has no cgroup2 (CONFIG_CGROUPS)")?;
    Ok(Path::new(mount).join(path.trim_start_matches('/')))
}

/// Removes the empty cgroups beside this process's that no process has locked.
fn remove_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(NAME);
        if is_ours
            && let Ok(directory) = File::open(entry.path())
            && let Ok(_lock) = Flock::lock(directory, FlockArg::LockExclusiveNonblock)
        {
            // One with processes is refused.
            let _ = fs::remove_dir(entry.path());
        }
    }
}
