//! Scheduling of the tracing thread while it keeps threads of another program stopped.
//!
//! Each thread that it asks to stop, or releases, is woken and would run in its place: on a busy machine, or one with few
//! CPUs, the last thread would be stopped for as long as all others need. While it waits for them to stop, they need its
//! CPU.

/// Priority of the calling thread, raised until this is dropped. Without CAP_SYS_NICE (or the resource limits RLIMIT_RTPRIO
/// and RLIMIT_NICE) it stays as it is.
pub struct Priority(Option<libc::sched_attr>);

impl Priority {
    /// Returns the priority of this thread, to raise it.
    pub fn of_this_thread() -> Priority {
        const ORDINARY: [libc::c_int; 3] = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE];
        Priority(attributes().filter(|now| ORDINARY.contains(&(now.sched_policy as libc::c_int))))
    }

    /// Precedes every ordinary program: the lowest priority of real time (sched(7)).
    pub fn before_all(&self) {
        let Some(before) = self.0 else {
            return;
        };
        let raised = set(&libc::sched_attr {
            sched_policy: libc::SCHED_FIFO as u32,
            sched_priority: 1,
            ..before
        });
        if !raised {
            self.above_others();
        }
    }

    /// Gets a CPU soon, and yields it to threads that have been woken (sched_yield(2)): the highest of the ordinary
    /// priorities.
    pub fn above_others(&self) {
        let Some(before) = self.0 else {
            return;
        };
        let favoured = libc::sched_attr {
            sched_nice: -20,
            ..before
        };
        // A lower priority needs no privilege.
        if !set(&favoured) {
            set(&before);
        }
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
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

    fn now() -> (u32, i32, u32) {
        let now = attributes().expect("the attributes of this thread");
        (now.sched_policy, now.sched_nice, now.sched_priority)
    }

    /// Returns whether this thread has CAP_SYS_NICE.
    fn may_raise() -> bool {
        const CAP_SYS_NICE: u64 = 1 << 23;
        let status = fastpath_os::text("thread-self", "status").expect("the status of this thread");
        let mut lines = status.lines();
        let effective = lines
            .find_map(|line| line.strip_prefix("CapEff:"))
            .expect("its capabilities");
        u64::from_str_radix(effective.trim(), 16).expect("a mask") & CAP_SYS_NICE != 0
    }

    #[test]
    fn the_priority_is_as_before_afterwards() {
        let before = now();
        let priority = Priority::of_this_thread();
        let ordinary = libc::SCHED_OTHER as u32;
        priority.before_all();
        let first = now();
        priority.above_others();
        let then = now();
        if may_raise() {
            assert_eq!((first, then), ((libc::SCHED_FIFO as u32, 0, 1), (ordinary, -20, 0)));
        }
        drop(priority);
        assert_eq!(now(), before);
    }
}
