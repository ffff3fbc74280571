//! How a helper is scheduled. It inherits what the user chose for the program, which may starve it.

use fastpath_publish::evidence::cpus;

/// The kernel's list of CPUs without load balancing (Documentation/admin-guide/kernel-parameters.txt, isolcpus).
const ISOLATED: &str = "/sys/devices/system/cpu/isolated";

/// Moves this process, which has one thread, off the CPUs that the program is bound to, if its cpuset has others. It may
/// still run on all of them: it compares their counters. Undoes a lower priority than the ordinary one, if permitted. A
/// real-time priority stays: the helper is as timely as the program.
///
/// The error: the program can keep the only CPU from this process.
pub(crate) fn reset() -> Result<(), String> {
    let bound = cpus::allowed();
    let isolated = std::fs::read_to_string(ISOLATED).map_or(Vec::new(), |list| parse(&list));
    let every: Vec<usize> = (0..libc::CPU_SETSIZE as usize).collect();
    // The kernel leaves out CPUs that the cpuset does not have.
    let _ = cpus::run_on_any(&every);
    let (mut usable, mut others) = (cpus::allowed(), Vec::new());
    usable.retain(|cpu| bound.contains(cpu) || !isolated.contains(cpu));
    others.extend(usable.iter().filter(|cpu| !bound.contains(cpu)));
    if !others.is_empty() {
        // The scheduler moves no thread off an isolated CPU by itself.
        let _ = cpus::run_on_any(&others);
    }
    let _ = cpus::run_on_any(&usable);
    // SAFETY: system calls with integers, and a pointer to a local.
    let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
    let is_real_time = [libc::SCHED_FIFO, libc::SCHED_RR].contains(&policy);
    if is_real_time && usable.len() == 1 {
        return Err("it has a real-time priority, and its publisher may only use the same CPU".to_owned());
    }
    if !is_real_time {
        be_ordinary();
    }
    Ok(())
}

/// Fails without CAP_SYS_NICE, or a limit (RLIMIT_NICE) that permits it.
fn be_ordinary() {
    // SAFETY: system calls with integers, and a pointer to a local, which is plain bits.
    unsafe {
        let parameters: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &parameters);
        if libc::getpriority(libc::PRIO_PROCESS, 0) > 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        }
    }
}

/// Returns the CPUs of a list like `0-3,8`.
fn parse(list: &str) -> Vec<usize> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?.min(libc::CPU_SETSIZE as usize))
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cpus_is_read() {
        assert!(parse("\n").is_empty());
        assert_eq!(parse("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(parse("x,3"), [3]);
    }
}
