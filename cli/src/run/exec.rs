//! Finds and executes the program, as `env` does.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::unistd::AccessFlags;

use crate::output::note;

/// Returns the file that execvp(3) will execute, if there is one.
pub fn find(command: &OsStr) -> Option<PathBuf> {
    let executable = |path: &PathBuf| path.is_file() && nix::unistd::access(path, AccessFlags::X_OK).is_ok();
    if command.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(command)).filter(executable);
    }
    // confstr(_CS_PATH), which execvp uses if PATH is not set.
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let directories: Vec<_> = path
        .as_bytes()
        .split(|b| *b == b':')
        .map(|d| if d.is_empty() { b"." } else { d })
        .collect();
    directories
        .into_iter()
        .map(|d| PathBuf::from(OsString::from_vec(d.to_vec())).join(command))
        .find(executable)
}

/// Replaces this process. Returns only if that fails, with the status that `env` returns.
pub fn become_program(command: &[OsString]) -> i32 {
    let strings: Result<Vec<_>, _> = command.iter().map(|a| CString::new(a.as_bytes())).collect();
    // An argument from the kernel contains no NUL byte.
    let Ok(strings) = strings else { return 126 };
    let mut argv: Vec<_> = strings.iter().map(|a| a.as_ptr()).collect();
    argv.push(std::ptr::null());
    // The file that execvp would find after failing in the directories before. It fails in other ways, or starts a shell
    // for a script without an interpreter: that is left to execvp.
    let found = find(&command[0]).and_then(|path| CString::new(path.into_os_string().into_vec()).ok());
    // SAFETY: argv is a null-terminated array of C strings that are valid until exec, as is the path.
    unsafe {
        if let Some(path) = &found {
            libc::execv(path.as_ptr(), argv.as_ptr());
        }
        libc::execvp(argv[0], argv.as_ptr());
    }
    let errno = Errno::last();
    note(format_args!(
        "cannot execute {}: {}",
        command[0].to_string_lossy(),
        errno.desc()
    ));
    if errno == Errno::ENOENT { 127 } else { 126 }
}
