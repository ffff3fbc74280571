//! Selects processes by number or by name.

use std::fmt;
use std::str::FromStr;

use crate::exit;

/// Longest name in bytes that the kernel keeps of a process: `TASK_COMM_LEN` less the closing zero
/// (include/linux/sched.h).
const COMM_BYTES: usize = 15;

/// A process as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// By process id.
    Pid(i32),
    /// By its program's file name, or by the name that it gave itself (`ps -o comm`).
    Program(String),
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Named, String> {
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return match text {
                "" => Err("the name is empty".to_owned()),
                _ => Ok(Named::Program(text.to_owned())),
            };
        }
        match text.parse() {
            Ok(pid) if pid > 0 => Ok(Named::Pid(pid)),
            _ => Err(format!("a process's number is 1 to {}", i32::MAX)),
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Named::Pid(pid) => write!(f, "{pid}"),
            Named::Program(name) => f.write_str(name),
        }
    }
}

impl Named {
    /// Returns all selected processes, lowest number first. A number is returned without a check whether that process
    /// exists. Empty if no process has the name.
    pub fn all(&self) -> Vec<i32> {
        match self {
            Named::Pid(pid) => vec![*pid],
            Named::Program(name) => matching(|pid| has_name(pid, name)),
        }
    }

    /// Returns the one selected process.
    pub fn one(&self) -> Result<i32, String> {
        match &self.all()[..] {
            [pid] => Ok(*pid),
            [] => Err(none_is_called(self)),
            several => Err(format!(
                "{} processes are called {self}: {}; name one by its number",
                several.len(),
                listed(several)
            )),
        }
    }
}

/// Returns the message that no process has a name.
pub fn none_is_called(name: &Named) -> String {
    listable()
        .err()
        .unwrap_or_else(|| format!("no process is called {name} (`ps -e` lists them)"))
}

/// Returns an error if processes cannot be listed: then that none was found means nothing.
pub fn listable() -> Result<(), String> {
    let listed = fastpath_os::processes().map(drop);
    listed.map_err(|why| format!("processes cannot be listed: /proc: {why}; mount -t proc proc /proc"))
}

/// Returns the exit status where no process was found.
pub fn status_of_none() -> i32 {
    match listable() {
        Ok(()) => exit::NO_SUCH_PROCESS,
        Err(_) => exit::CANNOT_TELL,
    }
}

/// Returns the first numbers, in words.
pub fn listed(pids: &[i32]) -> String {
    const MOST: usize = 8;
    let first: Vec<_> = pids.iter().take(MOST).map(i32::to_string).collect();
    let more = if pids.len() > MOST { ", ..." } else { "" };
    first.join(", ") + more
}

/// Returns the processes for which `is_meant` is true, never this process.
pub fn matching(is_meant: impl Fn(i32) -> bool) -> Vec<i32> {
    let own = std::process::id() as i32;
    let processes = fastpath_os::processes().into_iter().flatten();
    let mut found: Vec<_> = processes.filter(|pid| *pid != own && is_meant(*pid)).collect();
    found.sort_unstable();
    found
}

/// Returns whether a process has this name. Does not read the command line: it lies in the process's memory, and
/// reading that can wait for ever.
fn has_name(pid: i32, name: &str) -> bool {
    let comm = fastpath_os::comm(pid).unwrap_or_default();
    if comm == name {
        return true;
    }
    let may_be_cut = name.len() > COMM_BYTES && name.starts_with(&comm);
    match fastpath_os::executable(pid) {
        Ok(program) => program.rsplit('/').next() == Some(name),
        // Another user's process: only its name is visible.
        Err(e) => may_be_cut && e.kind() == std::io::ErrorKind::PermissionDenied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_a_pid_and_all_else_is_a_name() {
        assert_eq!("1234".parse(), Ok(Named::Pid(1234)));
        for name in ["redis-server", "7z", "x86_64"] {
            assert_eq!(name.parse(), Ok(Named::Program(name.to_owned())));
        }
        for wrong in ["", "0", "-1", "99999999999"] {
            assert!(wrong.parse::<Named>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pid_is_returned_unchecked_and_a_name_must_exist() {
        assert_eq!(Named::Pid(7).one(), Ok(7));
        let missing = Named::Program("no-such-program".to_owned()).one();
        assert!(missing.is_err_and(|why| why.contains("no process is called no-such-program")));
    }
}
