//! Processes as /proc shows them (proc(5)), the files that they name ([`foreign`]), and small BPF programs ([`bpf`]).
//!
//! A process is named by its number, by `self` or `thread-self`, or, for one of its threads, as `PID/task/TID`. What it
//! chooses itself, its name and the names of its files, need not be UTF-8: invalid bytes are replaced, never an error.
//! [`printable`] makes such a text safe to print.
//!
//! The crate `procfs` is not used: a process could make it fail or panic by a file's name. It reads mappings as UTF-8,
//! indexes names that begin with `/SYSV` without a check, and refuses a status that lacks a field.
#![cfg_attr(all(clippy, not(test)), warn(unreachable_pub, unused_crate_dependencies))]

pub mod bpf;
pub mod foreign;
mod identity;
pub mod maps;
#[cfg(test)]
#[path = "../../../fuzz/mutations.rs"]
mod mutations;
mod printable;
mod stat;
mod status;
mod worker;

use std::fmt::Display;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirEntryExt, FileExt};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

pub use maps::{Mapping, device_of_memory};
pub use printable::{is_printable, printable, printable_json};
pub use stat::Stat;
pub use status::{Status, StatusFile};
pub use worker::{Worker, look_at_all};

/// Returns the first two numbers of a version; 0 for a missing or malformed one.
pub fn version(text: &str) -> (u32, u32) {
    let mut numbers = text
        .split(|c: char| !c.is_ascii_digit())
        .map(|digits| digits.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Returns this kernel's version, whatever the personality (setarch(8), --uname-2.6); (0, 0) if /proc does not show it.
pub fn kernel_version() -> (u32, u32) {
    static VERSION: LazyLock<(u32, u32)> =
        LazyLock::new(|| version(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()));
    *VERSION
}

/// Waits for one of these events of a descriptor (poll(2)), at most for `limit`, and returns whether there was one. A pidfd has
/// POLLIN once its process has ended (pidfd_open(2)).
pub fn is_ready(fd: impl AsFd, events: i16, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now()).as_millis();
        let mut poll = libc::pollfd {
            fd: fd.as_fd().as_raw_fd(),
            events,
            revents: 0,
        };
        // SAFETY: one structure, which lives for the call.
        match unsafe { libc::poll(&mut poll, 1, left.try_into().unwrap_or(i32::MAX)) } {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            ready => return ready > 0,
        }
    }
}

/// Returns the PIDs of all visible processes. Each may end at any time. Fails where /proc is not mounted, or is that of a
/// PID namespace without this process: an empty list would mean that there are none.
pub fn processes() -> io::Result<impl Iterator<Item = i32>> {
    Ok(processes_with_inodes()?.map(|(pid, _)| pid))
}

/// Returns the same, each with the inode number of its directory: while that stays, it is the same process. The kernel
/// may give a process another one at any time. It comes with the listing, and so costs nothing.
pub fn processes_with_inodes() -> io::Result<impl Iterator<Item = (i32, u64)>> {
    fs::read_link("/proc/self")?;
    numbers("/proc")
}

/// Returns the thread ids of a process, those of its kernel workers included.
pub fn threads(pid: impl Display) -> io::Result<impl Iterator<Item = i32>> {
    Ok(numbers(&format!("/proc/{pid}/task"))?.map(|(tid, _)| tid))
}

/// Returns the entries of a directory whose names are numbers, and their inode numbers.
fn numbers(directory: &str) -> io::Result<impl Iterator<Item = (i32, u64)> + use<>> {
    let entries = fs::read_dir(directory)?;
    Ok(entries.filter_map(|entry| {
        let entry = entry.ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, entry.ino()))
    }))
}

/// Returns the text of a file of a process.
pub fn text(pid: impl Display, file: &str) -> io::Result<String> {
    read(pid, file, |_| false)
}

/// Returns the text of a file of a process that the kernel makes as a whole (single_open, fs/seq_file.c), as it does all
/// but lists: one read returns it.
pub fn record(pid: impl Display, file: &str) -> io::Result<String> {
    read(pid, file, |_| true)
}

/// Reads until the end, or until `is_whole` says that what was read so far is all.
fn read(pid: impl Display, file: &str, is_whole: impl Fn(&[u8]) -> bool) -> io::Result<String> {
    read_open(&fs::File::open(format!("/proc/{pid}/{file}"))?, is_whole)
}

