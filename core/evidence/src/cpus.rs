//! The CPUs that this process may use.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The kernel's list of the CPUs that are on (Documentation/admin-guide/cputopology.rst).
#[derive(Debug, Default)]
pub(crate) struct Online {
    file: Option<File>,
    list: Vec<u8>,
}

impl Online {
    /// Returns whether it differs from that of the last call; the first call returns true. A list that cannot be read is
    /// taken for the same.
    pub(crate) fn has_changed(&mut self) -> bool {
        if self.file.is_none() {
            self.file = File::open("/sys/devices/system/cpu/online").ok();
        }
        let mut list = [0; 4096];
        let length = self.file.as_ref().map(|file| file.read_at(&mut list, 0));
        match length {
            Some(Ok(length)) if self.list != list[..length] => {
                self.list = list[..length].to_vec();
                true
            }
            _ => false,
        }
    }
}

/// Returns the numbers of these CPUs.
pub fn allowed() -> Vec<usize> {
    // SAFETY: a cpu_set_t is plain bits, valid when zeroed.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel stores at most the given size, which is the set's.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0 {
        // The call fails on a host with more CPUs than the set holds.
        return (0..std::thread::available_parallelism().map_or(1, usize::from)).collect();
    }
    (0..libc::CPU_SETSIZE as usize)
        // SAFETY: `cpu` is within the set.
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) })
        .collect()
}

/// Binds this thread to a CPU, and moves it there. Some sandboxes accept the call without moving the thread: that is an
/// error too.
pub fn run_on(cpu: usize) -> std::io::Result<()> {
    run_on_any(&[cpu])?;
    // SAFETY: sched_getcpu accesses no memory of the caller.
    match usize::try_from(unsafe { libc::sched_getcpu() }) {
        Ok(here) if here == cpu => Ok(()),
        _ => Err(std::io::Error::other("it is allowed, and moves nothing")),
    }
}

/// Lets this thread run on these CPUs, and moves it only if it runs on another.
pub fn run_on_any(cpus: &[usize]) -> std::io::Result<()> {
    if cpus.iter().any(|cpu| *cpu >= libc::CPU_SETSIZE as usize) {
        return Err(std::io::Error::other("no set of CPUs is that large"));
    }
    // SAFETY: a cpu_set_t is plain bits, `cpus` are within it, and the kernel reads the given size, which is the set's.
    let is_set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cpus.iter().for_each(|cpu| libc::CPU_SET(*cpu, &mut set));
        libc::sched_setaffinity(0, size_of_val(&set), &set) == 0
    };
    if is_set {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_cpus_that_are_on_changes_when_it_does() {
        let mut online = Online::default();
        let is_there = std::fs::exists("/sys/devices/system/cpu/online").is_ok_and(|is_there| is_there);
        assert_eq!((online.has_changed(), online.has_changed()), (is_there, false));
        let other = std::env::temp_dir().join(format!("fastpath-online-{}", std::process::id()));
        std::fs::write(&other, "0-1\n").unwrap();
        online.file = Some(File::open(&other).unwrap());
        online.list = b"0-1\n".to_vec();
        assert!(!online.has_changed());
        std::fs::write(&other, "0\n").unwrap();
        assert!(online.has_changed() && !online.has_changed());
        std::fs::remove_file(&other).unwrap();
    }

    #[test]
    fn a_bound_thread_runs_where_it_was_put() {
        for cpu in allowed() {
            let here = std::thread::spawn(move || {
                run_on(cpu).expect("an allowed CPU");
                // SAFETY: sched_getcpu accesses no memory of the caller.
                (allowed(), unsafe { libc::sched_getcpu() })
            });
            assert_eq!(here.join().unwrap(), (vec![cpu], cpu as i32));
        }
    }
}
