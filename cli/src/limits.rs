//! Limits that this process was started with, and that are meant for the program (setrlimit(2)).

use std::ffi::{c_char, c_int};

use fastpath_helper::process::map_stack;

/// Stack size in bytes below which parsing the command line would fail.
const ENOUGH_STACK: libc::rlim_t = 1 << 20;
/// Size in bytes of the stack that this process makes in that case.
const OWN_STACK: usize = 8 << 20;

/// Type of a limit's name; the C libraries differ.
#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

fn get(resource: Resource) -> Option<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: getrlimit stores into a local.
    (unsafe { libc::getrlimit(resource, &mut limit) } == 0).then_some(limit)
}

fn set(resource: Resource, limit: &libc::rlimit) -> bool {
    // SAFETY: setrlimit reads a local.
    unsafe { libc::setrlimit(resource, limit) == 0 }
}

/// Size in bytes that no region exceeds, with thunks beside every library.
pub const LARGEST_FILE: libc::rlim_t = 1 << 20;

/// The limit of the size of files, raised. Dropping this restores the old limit.
#[must_use]
pub struct FileSize(Option<libc::rlimit>);

impl FileSize {
    /// Allows files of `bytes` bytes: files in memory count, too, and exceeding the limit raises SIGXFSZ. The error
    /// says why the limit cannot be raised.
    pub fn at_least(bytes: libc::rlim_t) -> Result<FileSize, String> {
        let Some(found) = get(libc::RLIMIT_FSIZE).filter(|limit| limit.rlim_cur < bytes) else {
            return Ok(FileSize(None));
        };
        let raised = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: found.rlim_max.max(bytes),
        };
        if set(libc::RLIMIT_FSIZE, &raised) {
            return Ok(FileSize(Some(found)));
        }
        Err(format!(
            "files may be of {} bytes at most here (RLIMIT_FSIZE), and {bytes} are needed in memory; raise the limit (ulimit -f)",
            found.rlim_cur
        ))
    }
}

impl Drop for FileSize {
    fn drop(&mut self) {
        if let Some(found) = &self.0 {
            set(libc::RLIMIT_FSIZE, found);
        }
    }
}

/// Makes this process end with an exit status where it would abort: after the message of the standard library, if there is no more
/// memory (ulimit -v).
pub fn exit_without_memory() {
    extern "C" fn exit(_signal: c_int) {
        // SAFETY: _exit may be called in a signal handler.
        unsafe { libc::_exit(crate::exit::FAILED) }
    }
    let handler: extern "C" fn(c_int) = exit;
    // SAFETY: the handler only ends the process. A program that is executed gets the default.
    unsafe { libc::signal(libc::SIGABRT, handler as *const () as libc::sighandler_t) };
}

/// Runs `work` on a large enough stack, whatever limit the program will have (ulimit -s).
pub fn with_enough_stack(
    argc: c_int,
    argv: *const *const c_char,
    work: extern "C" fn(c_int, *const *const c_char) -> !,
) -> ! {
    let is_small = get(libc::RLIMIT_STACK).is_some_and(|limit| limit.rlim_cur < ENOUGH_STACK);
    if !is_small {
        work(argc, argv)
    }
    let Ok(stack) = map_stack(OWN_STACK) else {
        work(argc, argv)
    };
    let top = stack as usize + OWN_STACK;
    // SAFETY: `top` is the aligned end of a stack that nothing else uses. `work` follows the C ABI and does not return,
    // so no code looks for this stack's contents on the new one.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "mov rsp, {top}",
            "xor ebp, ebp",
            "call {work}",
            "ud2",
            top = in(reg) top,
            work = in(reg) work,
            in("rdi") argc,
            in("rsi") argv,
            options(noreturn)
        )
    }
    // SAFETY: `top` is the aligned end of an unused stack, and `work` follows the C ABI and does not return.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "mov sp, {top}",
            "mov x29, xzr",
            "blr {work}",
            "brk #1",
            top = in(reg) top,
            work = in(reg) work,
            in("x0") argc,
            in("x1") argv,
            options(noreturn)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_the_size_of_files_is_raised_for_a_while() {
        let found = get(libc::RLIMIT_FSIZE).expect("a limit");
        let small = libc::rlimit {
            rlim_cur: 1 << 20,
            ..found
        };
        assert!(set(libc::RLIMIT_FSIZE, &small));
        let raised = FileSize::at_least(2 << 20).expect("a higher one");
        assert_eq!(get(libc::RLIMIT_FSIZE).map(|limit| limit.rlim_cur), Some(2 << 20));
        drop(raised);
        assert_eq!(get(libc::RLIMIT_FSIZE).map(|limit| limit.rlim_cur), Some(1 << 20));
        assert!(set(libc::RLIMIT_FSIZE, &found));
    }
}
