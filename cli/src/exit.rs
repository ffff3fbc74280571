//! Exit statuses, the same for all commands: `fastpath --help` and fastpath(1) have the table. Those above 63 are
//! sysexits(3)'s.

/// Something slow, broken, or looked for was found.
pub const FOUND: i32 = 1;
/// A usage error; clap exits with it, too.
pub const USAGE: i32 = 2;
/// No process has that number, or that name.
pub const NO_SUCH_PROCESS: i32 = 3;
/// The input does not exist, cannot be read, or is of another kind (EX_NOINPUT).
pub const NO_INPUT: i32 = 66;
/// The result cannot be determined, or the work cannot be done on this host (EX_UNAVAILABLE).
pub const CANNOT_TELL: i32 = 69;
/// Something else failed (EX_SOFTWARE).
pub const FAILED: i32 = 70;
/// The output cannot be written (EX_IOERR).
pub const NOT_WRITTEN: i32 = 74;

/// Returns the status of a command that failed: [`NO_SUCH_PROCESS`] if it was given the PID of a process that does not
/// exist, else [`CANNOT_TELL`].
pub fn without(pid: Option<i32>) -> i32 {
    match pid {
        Some(pid) if !is_there(pid) => NO_SUCH_PROCESS,
        _ => CANNOT_TELL,
    }
}

/// Returns whether such a process exists; /proc may hide it.
fn is_there(pid: i32) -> bool {
    // SAFETY: signal 0 is not sent; the call only checks whether it could be.
    let answer = unsafe { libc::kill(pid, 0) };
    answer == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}
