//! The answers of one guest process, kept exact: each is taken back before a call that changes it takes effect, and
//! written anew after it.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::FileTypeExt;

use fastpath_page::answers::{self, Answers, Identity, Memory as Store};
use nix::unistd::Pid;

use crate::change::Change;
use crate::memory::Memory;

/// A page of answers, written through /proc/PID/mem.
struct Remote {
    memory: Memory,
    address: u64,
    words: [u64; answers::WORDS],
}

impl Store for Remote {
    type Error = io::Error;

    fn load(&self, index: usize) -> u64 {
        self.words[index]
    }

    fn store(&mut self, index: usize, word: u64) -> io::Result<()> {
        self.words[index] = word;
        self.memory.write(self.address + index as u64 * 8, &word.to_ne_bytes())
    }
}

/// A guest process with pages of its own.
pub struct Process {
    pid: Pid,
    answers: Answers<Remote>,
    /// Whether its parent is the sandbox, which ends no earlier than its guests.
    is_first: bool,
    has_threads: bool,
    /// Whether another process may use its memory for as long as both run.
    shares_memory: bool,
    /// Whether descriptors may be marked: its table belongs to this process alone.
    owns_descriptors: bool,
    /// Threads that are making a call which changes something, each with what it changes.
    changing: Vec<(Pid, Change)>,
}

impl Process {
    /// Takes a process whose pages are new: zero, at this address.
    pub fn new(pid: Pid, address: u64, is_first: bool) -> io::Result<Process> {
        let remote = Remote {
            memory: Memory::open(pid)?,
            address,
            words: [0; answers::WORDS],
        };
        let mut process = Process {
            pid,
            answers: Answers(remote),
            is_first,
            has_threads: false,
            shares_memory: false,
            owns_descriptors: true,
            changing: Vec::new(),
        };
        process.answers.set_random(true)?;
        process.answer()?;
        Ok(process)
    }

    /// Takes a child with a copy of this process's memory, in which the kernel has wiped the pages.
    pub fn forked(&self, child: Pid, shares_descriptors: bool) -> io::Result<Process> {
        let mut process = Process::new(child, self.answers.0.address, false)?;
        process.owns_descriptors = !shares_descriptors && self.owns_descriptors;
        for descriptor in 0..answers::DESCRIPTORS {
            if self.answers.is_urandom(descriptor) {
                process.mark_if_urandom(descriptor)?;
            }
        }
        Ok(process)
    }

    /// Takes back what a call of a thread is going to change.
    pub fn before(&mut self, thread: Pid, change: Change) -> io::Result<()> {
        match change {
            Change::Threads => {
                self.has_threads = true;
                self.answers.invalidate(&[Identity::Tid])?;
            }
            Change::LendMemory { is_returned } => {
                self.shares_memory |= !is_returned;
                self.answers.invalidate(&Identity::ALL)?;
                self.answers.unmark(0, u32::MAX)?;
            }
            Change::ShareDescriptors => {
                self.owns_descriptors = false;
                self.answers.unmark(0, u32::MAX)?;
            }
            Change::Namespaces => {
                self.owns_descriptors = false;
                self.answers.invalidate(&Identity::ALL)?;
                self.answers.unmark(0, u32::MAX)?;
            }
            Change::Credentials => self.answers.invalidate(&Identity::CREDENTIALS)?,
            Change::Group => self.answers.invalidate(&[Identity::Pgid, Identity::Sid])?,
            Change::Descriptors { first, last } => self.answers.unmark(first, last)?,
            Change::Memory => self.answers.forget_memory()?,
            Change::NewDescriptor => {}
        }
        self.changing.push((thread, change));
        Ok(())
    }

    /// Writes what a call has changed.
    pub fn after(&mut self, thread: Pid, change: Change, result: i64) -> io::Result<()> {
        self.changing.retain(|(changing, _)| *changing != thread);
        match change {
            // A page that was used during the call may be gone.
            Change::Memory => self.answers.forget_memory(),
            Change::LendMemory { .. } | Change::Namespaces | Change::Credentials | Change::Group => self.answer(),
            Change::NewDescriptor if result >= 0 => self.mark_if_urandom(result as u32),
            _ => Ok(()),
        }
    }

