//! Starts the program to watch. It waits before its exec until everything is ready.

use nix::unistd::{ForkResult, fork, pipe};
use std::ffi::{CString, OsString};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Exit status of a program that cannot be executed, as in shells.
pub const NOT_EXECUTABLE: i32 = 126;
/// Exit status of a program that is not found, as in shells.
pub const NOT_FOUND: i32 = 127;

/// A program before its exec.
pub(crate) struct Waiting {
    pub pid: u32,
    go: std::fs::File,
    failure: std::fs::File,
}

/// Forks. The child runs `prepare` before its exec; `prepare` must be async-signal-safe and return 0 or an errno.
pub(crate) fn start(command: &[OsString], prepare: impl Fn() -> i32) -> Result<Waiting, String> {
    let strings: Result<Vec<CString>, _> = command.iter().map(|word| CString::new(word.as_bytes())).collect();
    let strings = strings.map_err(|_| "an argument contains a null byte".to_owned())?;
    let argv: Vec<_> = strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect();
    let failed = |error: nix::Error| format!("{}: cannot be started: {error}", command[0].to_string_lossy());
    let (wait_end, go_end) = pipe().map_err(failed)?;
    let (failure_end, report_end) = pipe().map_err(failed)?;
    for end in [&go_end, &failure_end, &report_end, &wait_end] {
        close_on_exec(end);
    }
    // SAFETY: the child makes only system calls; everything was allocated above.
    match unsafe { fork() }.map_err(failed)? {
        ForkResult::Parent { child } => Ok(Waiting {
            pid: child.as_raw() as u32,
            go: go_end.into(),
            failure: failure_end.into(),
        }),
        ForkResult::Child => {
            // SAFETY: system calls on descriptors and strings of this process.
            unsafe {
                libc::close(go_end.as_raw_fd());
                let mut byte = 0u8;
                // End of file means that the parent has died, a byte that the child may start.
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
    // SAFETY: fcntl takes only integers here.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
}

impl Waiting {
    /// Lets it start. The result shows, once the program has ended, whether the exec succeeded.
    pub(crate) fn go(mut self) -> Started {
        let _ = self.go.write_all(b"!");
        Started {
            pid: self.pid,
            failure: self.failure,
        }
    }
}

/// A program after its start.
#[derive(Debug)]
pub(crate) struct Started {
    pub pid: u32,
    failure: std::fs::File,
}

impl Started {
    /// Returns why the exec failed. Call it after the program has ended.
    pub(crate) fn failure(&mut self) -> Option<std::io::Error> {
        let mut errno = [0; 4];
        self.failure.read_exact(&mut errno).ok()?;
        Some(std::io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
    }
}
