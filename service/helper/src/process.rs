//! Processes that are left behind: not a child that a program could see, and without anything of the user's.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::LazyLock;

use crate::{parent, scheduling, title};

/// Size of the helper's stack in bytes.
const STACK: usize = 1 << 20;
/// Memory that a helper must be able to map after its start, in bytes. It maps 7 MiB until the first program runs: stacks
/// of threads, and pieces of a file that it reads.
const ROOM: usize = 12 << 20;

/// Descriptors that this process was started with, and that the helper must release.
pub struct Surroundings(Vec<RawFd>);

impl Surroundings {
    /// Records them. Must be called while this process has opened nothing that is still open.
    pub fn note() -> Surroundings {
        let names = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let mut descriptors: Vec<_> = names
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        // The directory's own descriptor is among them, and closed by now.
        // SAFETY: fcntl with integers.
        descriptors.retain(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0);
        Surroundings(descriptors)
    }

    /// Closes all descriptors but standard error.
    fn close(&self) {
        for fd in self.0.iter().filter(|fd| **fd != 2) {
            // SAFETY: no object of this process owns these numbers: it had nothing open when it recorded them.
            unsafe { libc::close(*fd) };
        }
    }
}

/// A helper that was just started.
pub struct Started {
    /// The child to end and to wait for if the helper is of no use: the helper itself, where it stays a child.
    child: Option<i32>,
}

impl Started {
    /// Ends a helper that stays a child of this process: it would become a zombie that the program could not reap.
    pub fn end(self) {
        let Some(child) = self.child else { return };
        // SAFETY: kill and waitpid of the child that was made, which has not been waited for; a null status is allowed.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), libc::__WALL);
        }
    }
}

/// Starts a helper, which runs `work` and exits with its status. It is not a child that this process, or the program
/// that it becomes, could wait for. This process must have one thread.
///
/// PID 1 gets every orphan of its namespace as a child, and might wait for it. There the helper stays a direct child that
/// was made without an exit signal, and is invisible to waits (wait(2), __WCLONE). A subreaper would get the orphan as well:
/// it is none while the helper becomes one.
pub fn start<W: FnOnce() -> i32>(work: W) -> std::io::Result<Started> {
    if std::process::id() == 1 {
        let child = fork_without_signal()?;
        if child == 0 {
            parent::has_no_signal();
            parent::end(work())
        }
        return Ok(Started { child: Some(child) });
    }
    let was_subreaper = is_subreaper() && be_subreaper(false);
    let started = start_orphan(work);
    if was_subreaper {
        be_subreaper(true);
    }
    started
}

fn start_orphan<W: FnOnce() -> i32>(work: W) -> std::io::Result<Started> {
    let mut orphan = Orphan { work, failure: 0 };
    let argument = (&raw mut orphan).cast();
    let child = on_own_stack(|stack| {
        // SAFETY: as vfork(2) does: this process waits until the child has ended. `fork_and_end` gets what it takes.
        unsafe { libc::clone(fork_and_end::<W>, stack, libc::CLONE_VM | libc::CLONE_VFORK, argument) }
    })?;
    // SAFETY: waits for the child just made, which has ended and sends no signal; a null status is allowed.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) };
    match orphan.failure {
        0 => Ok(Started { child: None }),
        errno => Err(std::io::Error::from_raw_os_error(errno)),
    }
}

/// Work of a helper that is made by a child of this process.
struct Orphan<W> {
    work: W,
    /// The error number if the child could not make it; else 0.
    failure: i32,
}

/// Makes the helper, which runs its work in a copy of this process's memory. The child that does so needs no copy.
extern "C" fn fork_and_end<W: FnOnce() -> i32>(orphan: *mut libc::c_void) -> libc::c_int {
    let orphan = orphan.cast::<Orphan<W>>();
    // SAFETY: this process has one thread. `orphan` points to a local of the parent's, which waits, and each process has
    // its own: the work runs in the new one, which then ends without running anything of the parent's.
    unsafe {
        match libc::fork() {
            0 => libc::_exit((&raw const (*orphan).work).read()()),
            -1 => (*orphan).failure = *libc::__errno_location(),
            _ => {}
        }
    }
    0
}

/// Passes the end of a stack to `clone`, which returns the process that was made on it.
fn on_own_stack(clone: impl FnOnce(*mut libc::c_void) -> i32) -> std::io::Result<i32> {
    let stack = map_stack(STACK)?;
    // SAFETY: the end of the mapping.
    let made = match clone(unsafe { stack.byte_add(STACK) }) {
        -1 => Err(std::io::Error::last_os_error()),
        pid => Ok(pid),
    };
    // SAFETY: nothing of this process uses the stack; the processes that were made have ended, or have a copy.
    unsafe { libc::munmap(stack, STACK) };
    made
}

/// Maps a stack of `bytes` bytes, of which only those that are used take memory. Returns its lowest address.
pub fn map_stack(bytes: usize) -> std::io::Result<*mut libc::c_void> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping.
    match unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) } {
        libc::MAP_FAILED => Err(std::io::Error::last_os_error()),
        stack => Ok(stack),
    }
}

fn is_subreaper() -> bool {
    let mut is: libc::c_int = 0;
    // SAFETY: PR_GET_CHILD_SUBREAPER stores one int, in a local.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &mut is) == 0 && is != 0 }
}

