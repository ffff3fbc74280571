//! The helper's title in `ps`: not the user's command, which `pkill -f` might look for.

use std::ops::Range;

/// Name that the helper shows in `ps`.
pub(crate) const TITLE: &str = "fastpath-publisher";

/// Shows `text` as this process's command line (/proc/PID/cmdline) from now on.
///
/// # Safety
/// Nothing in this process may use the memory of its arguments any more: it is overwritten.
pub(crate) unsafe fn set(text: &str) {
    let Some(arguments) = arguments().filter(|range| !range.is_empty()) else {
        return;
    };
    let length = arguments.end - arguments.start;
    let shown = text.len().min(length - 1);
    let start = std::ptr::with_exposed_provenance_mut::<u8>(arguments.start);
    // SAFETY: the kernel put the arguments there, in writable memory on the stack (C11 5.1.2.2.1), and the caller gave
    // it up.
    unsafe {
        std::ptr::write_bytes(start, 0, length);
        std::ptr::copy_nonoverlapping(text.as_ptr(), start, shown);
    }
}

/// Returns where the arguments of this process are: `arg_start` and `arg_end` (proc_pid_stat(5), fields 48 and 49).
fn arguments() -> Option<Range<usize>> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Field 3 follows the name, which may contain anything.
    let mut fields = stat.rsplit_once(") ")?.1.split_whitespace().skip(48 - 3);
    let mut address = || fields.next()?.parse().ok();
    Some(address()?..address()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_where_the_kernel_shows_them() {
        let shown = std::fs::read("/proc/self/cmdline").unwrap();
        let range = arguments().unwrap();
        let memory = std::ptr::with_exposed_provenance::<u8>(range.start);
        // SAFETY: the memory of this process's arguments, which nothing writes in this test.
        assert_eq!(unsafe { std::slice::from_raw_parts(memory, range.len()) }, shown);
    }
}
