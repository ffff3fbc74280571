//! Runs work in a forked child, because it may kill the process or cannot be undone in it.

use std::io::{self, PipeReader, Read};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// One record of a child's report: step, item, result.
pub type ChildRecord = [u64; 3];

const RECORD_BYTES: usize = size_of::<ChildRecord>();

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The child ran to its end.
    Finished,
    /// The child exited with this status, which `body` did not cause.
    Exited(i32),
    /// A signal killed the child.
    Killed(i32),
    /// The child did not end in time and was killed.
    TimedOut,
    /// Other code of this process reaped the child.
    Reaped,
}

impl End {
    /// Returns the predicate of a sentence that begins with "a child process".
    pub fn describe(self) -> String {
        match self {
            End::Finished => "ended".to_owned(),
            End::Exited(status) => format!("exited with status {status}"),
            End::Killed(signal) => format!("was killed by {}", signal_name(signal)),
            End::TimedOut => "did not answer in time".to_owned(),
            End::Reaped => "was reaped by another part of this program".to_owned(),
        }
    }
}

fn signal_name(signal: i32) -> String {
    match signal {
        libc::SIGSYS => "SIGSYS (a seccomp filter of this process forbids a system call)".to_owned(),
        libc::SIGSEGV => "SIGSEGV".to_owned(),
        libc::SIGKILL => "SIGKILL".to_owned(),
        _ => format!("signal {signal}"),
    }
}

/// The end of the pipe to which the child writes its report.
pub struct Reporter(i32);

impl Reporter {
    /// Returns the descriptor to which the records are written.
    pub fn descriptor(&self) -> i32 {
        self.0
    }

    /// Writes one record. The pipe holds thousands, so the write neither blocks nor is split.
    pub fn report(&self, step: u64, item: u64, value: u64) {
        let record: ChildRecord = [step, item, value];
        // SAFETY: writes the bytes of a local array. If it fails, the record is missing, which the parent takes for
        // "unknown".
        unsafe { libc::write(self.0, record.as_ptr().cast(), RECORD_BYTES) };
    }
}

/// Exits from the child when it is dropped, also in a panic, which must not unwind into the caller's code a second
/// time.
struct ExitOnDrop;

impl Drop for ExitOnDrop {
    fn drop(&mut self) {
        // SAFETY: _exit runs no handlers of the parent's and cannot fail.
        unsafe { libc::_exit(PANICKED) };
    }
}

const PANICKED: i32 = 101;

/// Runs `body` in a forked child and returns the records that it wrote before it ended, or before `limit`.
///
/// # Safety
/// The process may have other threads, which the child does not have, although it has the locks that they held. `body`
/// must therefore be async-signal-safe (no allocation, no lock).
pub unsafe fn run(limit: Duration, body: impl FnOnce(&Reporter)) -> io::Result<(Vec<ChildRecord>, End)> {
    let (read_end, write_end) = io::pipe()?;
    let was_pending = is_pending(libc::SIGCHLD);
    // SAFETY: the child does only what `body` does (the caller promises its safety) and calls _exit.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        let _guard = ExitOnDrop;
        // The child may be killed by a signal, as some callers expect; it must leave no core file, nor run a handler
        // that the parent installed.
        // SAFETY: both calls change the child alone.
        unsafe {
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            libc::signal(libc::SIGSYS, libc::SIG_DFL);
        }
        body(&Reporter(write_end.as_raw_fd()));
        // SAFETY: _exit runs no handlers of the parent's and cannot fail.
        unsafe { libc::_exit(0) };
    }
    drop(write_end);
    let (bytes, in_time) = read_until(read_end, Instant::now() + limit);
    if !in_time {
        // SAFETY: the child is ours and not waited for yet, so the pid is still its own.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    // A process forked elsewhere at the same moment can hold the pipe open for a child that has long ended by itself.
    let end = match wait(pid) {
        End::Killed(libc::SIGKILL) if !in_time => End::TimedOut,
        end => end,
    };
    if !was_pending {
        take_back_sigchld(pid);
    }
    Ok((bytes.chunks_exact(RECORD_BYTES).map(decode).collect(), end))
}

fn is_pending(signal: libc::c_int) -> bool {
    // SAFETY: zeros are a signal set, and sigpending writes it.
    unsafe {
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&mut pending) == 0 && libc::sigismember(&pending, signal) == 1
    }
}

