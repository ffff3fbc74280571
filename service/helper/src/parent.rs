//! The parent of a helper. PID 1 of a container, and any process that gets orphans, has the helper among its children.
//! Many a program that runs as PID 1 waits for all of them.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use fastpath_os::Stat;

use crate::title::TITLE;

/// Most threads of the parent that are examined.
const MOST_THREADS: usize = 64;

/// Whether this helper is a child without an exit signal.
static HAS_NO_SIGNAL: AtomicBool = AtomicBool::new(false);
/// Descriptor of /dev/null, for the file that [`end`] executes.
static NULL: AtomicI32 = AtomicI32::new(-1);

/// Records that this process is a child without an exit signal.
pub(crate) fn has_no_signal() {
    HAS_NO_SIGNAL.store(true, Ordering::Relaxed);
}

/// Makes a child without an exit signal end as [`end`] does, if a signal asks for it: an init that shuts down sends
/// them to all processes, and waits until there are none.
pub(crate) fn end_by_signals() {
    extern "C" fn end_now(_: libc::c_int) {
        end(0)
    }
    if !HAS_NO_SIGNAL.load(Ordering::Relaxed) {
        return;
    }
    let handler: extern "C" fn(libc::c_int) = end_now;
    // SAFETY: opens a file by a C string, and installs a handler that only makes system calls.
    unsafe {
        NULL.store(
            libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC),
            Ordering::Relaxed,
        );
        for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
            libc::signal(signal, handler as libc::sighandler_t);
        }
    }
}

/// Ends this process with `status`. An ordinary wait never sees the zombie of a child without an exit signal. An exec
/// makes SIGCHLD the signal (clone(2)), so this executes something that ends at once. Async-signal-safe.
pub(crate) fn end(status: i32) -> ! {
    if HAS_NO_SIGNAL.load(Ordering::Relaxed) {
        let arguments = [c"fastpath".as_ptr(), c"--version".as_ptr(), std::ptr::null()];
        let null = NULL.load(Ordering::Relaxed);
        // SAFETY: the descriptors of this process are not used any more, and the arrays end with null.
        unsafe {
            if (0..=2).all(|fd| libc::dup2(null, fd) == fd) {
                libc::execve(
                    c"/proc/self/exe".as_ptr(),
                    arguments.as_ptr(),
                    [std::ptr::null()].as_ptr(),
                );
            }
        }
    }
    // SAFETY: _exit ends the process without running anything of the parent's.
    unsafe { libc::_exit(status) }
}

/// Returns whether the parent is blocked in a wait for any child, and has no children but helpers. It would wait for as
/// long as this process lives.
pub(crate) fn waits_for_helpers_only() -> bool {
    // SAFETY: getppid takes nothing and cannot fail.
    let parent = unsafe { libc::getppid() };
    let has_no_signal = HAS_NO_SIGNAL.load(Ordering::Relaxed);
    let waits = |tid| fastpath_os::text(tid, "syscall").is_ok_and(|text| waits_for_any(&text, has_no_signal));
    let mut threads = fastpath_os::threads(parent).into_iter().flatten().take(MOST_THREADS);
    if parent == 0 || !threads.any(waits) {
        return false;
    }
    let is_child = |pid: &i32| Stat::read(pid).is_ok_and(|stat| stat.parent == parent);
    let is_helper = |pid: i32| fastpath_os::text(pid, "cmdline").is_ok_and(|line| line.starts_with(TITLE));
    fastpath_os::processes().is_ok_and(|mut processes| processes.all(|pid| !is_child(&pid) || is_helper(pid)))
}

/// Returns whether a thread, by its /proc/TID/syscall (proc_pid_syscall(5)), waits for any child, of the kind with or
/// without an exit signal.
fn waits_for_any(text: &str, has_no_signal: bool) -> bool {
    let mut words = text.split_whitespace();
    let number = words.next().and_then(|number| number.parse::<libc::c_long>().ok());
    let arguments: Vec<i32> = words
        .map_while(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
        .map(|argument| argument as i32)
        .collect();
    let options = match (number, &arguments[..]) {
        (Some(libc::SYS_wait4), [-1, _, options, ..]) => *options,
        (Some(libc::SYS_waitid), [kind, _, _, options, ..]) if *kind == libc::P_ALL as i32 => *options,
        _ => return false,
    };
    match options & (libc::__WALL | libc::__WCLONE) {
        0 => !has_no_signal,
        libc::__WCLONE => has_no_signal,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_wait_that_would_see_this_child_counts() {
        let wait4 = |pid: &str, options: libc::c_int| {
            format!(
                "{} {pid} 0x7ffd0 {options:#x} 0x0 0x0 0x0 0x7ffd00 0x7f0000\n",
                libc::SYS_wait4
            )
        };
        let waitid = |kind: libc::idtype_t, options: libc::c_int| {
            format!(
                "{} {kind:#x} 0x0 0x7ffd0 {options:#x} 0x0 0x0 0x7ffd00 0x7f0000\n",
                libc::SYS_waitid
            )
        };
        let any = "0xffffffffffffffff";
        // With an exit signal, without one.
        for (text, seen) in [
            (wait4(any, 0), (true, false)),
            (wait4("0xffffffff", 0), (true, false)),
            (wait4(any, libc::__WALL), (true, true)),
            (wait4(any, libc::__WCLONE), (false, true)),
            (wait4("0x7", libc::__WALL), (false, false)),
            (waitid(libc::P_ALL, libc::WEXITED), (true, false)),
            (waitid(libc::P_ALL, libc::WEXITED | libc::__WALL), (true, true)),
            (waitid(libc::P_PID, libc::WEXITED), (false, false)),
            ("running\n".to_owned(), (false, false)),
            ("-1 0x7ffd00 0x7f0000\n".to_owned(), (false, false)),
            (String::new(), (false, false)),
        ] {
            assert_eq!(
                (waits_for_any(&text, false), waits_for_any(&text, true)),
                seen,
                "{text}"
            );
        }
    }
}
