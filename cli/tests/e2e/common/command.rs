//! Starts a command whose input is /dev/null and whose output goes to files, so that no process that it leaves running
//! can block a test; and waits for it with a timeout.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::Pid;
use super::processes::TIMEOUT;
use super::skip::{give_up, has_seccomp_filter};

/// Starts a program with its kernel's vDSO redirected; fails if the program cannot be served.
pub const SERVED: &[&str] = &["run", "--clocks", "all", "--require", "--"];
/// Starts a program as on a host without a vDSO: a read that fastpath does not answer is a system call.
pub const SERVED_WITHOUT_VDSO: &[&str] = &["run", "--without-vdso", "--clocks", "all", "--require", "--"];

/// The name of the variable by which a test recognises its own processes: the kernel keeps showing the environment that
/// a process was started with.
pub const MARK: &str = "FASTPATH_TEST_MARK";

/// `fastpath ARGUMENTS`.
pub fn fastpath(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fastpath"));
    command.args(arguments);
    command
}

/// The unprivileged user `nobody`, whose number is the same on every Linux.
pub const NOBODY: u32 = 65534;

/// Returns a command that gives the program which is added to it the rights of the user `nobody` and no more. Needs root
/// and setpriv(1).
pub fn unprivileged() -> Command {
    let id = NOBODY.to_string();
    let mut run = Command::new("setpriv");
    run.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--inh-caps=-all"]);
    run
}

/// `fastpath run --clocks all --require -- COMMAND`.
pub fn served(command: &[&str]) -> Command {
    let mut run = fastpath(SERVED);
    run.args(command);
    run
}

/// `fastpath run --without-vdso --clocks all --require -- COMMAND`.
pub fn served_without_vdso(command: &[&str]) -> Command {
    let mut run = fastpath(SERVED_WITHOUT_VDSO);
    run.args(command);
    run
}

/// The result of a command.
#[derive(Debug)]
pub struct Outcome {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl Outcome {
    /// Returns the first line of standard error, or of standard output: the reason for which a test is skipped.
    pub fn first_line(&self) -> &str {
        let mut lines = self.err.lines().chain(self.out.lines());
        lines.next().unwrap_or("a program ended without a reason")
    }

    /// Fails the test unless the command exited with 0.
    #[track_caller]
    pub fn expect_success(self) -> Outcome {
        self.expect_code(0)
    }

    /// Fails the test unless the command exited with `code`.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Outcome {
        assert_eq!(self.status.code(), Some(code), "{self:#?}");
        self
    }

    /// Fails the test unless the command ended by `signal`.
    #[track_caller]
    pub fn expect_signal(self, signal: i32) -> Outcome {
        assert_eq!(self.status.signal(), Some(signal), "{self:#?}");
        self
    }

    /// Fails the test unless the command has printed this, and no message.
    #[track_caller]
    pub fn expect_output(self, out: &str) -> Outcome {
        assert!(self.out.trim_end() == out && self.err.is_empty(), "{self:#?}");
        self
    }
}

/// A command that runs. It is killed with its process group when this is dropped.
pub struct Running {
    child: Child,
    out: File,
    err: File,
    mark: String,
}

/// Starts a command as the leader of a process group.
#[track_caller]
pub fn start(mut command: Command) -> Running {
    command.process_group(0);
    start_in_group(command)
}

/// Restores the default disposition of the signals that end programs. nohup(1) and a shell's `&` ignore some of them,
/// and every program that a test starts inherits that.
fn heed_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
            // SAFETY: the default disposition, of a signal that has one.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    });
}

/// Starts a command that makes its own session or process group.
#[track_caller]
pub fn start_in_group(mut command: Command) -> Running {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let needs_to_suspend = |argument: &OsStr| ["attach", "detach", "--rescue"].iter().any(|name| argument == *name);
    if command.get_args().any(needs_to_suspend) && has_seccomp_filter() {
        give_up("a seccomp filter, as containers have, keeps attach from suspending others");
    }
    heed_signals();
    let file = || tempfile::tempfile().expect("a temporary file");
    let (out, err) = (file(), file());
    let given = command.get_envs().find(|(name, _)| *name == MARK);
    let mark = match given.and_then(|(_, value)| value) {
        Some(mark) => mark.to_string_lossy().into_owned(),
        None => format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)),
    };
    command
        .env(MARK, &mark)
        .stdin(Stdio::null())
        .stdout(out.try_clone().expect("dup"))
        .stderr(err.try_clone().expect("dup"));
    let child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    Running { child, out, err, mark }
}

/// Runs a command to its end.
#[track_caller]
pub fn finish(command: Command) -> Outcome {
    start(command).finish()
}

/// Repeats a command until it exits with this status, prints this output and nothing on standard error; fails the test
/// if that takes too long. A program that starts while the publisher gets no CPU for longer than an anchor lasts runs
/// untouched: that is correct, and not what is tested.
#[track_caller]
pub fn comes_to(command: impl Fn() -> Command, code: i32, out: &str) {
    /// Enough for commands that take long by themselves.
    const TRIES: u32 = 10;
    let begun = Instant::now();
    for tries in 1.. {
        let outcome = finish(command());
        if outcome.status.code() == Some(code) && outcome.out.trim_end() == out && outcome.err.is_empty() {
            return;
        }
        assert!(begun.elapsed() < TIMEOUT || tries < TRIES, "{outcome:#?}");
    }
}

impl Running {
    /// The program's PID, which was fastpath's before its exec.
    pub fn pid(&self) -> Pid {
        Pid(self.child.id() as i32)
    }

    /// The value of [`MARK`] in the environment of the started processes.
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// Returns the output so far.
    pub fn out_so_far(&self) -> String {
        text(&self.out)
    }

    /// Returns the text on standard error so far.
    pub fn err_so_far(&self) -> String {
        text(&self.err)
    }

    /// Waits for the end of the command.
    #[track_caller]
    pub fn finish(mut self) -> Outcome {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return Outcome {
                    status,
                    out: text(&self.out),
                    err: text(&self.err),
                };
            }
            assert!(
                begun.elapsed() < TIMEOUT,
                "still running after {TIMEOUT:?}; printed {:?} and {:?}\n{}",
                text(&self.out),
                text(&self.err),
                self.pid().describe()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.pid().signal_group(libc::SIGKILL);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A file's position is shared with the processes that write to it, so this reads by another open file description.
fn text(file: &File) -> String {
    use std::os::fd::AsRawFd;
    let mut bytes = Vec::new();
    let mut own = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("reopen");
    own.rewind().and_then(|()| own.read_to_end(&mut bytes)).expect("read");
    String::from_utf8_lossy(&bytes).into_owned()
}
