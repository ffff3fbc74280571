//! The facts about a process that a policy uses.

use std::fs;
use std::path::Path;

use crate::peer::Process;

/// A process, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// User id.
    pub uid: u32,
    /// Path of its executable.
    pub executable: Option<String>,
    /// Path of its cgroup.
    pub cgroup: Option<String>,
}

impl Facts {
    /// Reads the facts of a process.
    pub fn of(process: Process) -> Facts {
        let directory = format!("/proc/{}", process.pid);
        Facts {
            uid: process.uid,
            executable: executable(&directory),
            cgroup: cgroup(&directory),
        }
    }

    /// Returns the systemd unit: the last part of the cgroup's path that is a unit which runs processes
    /// (systemd.unit(5)).
    pub fn unit(&self) -> Option<String> {
        let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
        let cgroup = self.cgroup.as_deref()?;
        Some(cgroup.rsplit('/').find(is_unit).unwrap_or_default().to_owned())
    }
}

fn executable(directory: &str) -> Option<String> {
    let path = fs::read_link(Path::new(directory).join("exe")).ok()?;
    let path = path.to_string_lossy();
    // Set if an upgrade replaced the file while it runs.
    Some(path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned())
}

/// Returns the path from `0::/PATH` on a host with the unified hierarchy; else from systemd's own hierarchy, by its
/// name (cgroups(7)).
fn cgroup(directory: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new(directory).join("cgroup")).ok()?;
    let named = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
    let systemds = || {
        text.lines()
            .find_map(|line| line.split_once(":name=systemd:").map(|(_, path)| path))
    };
    named("0::").or_else(systemds).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_an_executable_and_a_cgroup_that_is_a_path() {
        let facts = Facts::of(Process::of(std::process::id() as i32).unwrap());
        let own = std::env::current_exe().unwrap();
        assert_eq!(facts.executable.as_deref(), own.to_str());
        assert!(facts.cgroup.is_none_or(|cgroup| cgroup.starts_with('/')));
    }

    #[test]
    fn a_unit_is_the_innermost_that_runs_processes() {
        let unit = |cgroup: &str| {
            let facts = Facts {
                uid: 0,
                executable: None,
                cgroup: Some(cgroup.into()),
            };
            facts.unit().unwrap()
        };
        assert_eq!(unit("/system.slice/nginx.service"), "nginx.service");
        assert_eq!(unit("/system.slice/docker.service/app/worker"), "docker.service");
        assert_eq!(
            unit("/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope"),
            "x.scope"
        );
        assert_eq!(unit("/"), "");
    }
}
