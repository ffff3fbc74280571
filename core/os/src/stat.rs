//! /proc/PID/stat (proc_pid_stat(5)).

use std::fmt::Display;
use std::io;

/// Fields of a process's or thread's stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `D`, `T`, `t`, `Z`, `X` and others.
    pub state: char,
    /// PID of the parent.
    pub parent: i32,
    /// PF_* of the kernel's include/linux/sched.h.
    pub flags: u32,
    /// CPU time in user space and in the kernel, in clock ticks.
    pub cpu_time: u64,
    /// Start time after boot, in clock ticks.
    pub start_time: u64,
}

impl Stat {
    /// Reads the stat of a process or thread.
    pub fn read(pid: impl Display) -> io::Result<Stat> {
        let text = crate::record(pid, "stat")?;
        parse(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a stat that is none"))
    }

    /// Returns the fields of the text from the third one on: the second, the name, is in parentheses and may contain anything.
    pub fn fields(text: &str) -> Option<Vec<&str>> {
        Some(text.rsplit_once(')')?.1.split_whitespace().collect())
    }

    /// Returns whether it is a thread of the kernel.
    pub fn is_kernel_thread(&self) -> bool {
        /// PF_KTHREAD.
        const KERNEL_THREAD: u32 = 0x0020_0000;
        self.flags & KERNEL_THREAD != 0
    }

    /// Returns whether it has ended, and only its parent or tracer has not taken notice.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

pub(crate) fn parse(text: &str) -> Option<Stat> {
    let fields = Stat::fields(text)?;
    // Field 3 is the first one here.
    let field = |number: usize| fields.get(number - 3);
    Some(Stat {
        state: field(3)?.chars().next()?,
        parent: field(4)?.parse().ok()?,
        flags: field(9)?.parse().ok()?,
        cpu_time: field(14)?.parse::<u64>().ok()?.checked_add(field(15)?.parse().ok()?)?,
        start_time: field(22)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_from_behind_a_name_of_any_characters() {
        let text = "7 (a) Z (b) S 1 7 7 0 -1 2097152 0 0 0 0 3 4 0 0 20 0 1 0 4242 0 0\n";
        let expected = Stat {
            state: 'S',
            parent: 1,
            flags: 0x0020_0000,
            cpu_time: 7,
            start_time: 4242,
        };
        assert_eq!(parse(text), Some(expected));
        assert!(expected.is_kernel_thread() && !expected.has_ended());
        let endless = text.replace("3 4", "3 18446744073709551615");
        for broken in ["", "7 (a", "7 (a) S 1", &endless] {
            assert_eq!(parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn this_process_runs_and_has_a_parent() {
        let own = Stat::read("self").unwrap();
        assert!(!own.has_ended() && !own.is_kernel_thread());
        assert_eq!(own.parent, std::os::unix::process::parent_id() as i32);
        assert!(Stat::read(-1).is_err());
    }
}