    /// Voids what is known about its memory, which another process has changed.
    pub fn memory_changes(&mut self) -> io::Result<()> {
        self.answers.forget_memory()
    }

    /// Forgets a thread that has ended.
    pub fn ended(&mut self, thread: Pid) {
        self.changing.retain(|(changing, _)| *changing != thread);
    }

    /// Returns whether another process uses its memory (vfork).
    fn is_lent(&self) -> bool {
        self.shares_memory || self.is_changing(|change| matches!(change, Change::LendMemory { .. }))
    }

    fn is_changing(&self, changes: impl Fn(&Change) -> bool) -> bool {
        self.changing.iter().any(|(_, change)| changes(change))
    }

    /// Writes every answer that is known to be right until a call changes it.
    fn answer(&mut self) -> io::Result<()> {
        if self.is_lent() || !is_in_the_sandboxs_namespaces(self.pid)? {
            return Ok(());
        }
        let pid = self.pid.as_raw() as u32;
        self.answers.set(Identity::Pid, pid)?;
        if !self.has_threads {
            self.answers.set(Identity::Tid, pid)?;
        }
        if self.is_first {
            self.answers.set(Identity::Ppid, std::process::id())?;
        }
        if !self.is_changing(|change| matches!(change, Change::Group | Change::Namespaces)) {
            self.answers
                .set(Identity::Pgid, nix::unistd::getpgid(Some(self.pid))?.as_raw() as u32)?;
            self.answers
                .set(Identity::Sid, nix::unistd::getsid(Some(self.pid))?.as_raw() as u32)?;
        }
        if !self.is_changing(|change| matches!(change, Change::Credentials | Change::Namespaces))
            && let Some(credentials) = credentials(self.pid)?
        {
            for (identity, value) in Identity::CREDENTIALS.into_iter().zip(credentials) {
                self.answers.set(identity, value)?;
            }
        }
        Ok(())
    }

    /// Marks a descriptor if it is open for reading on /dev/urandom, and nothing is closing descriptors.
    fn mark_if_urandom(&mut self, descriptor: u32) -> io::Result<()> {
        let is_closing = self.is_changing(|change| matches!(change, Change::Descriptors { .. }));
        if self.owns_descriptors && !self.is_lent() && !is_closing && is_urandom(self.pid, descriptor) {
            self.answers.mark_urandom(descriptor, true)?;
        }
        Ok(())
    }
}

/// Returns the ids of a process in the order of `Identity::CREDENTIALS`, if all of its threads have the same.
fn credentials(pid: Pid) -> io::Result<Option<[u32; 8]>> {
    let mut all = HashSet::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = std::fs::read_to_string(thread?.path().join("status"))?;
        let ids = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            line.into_iter()
                .flat_map(str::split_whitespace)
                .filter_map(|id| id.parse().ok())
        };
        let ids: Vec<u32> = ids("Uid:").chain(ids("Gid:")).collect();
        all.insert(ids);
    }
    let mut all = all.into_iter();
    let only = all.next().filter(|_| all.next().is_none());
    Ok(only.and_then(|ids| ids.try_into().ok()))
}

/// Returns whether the guest knows processes and users by the numbers that the sandbox sees.
fn is_in_the_sandboxs_namespaces(pid: Pid) -> io::Result<bool> {
    for namespace in ["pid", "user"] {
        let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/{namespace}"));
        if of(&pid.to_string())? != of("self")? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_urandom(pid: Pid, descriptor: u32) -> bool {
    /// /dev/urandom (Documentation/admin-guide/devices.txt).
    const URANDOM: u64 = libc::makedev(1, 9);
    let is_device = std::fs::metadata(format!("/proc/{pid}/fd/{descriptor}"))
        .is_ok_and(|file| file.file_type().is_char_device() && std::os::unix::fs::MetadataExt::rdev(&file) == URANDOM);
    is_device && is_readable(pid, descriptor).unwrap_or(false)
}

fn is_readable(pid: Pid, descriptor: u32) -> Option<bool> {
    let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).ok()?;
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
    let flags = libc::c_int::from_str_radix(flags.trim(), 8).ok()?;
    Some(flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_WRONLY)
}
