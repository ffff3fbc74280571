//! Starting the program that is to be watched: it waits, before its exec, until everything is ready.

use nix::unistd::{ForkResult, fork, pipe};
use std::ffi::{CString, OsString};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Exit statuses of programs that could not be started, as shells have them.
pub const NOT_EXECUTABLE: i32 = 126;
/// See [`NOT_EXECUTABLE`].
pub const NOT_FOUND: i32 = 127;

/// A program that has not begun.
pub(crate) struct Waiting {
    pub pid: u32,
    go: std::fs::File,
    failure: std::fs::File,
}

/// Forks. `prepare` is run in the new process before its exec; it must be async-signal-safe and answer 0 or an errno.
pub(crate) fn start(command: &[OsString], prepare: impl Fn() -> i32) -> Result<Waiting, String> {
    let strings: Result<Vec<CString>, _> = command.iter().map(|word| CString::new(word.as_bytes())).collect();
    let strings = strings.map_err(|_| "an argument has a null byte in it".to_owned())?;
    let argv: Vec<_> = strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect();
    let failed = |error: nix::Error| format!("{}: cannot be started: {error}", command[0].to_string_lossy());
    let (wait_end, go_end) = pipe().map_err(failed)?;
    let (failure_end, report_end) = pipe().map_err(failed)?;
    for end in [&go_end, &failure_end, &report_end, &wait_end] {
        close_on_exec(end);
    }
    // SAFETY: the child makes system calls only; everything was allocated above.
    match unsafe { fork() }.map_err(failed)? {
        ForkResult::Parent { child } => Ok(Waiting {
            pid: child.as_raw() as u32,
            go: go_end.into(),
            failure: failure_end.into(),
        }),
        ForkResult::Child => {
            // SAFETY: system calls on descriptors and strings that are this process's own.
            unsafe {
                libc::close(go_end.as_raw_fd());
                let mut byte = 0u8;
                // The parent died, or says go.
                if libc::read(wait_end.as_raw_fd(), (&raw mut byte).cast(), 1) == 1 {
                    fastpath_measure::forbid_counter_again();
                    let mut errno = prepare();
                    if errno == 0 {
                        libc::execvp(argv[0], argv.as_ptr());
                        errno = *libc::__errno_location();
                    }
                    libc::write(report_end.as_raw_fd(), (&raw const errno).cast(), size_of::<i32>());
                }
                libc::_exit(NOT_FOUND)
            }
        }
    }
}

fn close_on_exec(fd: &OwnedFd) {
    // SAFETY: fcntl with integers.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
}

impl Waiting {
    /// Lets it begin. What is returned tells, once it has ended, whether it could be executed.
    pub(crate) fn go(mut self) -> Started {
        let _ = self.go.write_all(b"!");
        Started {
            pid: self.pid,
            failure: self.failure,
        }
    }
}

/// A program that has begun.
#[derive(Debug)]
pub(crate) struct Started {
    pub pid: u32,
    failure: std::fs::File,
}

impl Started {
    /// Why it could not be executed; to be asked when it has ended.
    pub(crate) fn failure(&mut self) -> Option<std::io::Error> {
        let mut errno = [0; 4];
        self.failure.read_exact(&mut errno).ok()?;
        Some(std::io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
    }
}
