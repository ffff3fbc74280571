//! The facts about a process that a policy uses.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::peer::Process;

/// A process, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProcessFacts {
    /// User id.
    pub uid: u32,
    /// Path of its executable.
    pub executable: Option<String>,
    /// Path of its cgroup.
    pub cgroup: Option<String>,
}

impl ProcessFacts {
    /// Reads the facts of a process.
    pub fn read(process: Process) -> ProcessFacts {
        ProcessFacts {
            uid: process.uid,
            executable: fastpath_os::executable(process.pid).ok(),
            cgroup: cgroup(process.pid),
        }
    }

    /// Reads the facts of the process with this id; `None` if it has ended.
    pub fn of_pid(pid: i32) -> Option<ProcessFacts> {
        Process::read(pid).ok().map(ProcessFacts::read)
    }

    /// Returns a number that other facts do not have: all that a policy decides by. The same in every process of this
    /// program.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the systemd unit: the last part of the cgroup's path that is a unit which runs processes
    /// (systemd.unit(5)).
    pub fn unit(&self) -> Option<String> {
        let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
        let cgroup = self.cgroup.as_deref()?;
        Some(cgroup.rsplit('/').find(is_unit).unwrap_or_default().to_owned())
    }
}

/// Returns the path in the unified hierarchy, on a host that has it; else in systemd's own.
fn cgroup(pid: i32) -> Option<String> {
    let groups = fastpath_os::cgroups(pid).ok()?;
    let of = |wanted: &str| groups.iter().find(|(controllers, _)| controllers == wanted);
    Some(of("").or_else(|| of("name=systemd"))?.1.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_an_executable_and_a_cgroup_that_is_a_path() {
        let facts = ProcessFacts::read(Process::read(std::process::id() as i32).unwrap());
        let own = std::env::current_exe().unwrap();
        assert_eq!(facts.executable.as_deref(), own.to_str());
        assert!(facts.cgroup.is_none_or(|cgroup| cgroup.starts_with('/')));
    }

    #[test]
    fn a_unit_is_the_innermost_that_runs_processes() {
        let unit = |cgroup: &str| {
            let facts = ProcessFacts {
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
