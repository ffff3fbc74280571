//! Tries the system calls of the surgery in a child, because the program inherits the seccomp filters, and a filter may
//! kill the child.

#[cfg(target_arch = "x86_64")]
mod i386;

use std::os::fd::AsRawFd;

use fastpath_inject::target::ThreadStatus;

/// Whether the surgery may be tried on programs, under the filters that this process has and they inherit.
#[derive(Default)]
pub(crate) struct Trial {
    /// Number of filters.
    pub filters: u32,
    /// Reason why 32-bit programs must be left alone.
    pub refuses_32_bit: Option<String>,
}

/// Tries the system calls of the surgery and of the hook under this process's filters. Does nothing if it has none.
pub(crate) fn seccomp_allows_surgery() -> Result<Trial, String> {
    let filters = ThreadStatus::read("self").map_err(|e| e.to_string())?.filters;
    if filters > 0 {
        try_in_child(try_calls, &CALLS)?;
    }
    Ok(Trial {
        filters,
        refuses_32_bit: (filters > 0).then(refuses_32_bit).flatten(),
    })
}

/// Returns why 32-bit programs must be left alone. Their calls are tried on x86-64 only.
fn refuses_32_bit() -> Option<String> {
    #[cfg(target_arch = "x86_64")]
    return try_in_child(i386::try_calls, &i386::CALLS)
        .err()
        .map(|why| format!("for 32-bit programs {why}"));
    #[cfg(not(target_arch = "x86_64"))]
    Some("this process has a seccomp filter, under which no call of a 32-bit program was tried".into())
}

/// Runs `calls` in a child; their error is the number, from 1, of the call that failed.
fn try_in_child(calls: fn() -> Result<(), i32>, names: &[&str]) -> Result<(), String> {
    // No signal at its end, which the program could find pending.
    // SAFETY: this process has one thread; the child makes system calls only, on a copy of this stack.
    let child = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } as libc::pid_t;
    if child < 0 {
        return Err(format!("clone: {}", std::io::Error::last_os_error()));
    }
    if child == 0 {
        let status = calls().map_or_else(|nth| nth, |()| 0);
        // SAFETY: _exit ends the child without cleaning up anything of the parent's.
        unsafe { libc::_exit(status) }
    }
    let mut status = 0;
    // SAFETY: waits for the child just made, and writes its status to a local.
    unsafe { libc::waitpid(child, &mut status, libc::__WALL) };
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => Ok(()),
        (true, nth) => Err(format!(
            "the seccomp filter of this process forbids {}",
            names[(nth as usize - 1).min(names.len() - 1)]
        )),
        _ => Err("the seccomp filter of this process kills a process that makes a call that is needed".into()),
    }
}

const CALLS: [&str; 10] = [
    "socketpair",
    "sendmsg or recvmsg",
    "memfd_create",
    "executable memory",
    "mmap of a memfd",
    "munmap",
    "futex",
    "readlinkat",
    "prctl",
    "ptrace of a child",
];

/// Makes the calls; the error is the number, from 1, of the call that failed.
fn try_calls() -> Result<(), i32> {
    let check = |ok: bool, nth: i32| if ok { Ok(()) } else { Err(nth) };
    let map = |protection, flags, fd| {
        // SAFETY: fresh mappings, used by nothing.
        unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, fd, 0) }
    };
    let mut pair = [0; 2];
    // SAFETY: plain system calls with valid pointers to locals; the child's exit releases what they make.
    unsafe {
        check(
            libc::socketpair(
                libc::AF_UNIX,
                libc::SOCK_DGRAM | libc::SOCK_CLOEXEC,
                0,
                pair.as_mut_ptr(),
            ) == 0,
            1,
        )?;
        let mut byte = 0u8;
        let mut iov = libc::iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut iov;
        message.msg_iovlen = 1;
        check(
            libc::sendmsg(pair[0], &message, 0) == 1 && libc::recvmsg(pair[1], &mut message, 0) == 1,
            2,
        )?;
        let memfd = libc::memfd_create(c"fastpath-trial".as_ptr(), libc::MFD_CLOEXEC);
        check(memfd >= 0, 3)?;
        let code = map(libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE, memfd);
        check(code != libc::MAP_FAILED, 4)?;
        let page = map(libc::PROT_READ, libc::MAP_SHARED, memfd);
        check(page != libc::MAP_FAILED, 5)?;
        check(libc::munmap(code, 4096) == 0, 6)?;
        let word = 0u32;
        check(
            libc::syscall(libc::SYS_futex, &word, libc::FUTEX_WAKE, 1, 0) == 0 && libc::syscall(libc::SYS_gettid) > 0,
            7,
        )?;
        let is_link = libc::readlinkat(libc::AT_FDCWD, c"/".as_ptr(), (&raw mut byte).cast(), 1);
        check(is_link < 0 && *libc::__errno_location() == libc::EINVAL, 8)?;
        let mut mode = 0;
        check(libc::prctl(libc::PR_GET_TSC, &mut mode) == 0, 9)?;
        // The helper's own call: PTRACE_TRACEME represents the rest of ptrace.
        check(libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) == 0, 10)?;
        libc::close(pair[0].as_raw_fd());
    }
    Ok(())
}
