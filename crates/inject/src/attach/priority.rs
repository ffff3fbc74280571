//! Scheduling of the tracing thread while it keeps threads of another program stopped.
//!
//! Each thread that it stops or releases is woken, and would run in its place: on a busy machine, or one with few CPUs,
//! the last thread would be stopped for as long as all others need.

/// Raised priority of the calling thread, until this is dropped. Without CAP_SYS_NICE (or the resource limits RLIMIT_RTPRIO
/// or RLIMIT_NICE) the priority stays as it is.
pub struct Raised(Option<libc::sched_attr>);

impl Raised {
    /// Raises the priority: the lowest of real time, which precedes every ordinary program, or else the highest of those
    /// (sched(7)).
    pub fn of_this_thread() -> Raised {
        const ORDINARY: [libc::c_int; 3] = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE];
        const LOWEST_REAL_TIME: u32 = 1;
        const HIGHEST_ORDINARY: i32 = -20;
        let Some(before) = attributes().filter(|now| ORDINARY.contains(&(now.sched_policy as libc::c_int))) else {
            return Raised(None);
        };
        let real_time = libc::sched_attr {
            sched_policy: libc::SCHED_FIFO as u32,
            sched_priority: LOWEST_REAL_TIME,
            ..before
        };
        let favoured = libc::sched_attr {
            sched_nice: HIGHEST_ORDINARY,
            ..before
        };
        let is_raised = set(&real_time) || set(&favoured);
        Raised(is_raised.then_some(before))
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        // A lower priority needs no privilege.
        if let Some(before) = &self.0 {
            set(before);
        }
    }
}

const SIZE: u32 = size_of::<libc::sched_attr>() as u32;

// By syscall(2): musl's functions for it only return ENOSYS.
fn attributes() -> Option<libc::sched_attr> {
    // SAFETY: the structure consists of integers, for which all-zero bytes are valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes at most `SIZE` bytes, the size of the structure.
    let r = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, SIZE, 0) };
    (r == 0).then_some(attributes)
}

fn set(attributes: &libc::sched_attr) -> bool {
    // SAFETY: the call reads the structure, whose size it contains.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_priority_is_as_before_afterwards() {
        let of = |attributes: libc::sched_attr| (attributes.sched_policy, attributes.sched_nice, attributes.sched_priority);
        let before = attributes().map(of).expect("the attributes of this thread");
        let raised = Raised::of_this_thread();
        assert_eq!(raised.0.is_some(), attributes().map(of) != Some(before));
        drop(raised);
        assert_eq!(attributes().map(of), Some(before));
    }
}
