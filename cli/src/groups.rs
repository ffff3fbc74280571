//! Selects processes by control group.

use std::path::{Path, PathBuf};

use crate::processes::matching;

/// Returns the processes of a control group, and of those below it; `group` is its path as in /proc/PID/cgroup, or its
/// directory.
pub fn of_cgroup(group: &Path) -> Vec<i32> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let group = path_in_hierarchy(group, &mounts);
    matching(|pid| cgroups(pid).any(|of| of.starts_with(&group)))
}

/// Returns the path in /proc/PID/cgroup of a control group's directory; `mounts` is /proc/self/mountinfo
/// (proc_pid_mountinfo(5)).
fn path_in_hierarchy(group: &Path, mounts: &str) -> PathBuf {
    let hierarchies = mounts.lines().filter_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        kind.starts_with("cgroup").then_some((root, Path::new(point)))
    });
    let inside = hierarchies.filter(|(_, point)| group.starts_with(point));
    match inside.max_by_key(|(_, point)| point.components().count()) {
        Some((root, point)) => Path::new(root).join(group.strip_prefix(point).unwrap_or(group)),
        None => Path::new("/").join(group),
    }
}

/// Returns the processes of a systemd unit. A name without a suffix is a service's, as for systemctl(1).
pub fn of_unit(unit: &str) -> Vec<i32> {
    let unit = if unit.contains('.') {
        unit.to_owned()
    } else {
        format!("{unit}.service")
    };
    let is_below = |group: &PathBuf| group.components().any(|part| part.as_os_str() == unit.as_str());
    matching(|pid| cgroups(pid).any(|group| is_below(&group)))
}

/// Returns the paths of a process's control group in each hierarchy.
fn cgroups(pid: i32) -> impl Iterator<Item = PathBuf> {
    let groups = fastpath_os::cgroups(pid).unwrap_or_default().into_iter();
    groups.map(|(_, path)| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_group_has_one_path_however_it_is_named() {
        let mounts = "30 24 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      31 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      32 30 0:29 /of/container /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n";
        for (named, is) in [
            ("/system.slice/a.service", "/system.slice/a.service"),
            ("system.slice", "/system.slice"),
            ("/sys/fs/cgroup/unified/a", "/a"),
            ("/sys/fs/cgroup/freezer/a/", "/of/container/a"),
        ] {
            assert_eq!(path_in_hierarchy(Path::new(named), mounts), Path::new(is), "{named}");
        }
    }
}