/// The same, of an open file from its start.
fn read_open(file: &fs::File, is_whole: impl Fn(&[u8]) -> bool) -> io::Result<String> {
    // The kernel states no size, so read_to_end would ask for it in vain, and it fills a page at a time at most.
    let mut bytes = vec![0; 8 << 10];
    let mut length = 0;
    loop {
        match file.read_at(&mut bytes[length..], length as u64) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        if length == bytes.len() {
            bytes.resize(2 * length, 0);
        } else if is_whole(&bytes[..length]) {
            break;
        }
    }
    bytes.truncate(length);
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

/// Returns the name of a process or thread, cut off at 15 bytes (proc_pid_comm(5)).
pub fn comm(pid: impl Display) -> io::Result<String> {
    let text = record(pid, "comm")?;
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

/// Returns the path of a process's program, also if that was deleted or replaced since (proc_pid_exe(5)).
pub fn executable(pid: impl Display) -> io::Result<String> {
    let path = fs::read_link(format!("/proc/{pid}/exe"))?;
    Ok(without_deleted(&path.to_string_lossy()).to_owned())
}

/// Returns a path without the mark that /proc gives to a deleted file's.
pub fn without_deleted(path: &str) -> &str {
    path.strip_suffix(" (deleted)").unwrap_or(path)
}

/// Returns the kernel's function in which a thread waits (proc_pid_wchan(5)); empty or `0` if unknown or running.
pub fn wchan(pid: impl Display) -> String {
    record(pid, "wchan").unwrap_or_default()
}

/// Returns the controllers and the path of a process's control group in each hierarchy (cgroups(7)). The unified
/// hierarchy has no controllers.
pub fn cgroups(pid: impl Display) -> io::Result<Vec<(String, String)>> {
    Ok(parse_cgroups(&text(pid, "cgroup")?))
}

/// Parses `hierarchy:controllers:path`.
fn parse_cgroups(text: &str) -> Vec<(String, String)> {
    let line = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        Some((controllers.to_owned(), path.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

/// Parses the offsets of a time namespace, in seconds and nanoseconds for each clock (/proc/PID/timens_offsets,
/// time_namespaces(7)).
pub fn parse_time_offsets(text: &str) -> impl Iterator<Item = (&str, i64, i64)> {
    text.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (clock, seconds, ns) = (fields.next()?, fields.next()?, fields.next()?);
        Some((clock, seconds.parse().ok()?, ns.parse().ok()?))
    })
}

/// Returns a path that opens the file of a descriptor of this process anew.
pub fn path_of(descriptor: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// Returns the number of the system call that a thread waits in, and its first argument (proc_pid_syscall(5)); `None`
/// if it runs, or is in the kernel for another reason.
pub fn syscall(pid: impl Display) -> Option<(i64, u64)> {
    parse_syscall(&record(pid, "syscall").ok()?)
}

/// The same, of the text that the kernel shows.
pub fn parse_syscall(text: &str) -> Option<(i64, u64)> {
    let mut words = text.split_whitespace();
    let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
    let first = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    Some((number, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_file_of_proc_contains_it_is_read_or_refused() {
        let files = ["maps", "stat", "status", "cgroup", "timens_offsets", "syscall"];
        let seeds: Vec<_> = files
            .iter()
            .filter_map(|file| Some(text("self", file).ok()?.into_bytes()))
            .collect();
        mutations::feed(&seeds, std::time::Duration::from_secs(5), 2, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let _ = (
                maps::parse(&text),
                stat::parse(&text),
                version(&text),
                parse_syscall(&text),
            );
            let _ = (parse_cgroups(&text), parse_time_offsets(&text).count());
            let status = Status::parse(&*text);
            let _ = (
                status.field("Name"),
                status.number::<i32>("TracerPid"),
                status.set("CapEff"),
            );
            let _ = status.numbers::<u32>("Uid");
        });
    }

    #[test]
    fn a_version_is_its_first_two_numbers() {
        assert_eq!(version("6.11.4-rt2"), (6, 11));
        assert_eq!(version("2.41"), (2, 41));
        assert_eq!(version("unknown"), (0, 0));
        for release in ["5.3.0", "5.10.0-30-amd64", "6.1.176", "10.0"] {
            assert!(version(release) >= (5, 3), "{release}");
        }
        for release in ["5.2.21", "4.4.0", "3.17", "5", "", "odd", "4.19.0-26-amd64"] {
            assert!(version(release) < (5, 3), "{release}");
        }
        assert_ne!(kernel_version(), (0, 0));
    }

    #[test]
    fn this_process_and_this_thread_are_among_all() {
        let own = std::process::id() as i32;
        let all: Vec<i32> = processes().expect("/proc").collect();
        assert_eq!(all.iter().filter(|pid| **pid == own).count(), 1);
        assert!(all.iter().all(|pid| *pid > 0));
        let tid = Status::read("thread-self").expect("its status").number("Pid");
        assert!(threads(own).expect("its threads").any(|thread| Some(thread) == tid));
        assert!(threads(-1).is_err());
    }

    #[test]
    fn a_process_has_a_name_a_program_and_control_groups() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(executable("self").unwrap(), own.to_string_lossy());
        assert!(
            own.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with(&comm("self").unwrap())
        );
        assert!(
            cgroups("self")
                .unwrap_or_default()
                .iter()
                .all(|(_, path)| path.starts_with('/'))
        );
        assert_eq!(without_deleted("/a (deleted)"), "/a");
    }

    #[test]
    fn a_control_group_has_controllers_and_a_path_with_any_characters() {
        let text = "12:cpu,cpuacct:/a:b\n1:name=systemd:/init.scope\n0::/\nbroken\n";
        let expected = [("cpu,cpuacct", "/a:b"), ("name=systemd", "/init.scope"), ("", "/")];
        assert_eq!(parse_cgroups(text), expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[test]
    fn time_offsets_are_read_as_the_kernel_prints_them() {
        let text = "monotonic           86400         0\nboottime         -604800        -5\nbroken 1\n";
        let offsets: Vec<_> = parse_time_offsets(text).collect();
        assert_eq!(offsets, [("monotonic", 86400, 0), ("boottime", -604_800, -5)]);
    }

    #[test]
    fn only_a_thread_that_waits_in_a_system_call_shows_one() {
        let waits = "202 0x7f00c040 0x0 0x3 0x7ffd10 0x0 0x0 0x7ffd00 0x7f0000\n";
        assert_eq!(parse_syscall(waits), Some((202, 0x7f00_c040)));
        for other in ["running\n", "-1 0x7f00c040 0x7f0000\n", ""] {
            assert_eq!(parse_syscall(other), None, "{other}");
        }
    }
}
