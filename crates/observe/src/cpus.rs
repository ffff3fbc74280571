//! The CPUs that this process may run on.

use libc::cpu_set_t;
use std::mem::{MaybeUninit, size_of};

/// Their numbers.
pub(crate) fn allowed() -> Vec<usize> {
    let mut set = MaybeUninit::<cpu_set_t>::zeroed();
    // SAFETY: the kernel writes at most the size given; zeroed, the set is an empty one.
    let set = unsafe {
        libc::sched_getaffinity(0, size_of::<cpu_set_t>(), set.as_mut_ptr());
        set.assume_init()
    };
    // SAFETY: the numbers stay below the set's size.
    let cpus: Vec<usize> = (0..libc::CPU_SETSIZE as usize)
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) })
        .collect();
    // A host with more CPUs than the set holds answers with an error.
    if cpus.is_empty() {
        (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
    } else {
        cpus
    }
}

/// Keeps the calling thread on one CPU. Where that is forbidden, it runs where the kernel puts it.
pub(crate) fn pin_this_thread(cpu: usize) {
    let mut set = MaybeUninit::<cpu_set_t>::zeroed();
    // SAFETY: zeroed, the set is an empty one, and `cpu` is below its size.
    unsafe {
        let set = set.assume_init_mut();
        if cpu < libc::CPU_SETSIZE as usize {
            libc::CPU_SET(cpu, set);
            libc::sched_setaffinity(0, size_of::<cpu_set_t>(), set);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_runs_where_it_was_put() {
        for cpu in allowed() {
            let here = std::thread::spawn(move || {
                pin_this_thread(cpu);
                // SAFETY: sched_getcpu only looks.
                (allowed(), unsafe { libc::sched_getcpu() })
            });
            assert_eq!(here.join().unwrap(), (vec![cpu], cpu as i32));
        }
    }
}
