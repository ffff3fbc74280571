//! The helper's title in `ps`: not the user's command, which `pkill -f` might look for.

use std::ffi::{c_char, c_int};

/// Memory that /proc/PID/cmdline shows.
#[derive(Clone, Copy)]
pub struct Title {
    start: *mut u8,
    length: usize,
}

impl Title {
    /// Takes the arguments of this process: the kernel lays them out one after the other (proc_pid_cmdline(5)).
    pub fn new(argc: c_int, argv: *const *const c_char) -> Title {
        let mut title = Title {
            start: std::ptr::null_mut(),
            length: 0,
        };
        for i in 0..argc as usize {
            // SAFETY: argv holds argc C strings.
            let (argument, bytes) = unsafe { (*argv.add(i), libc::strlen(*argv.add(i)) + 1) };
            if title.start.is_null() {
                title.start = argument.cast_mut().cast();
            } else if argument.cast::<u8>() != title.start.wrapping_add(title.length) {
                break;
            }
            title.length += bytes;
        }
        title
    }

    /// Shows `text` from now on. Nothing may use the process's arguments any more.
    pub fn set(self, text: &str) {
        if self.length == 0 {
            return;
        }
        let shown = text.len().min(self.length - 1);
        // SAFETY: the arguments' memory is writable (C11 5.1.2.2.1), `length` bytes long, and the caller gave it up.
        unsafe {
            std::ptr::write_bytes(self.start, 0, self.length);
            std::ptr::copy_nonoverlapping(text.as_ptr(), self.start, shown);
        }
    }
}