/// Removes the SIGCHLD that the child's end left pending, if SIGCHLD is blocked: a program that this process execs
/// later would receive it.
///
/// A child without an exit signal is no alternative: exec sets the signal to SIGCHLD again (execve(2)).
fn take_back_sigchld(pid: libc::pid_t) {
    if !is_pending(libc::SIGCHLD) {
        return;
    }
    // SAFETY: the set and the info are locals; a signal from another sender is put back.
    unsafe {
        let mut child: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut child, libc::SIGCHLD);
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        if libc::sigtimedwait(&child, &mut info, &at_once) == libc::SIGCHLD && info.si_pid() != pid {
            libc::raise(libc::SIGCHLD);
        }
    }
}

/// Runs a child that exits with the result of `body`, and returns how it ended, or `None` if there is no child. Unlike
/// [`run`] this reads no clock, because a clock read may be what kills the process.
///
/// # Safety
/// The same as for [`run`]; besides, `body` must return.
pub unsafe fn exit_of(body: impl FnOnce() -> i32) -> Option<End> {
    // SAFETY: the child does only what `body` does (the caller promises its safety) and calls _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let _guard = ExitOnDrop;
        // SAFETY: both calls change the child alone, and _exit ends it.
        unsafe {
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
            libc::signal(libc::SIGSYS, libc::SIG_DFL);
            libc::_exit(body());
        }
    }
    (pid > 0).then(|| wait(pid))
}

fn decode(bytes: &[u8]) -> ChildRecord {
    let mut record = [0; 3];
    for (field, bytes) in record.iter_mut().zip(bytes.chunks_exact(8)) {
        *field = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    }
    record
}

/// Returns all bytes to the end of the file, and whether that end came before the deadline.
fn read_until(mut pipe: PipeReader, deadline: Instant) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let mut chunk = [0u8; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return (bytes, false);
        }
        let mut poll = libc::pollfd {
            fd: pipe.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the pointer is that of one local pollfd, and the count is one.
        let ready = unsafe { libc::poll(&mut poll, 1, left.as_millis().max(1) as i32) };
        if ready == 0 || ready < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
            continue; // a signal, or the deadline, for which the head of the loop tests
        }
        match pipe.read(&mut chunk) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => return (bytes, true),
        }
    }
}

fn wait(pid: libc::pid_t) -> End {
    let mut status = 0;
    loop {
        // SAFETY: waits for our own child only.
        if unsafe { libc::waitpid(pid, &mut status, 0) } == pid {
            break;
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return End::Reaped;
        }
    }
    match status {
        _ if libc::WIFSIGNALED(status) => End::Killed(libc::WTERMSIG(status)),
        _ if libc::WEXITSTATUS(status) != 0 => End::Exited(libc::WEXITSTATUS(status)),
        _ => End::Finished,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn a_childs_records_arrive_in_order() {
        // SAFETY: reporting is one write(2).
        let (records, end) =
            unsafe { run(LONG, |reporter| (0..100).for_each(|i| reporter.report(1, i, i * i))) }.unwrap();
        assert_eq!(end, End::Finished);
        assert_eq!(records, (0..100).map(|i| [1, i, i * i]).collect::<Vec<_>>());
    }

    #[test]
    fn a_child_that_is_killed_is_distinguished_from_one_that_ends() {
        let die = |signal| {
            move |reporter: &Reporter| {
                reporter.report(7, 0, 0);
                // SAFETY: the child signals itself.
                unsafe { libc::raise(signal) };
                reporter.report(8, 0, 0);
            }
        };
        // SAFETY: raise and write are async-signal-safe.
        let (records, end) = unsafe { run(LONG, die(libc::SIGSYS)) }.unwrap();
        assert_eq!((records, end), (vec![[7, 0, 0]], End::Killed(libc::SIGSYS)));
        assert!(end.describe().contains("seccomp"), "{}", end.describe());
        // SAFETY: _exit is async-signal-safe.
        let (_, end) = unsafe { run(LONG, |_| libc::_exit(3)) }.unwrap();
        assert_eq!(end, End::Exited(3));
    }

    #[test]
    fn a_child_that_hangs_is_killed_and_its_records_are_kept() {
        let start = Instant::now();
        let hang = |reporter: &Reporter| {
            reporter.report(1, 2, 3);
            loop {
                // SAFETY: pause only waits.
                unsafe { libc::pause() };
            }
        };
        // SAFETY: pause and write are async-signal-safe.
        let (records, end) = unsafe { run(Duration::from_millis(50), hang) }.unwrap();
        assert_eq!((records, end), (vec![[1, 2, 3]], End::TimedOut));
        assert!(start.elapsed() < LONG);
    }
}