fn be_subreaper(is: bool) -> bool {
    // SAFETY: prctl with integers.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, libc::c_ulong::from(is), 0, 0, 0) == 0 }
}

/// Forks (fork(2)) a child that sends no SIGCHLD when it ends: a program that blocks SIGCHLD would find it pending.
fn fork_without_signal() -> std::io::Result<i32> {
    // SAFETY: this process has one thread, and the child continues with a copy of everything.
    match unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } {
        -1 => Err(std::io::Error::last_os_error()),
        pid => Ok(pid as i32),
    }
}

/// Makes this process a helper: sets its name, closes what is the user's except standard error, and starts a session. The
/// error: the program can keep it from running.
pub fn settle(surroundings: &Surroundings) -> Result<(), String> {
    // SAFETY: the helper has parsed its command line, and copied what it needs.
    unsafe { title::set(title::TITLE) };
    surroundings.close();
    // SAFETY: prctl with a C string; setsid takes nothing.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"fastpath".as_ptr());
        libc::setsid();
    }
    let _ = std::env::set_current_dir("/");
    share_heap();
    reset_signals();
    scheduling::reset()
}

/// Raises this process's limits, and refuses to be a helper under one of memory that it would hit later: an allocation that
/// fails ends a process.
pub fn require_room() -> Result<(), String> {
    raise_limits();
    let room = map_stack(ROOM).map_err(|e| format!("{} MiB of memory for the helper: {e}", ROOM >> 20))?;
    // SAFETY: nothing uses the mapping.
    unsafe { libc::munmap(room, ROOM) };
    Ok(())
}

/// Gives all threads one heap, which grows in large steps: each heap and each step takes system calls and page faults.
fn share_heap() {
    // SAFETY: mallopt takes integers.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TOP_PAD, 1 << 20);
    }
}

/// Gives back what a start needed of the heap: a helper may live for years, and there may be hundreds.
pub fn trim_heap() {
    // SAFETY: malloc_trim takes an integer.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Raises the resource limits (setrlimit(2)) to the hard ones: the soft ones are meant for the program. The helper uses
/// little, but it may live for years, and would die of a limit of CPU time.
fn raise_limits() {
    for resource in [
        libc::RLIMIT_CPU,
        libc::RLIMIT_FSIZE,
        libc::RLIMIT_DATA,
        libc::RLIMIT_AS,
        libc::RLIMIT_NOFILE,
    ] {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: stores into a local, and reads it.
        unsafe {
            if libc::getrlimit(resource, &mut limit) == 0 {
                limit.rlim_cur = limit.rlim_max;
                libc::setrlimit(resource, &limit);
            }
        }
    }
}

/// Resets signals: the helper must not be affected by those that the program chose to block or ignore, nor die of a
/// closed pipe.
fn reset_signals() {
    // SAFETY: signal sets and dispositions only, with valid pointers to locals.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        // By the system call: from glibc 2.41, signal(3) waits for a lock for SIGABRT, and no thread in this copy of the
        // program's memory releases it if it was held. A kernel's sigaction of zeros is the default, with no flags.
        let default = [0_u64; 4];
        for signal in 1..=libc::SIGSYS {
            let previous = std::ptr::null_mut::<u64>();
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                previous,
                size_of::<u64>(),
            );
        }
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
    }
    let _ = fastpath_inject::lease::outlive_breaks();
    parent::end_by_signals();
}

/// Replaces standard error by /dev/null: a pipe of the user's must close when the program ends, not when the helper
/// does. Where there is none, by a descriptor that refuses every write (EBADF).
pub fn release_standard_error() {
    let null = File::options().write(true).open("/dev/null");
    if let Ok(null) = null.or_else(|_| File::options().read(true).custom_flags(libc::O_PATH).open("/")) {
        // SAFETY: replaces descriptor 2, which no object of this process owns, by one that is open.
        unsafe { libc::dup3(null.as_raw_fd(), 2, libc::O_CLOEXEC) };
    }
}

/// Starts a thread with a small stack.
pub fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let spawned = std::thread::Builder::new().stack_size(512 << 10).spawn(work);
    spawned.map(|_| ()).map_err(|e| format!("thread: {e}"))
}

/// Setting of Yama (Documentation/admin-guide/LSM/Yama.rst).
pub const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Returns whether Yama requires a tracer that is no ancestor to be declared (mode 1), as it did at the first look.
pub fn tracer_must_be_declared() -> bool {
    static MUST_BE: LazyLock<bool> =
        LazyLock::new(|| std::fs::read_to_string(YAMA).is_ok_and(|mode| mode.trim() == "1"));
    *MUST_BE
}

/// Returns this process, if it must be declared as a tracer; else 0.
pub fn ptracer() -> u32 {
    if tracer_must_be_declared() {
        std::process::id()
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_cpu_time_for_the_program_does_not_end_the_helper() {
        // SAFETY: the child makes system calls only, and ends; the status is a local.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let mut limit: libc::rlimit = std::mem::zeroed();
                libc::getrlimit(libc::RLIMIT_CPU, &mut limit);
                let hard = limit.rlim_max;
                limit.rlim_cur = 1;
                libc::setrlimit(libc::RLIMIT_CPU, &limit);
                raise_limits();
                libc::getrlimit(libc::RLIMIT_CPU, &mut limit);
                libc::_exit(i32::from((limit.rlim_cur, limit.rlim_max) != (hard, hard)));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
        }
    }
}
