//! /proc/PID/status (proc_pid_status(5)).

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::str::FromStr;

/// The fields of a process's or thread's status, by their names. Which there are depends on the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status(String);

impl Status {
    /// Reads the status of a process or thread.
    pub fn read(pid: impl Display) -> io::Result<Status> {
        crate::record(pid, "status").map(Status)
    }

    /// Takes the text of a status.
    pub fn parse(text: impl Into<String>) -> Status {
        Status(text.into())
    }

    /// Returns a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        let begins_a_line = |at: usize| at == 0 || self.0.as_bytes()[at - 1] == b'\n';
        let mut found = self.0.match_indices(name).filter(|(at, _)| begins_a_line(*at));
        let value = found.find_map(|(at, _)| self.0[at + name.len()..].strip_prefix(':'))?;
        Some(value.lines().next().unwrap_or_default().trim())
    }

    /// Returns a field that is one number.
    pub fn number<T: FromStr>(&self, name: &str) -> Option<T> {
        self.field(name)?.parse().ok()
    }

    /// Returns a field of several numbers: `Uid` and `Gid` (real, effective, saved, file system), `Groups`, `NSpid`.
    pub fn numbers<T: FromStr>(&self, name: &str) -> Option<Vec<T>> {
        let numbers = self.field(name)?.split_whitespace();
        numbers.map(|number| number.parse().ok()).collect()
    }

    /// Returns a set in hexadecimal: of capabilities, of signals.
    pub fn set(&self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.field(name)?, 16).ok()
    }
}

/// The open status of a process or thread, which can be read more than once. After an exec by a thread that did not lead its
/// process, it is another thread's.
pub struct StatusFile(File);

impl StatusFile {
    /// Opens the status of a process or thread.
    pub fn open(pid: impl Display) -> io::Result<StatusFile> {
        File::open(format!("/proc/{pid}/status")).map(StatusFile)
    }

    /// Reads it as it is now.
    pub fn read(&self) -> io::Result<Status> {
        crate::read_open(&self.0, |_| true).map(Status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let status = Status::parse(
            "Name:\ta: b\nPid:\t7\nUid:\t1\t2\t3\t4\nGroups:\t\nCapEff:\t000000ff\nSeccomp:\t2\nSeccomp_filters:\t1\n",
        );
        assert_eq!(status.field("Name"), Some("a: b"));
        assert_eq!(status.number("Pid"), Some(7));
        assert_eq!(status.numbers("Uid"), Some(vec![1, 2, 3, 4]));
        assert_eq!(status.numbers::<u32>("Groups"), Some(vec![]));
        assert_eq!(status.set("CapEff"), Some(0xff));
        assert_eq!(
            (status.number("Seccomp"), status.number("Seccomp_filters")),
            (Some(2), Some(1))
        );
        assert_eq!(status.field("Seccom"), None);
        assert_eq!(status.number::<u32>("Name"), None);
        assert_eq!((status.field("a"), status.field("b")), (None, None), "values");
    }
}
