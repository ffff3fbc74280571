//! Processes as /proc shows them.

use std::time::{Duration, Instant};

use super::command::MARK;

/// Longer than any condition takes on a machine that is busy with other work. Only a condition that never holds takes
/// this long.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A process id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pid(pub i32);

/// Polls until `condition` holds; fails the test if that takes too long.
#[track_caller]
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(TIMEOUT, condition), "never happened: {what}");
}

/// Polls until `condition` holds, but not for longer than `limit`.
pub fn holds_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

impl Pid {
    pub fn read(self, file: &str) -> String {
        let bytes = std::fs::read(format!("/proc/{}/{file}", self.0)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// All processes.
    pub fn all() -> Vec<Pid> {
        let names = std::fs::read_dir("/proc").expect("/proc").flatten();
        names
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid))
            .collect()
    }

    /// Returns the helpers that were started under this mark.
    pub fn helpers(mark: &str) -> Vec<Pid> {
        Pid::helpers_among(Pid::all(), mark)
    }

    /// Returns those of `pids` that are helpers and were started under this mark.
    pub fn helpers_among(pids: impl IntoIterator<Item = Pid>, mark: &str) -> Vec<Pid> {
        let started_here = format!("{MARK}={mark}\0");
        let is_helper = |pid: &Pid| {
            pid.read("cmdline").starts_with("fastpath-publisher") && pid.read("environ").contains(&started_here)
        };
        pids.into_iter().filter(is_helper).collect()
    }

    /// Returns the one helper that was started under this mark.
    #[track_caller]
    pub fn helper(mark: &str) -> Pid {
        let mut helpers = Vec::new();
        wait_until("one helper", || {
            helpers = Pid::helpers(mark);
            helpers.len() == 1
        });
        helpers[0]
    }

    pub fn children(self) -> Vec<Pid> {
        let mut all = Pid::all();
        all.retain(|pid| pid.status("PPid") == self.0.to_string());
        all
    }

    /// Returns whether it runs. An orphan that has ended stays visible until init reaps it.
    pub fn exists(self) -> bool {
        !matches!(self.state(), ' ' | 'Z' | 'X')
    }

    /// A field of /proc/PID/status.
    pub fn status(self, field: &str) -> String {
        let status = self.read("status");
        let line = status.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    }

    /// R, S, D, T, t, Z.
    pub fn state(self) -> char {
        self.status("State").chars().next().unwrap_or(' ')
    }

    /// Returns whether a child of this process has been stopped or has ended, as a shell finds out.
    pub fn has_stopped_or_ended(self) -> bool {
        // SAFETY: waitid stores into a siginfo of this function's own; the child stays waitable.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let options = libc::WSTOPPED | libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            libc::waitid(libc::P_PID, self.0 as libc::id_t, &mut info, options) == 0 && info.si_signo == libc::SIGCHLD
        }
    }

    /// The file name of the program that it runs.
    pub fn program(self) -> String {
        let exe = std::fs::read_link(format!("/proc/{}/exe", self.0)).unwrap_or_default();
        exe.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether fastpath's page is mapped there.
    pub fn is_served(self) -> bool {
        self.read("maps").contains("/memfd:fastpath-page")
    }

    pub fn cpu_time(self) -> Duration {
        let stat = self.read("stat");
        // Fields 14 and 15; the name before them may contain blanks.
        let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: u64 = [11, 12]
            .iter()
            .filter_map(|i| fields.get(*i)?.parse::<u64>().ok())
            .sum();
        // SAFETY: sysconf takes an integer.
        let hertz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as u64;
        Duration::from_millis(ticks * 1000 / hertz)
    }

    pub fn signal(self, signal: i32) {
        // SAFETY: kill takes integers.
        unsafe { libc::kill(self.0, signal) };
    }

    pub fn signal_group(self, signal: i32) {
        // SAFETY: kill takes integers.
        unsafe { libc::kill(-self.0, signal) };
    }

    /// A description for the message of a failed test.
    pub fn describe(self) -> String {
        let mut lines = format!(
            "{} {:?} state {} tracer {} in {}\n",
            self.0,
            self.read("cmdline"),
            self.state(),
            self.status("TracerPid"),
            self.read("wchan")
        );
        for child in self.children() {
            lines += &child.describe();
        }
        lines
    }
}
