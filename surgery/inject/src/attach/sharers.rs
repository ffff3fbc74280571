//! Other processes that share a process's memory or file descriptors (clone(2), CLONE_VM, CLONE_FILES): what is changed
//! for the one is changed for the other, which nothing stops.
//!
//! The kernel counts them (`mm_users`, `files->count`), and shows the numbers nowhere. Only kcmp(2) tells, for two
//! processes, in a microsecond; to read any file of a process takes four times as long. Nothing cheaper excludes a
//! process for certain: a sharer may have another parent (CLONE_PARENT, a creator that ended), another user, PID
//! namespace, session, control group or name.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use fastpath_os::Stat;

use super::listing;
use super::refusal::{Answer, Refusal, Shared};
use super::session::Session;

/// Number of processes of a host that are all compared. To list and compare them takes 3 ms of CPU; the rest of an attach
/// takes 11 ms.
const FEW: u64 = 1000;

impl Shared {
    /// Returns whether two processes or threads share it; `None` if that cannot be known.
    fn by(self, pid: i32, other: i32) -> Option<bool> {
        // include/uapi/linux/kcmp.h: KCMP_VM, KCMP_FILES
        let kind = match self {
            Shared::Memory => 1,
            Shared::Descriptors => 2,
        };
        // SAFETY: kcmp takes integers.
        let order = unsafe { libc::syscall(libc::SYS_kcmp, pid, other, kind, 0, 0) };
        (order >= 0).then_some(order == 0)
    }

    /// Returns whether a process shares it with another process. A thread of its own is none, nor is one of the kernel,
    /// which executes no code there (vhost).
    fn with_another(self, pid: i32, other: i32) -> bool {
        let is_thread = || std::path::Path::new(&format!("/proc/{pid}/task/{other}")).exists();
        let is_kernels = || Stat::read(other).is_ok_and(|stat| stat.is_kernel_thread());
        self.by(pid, other) == Some(true) && !is_thread() && !is_kernels()
    }
}

/// Returns whether a thread has other file descriptors than its process (unshare(2), CLONE_FILES). It cannot make remote
/// calls: what it opens does not have that number in the process.
pub fn has_own_descriptors(pid: i32, tid: i32) -> bool {
    Shared::Descriptors.by(pid, tid) == Some(false)
}

/// Refuses a process that shares one of these with another one, and not only for a moment. Returns whether it waited for
/// that.
pub fn refuse(session: &Session<'_>, shared: &[Shared]) -> Answer<bool> {
    const MOMENT: Duration = Duration::from_secs(2);
    let pid = session.pid();
    // Before the list is read: what is made meanwhile is new.
    session.last_compared.set(last_number());
    let mut has_waited = false;
    for with in others(pid, FEW) {
        for what in shared.iter().copied() {
            // The child of a vfork, or one that only closes a descriptor, is gone within a moment, if it gets a CPU.
            let begun = Instant::now();
            while what.with_another(pid, with) {
                if begun.elapsed() > MOMENT {
                    return Err(Refusal::Shares { what, with });
                }
                session.rest(Duration::from_millis(5));
                has_waited = true;
            }
        }
    }
    Ok(has_waited)
}

/// Refuses a process that shares its memory with one that was made since the last comparison; does nothing before the
/// first. For a process of which all threads are stopped, which therefore makes no more of them. Descriptors matter for
/// remote calls only.
pub fn refuse_new(session: &Session<'_>) -> Answer<()> {
    let (Some(last), Some(now)) = (session.last_compared.get(), last_number()) else {
        return Ok(());
    };
    // The kernel gives numbers in their order, and begins anew after the greatest (`alloc_pid` in kernel/pid.c).
    let new = match last <= now {
        true => [last + 1..now + 1, 0..0],
        false => [last + 1..greatest_number() + 1, 1..now + 1],
    };
    let (pid, what) = (session.pid(), Shared::Memory);
    for other in new.into_iter().flatten() {
        if session.stop_time.is_over() {
            let threads = listing::number_of(pid);
            return Err(Refusal::StoppedTooLong { threads });
        }
        if what.with_another(pid, other) {
            return Err(Refusal::Shares { what, with: other });
        }
    }
    session.last_compared.set(Some(now));
    Ok(())
}

/// Returns the last number that a process or thread got (proc_loadavg(5)).
fn last_number() -> Option<i32> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().nth(4)?.parse().ok()
}

fn greatest_number() -> i32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// Returns the processes with which a process is compared: all, if there are few. On a host with thousands that would take
/// longer than the rest of an attach, so there it is compared with its relatives.
fn others(pid: i32, few: u64) -> Vec<i32> {
    // The links of the directory: some ten, and one for each process of the host (fs/proc/root.c).
    let are_few = std::fs::metadata("/proc").is_ok_and(|meta| meta.nlink() <= few);
    let has_children = || std::path::Path::new("/proc/thread-self/children").exists(); // CONFIG_PROC_CHILDREN
    let mut others: Vec<i32> = match !are_few && has_children() {
        true => relatives(pid),
        false => fastpath_os::processes().into_iter().flatten().collect(),
    };
    others.retain(|other| *other != pid);
    others
}

/// Returns the processes with which a process most likely shares something: one that it made, its ancestors, and those
/// that were made a little before or after it. The latter include what it made and disowned soon after its start.
fn relatives(pid: i32) -> Vec<i32> {
    /// Distance of process ids.
    const NEAR: i32 = 128;
    let children = |tid: i32| fastpath_os::text(format!("{pid}/task/{tid}"), "children").ok();
    let children: Vec<String> = listing::list(pid).into_iter().filter_map(children).collect();
    let children = children.iter().flat_map(|list| list.split_whitespace());
    let children = children.filter_map(|child| child.parse().ok());
    let parent = |of: &i32| Stat::read(*of).ok().map(|stat| stat.parent);
    let ancestors = std::iter::successors(Some(pid), |of| parent(of).filter(|parent| *parent > 0)).skip(1);
    let near = (pid - NEAR).max(1)..pid.saturating_add(NEAR);
    children.chain(ancestors).chain(near).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_host_with_thousands_of_processes_some_hundred_are_compared() {
        let own = std::process::id() as i32;
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (few, all) = (others(own, 0), others(own, u64::MAX));
        assert!((3..600).contains(&few.len()), "{few:?}");
        for relative in [child.id() as i32, std::os::unix::process::parent_id() as i32, 1] {
            assert!(few.contains(&relative) && all.contains(&relative), "{relative}");
        }
        assert!(!few.contains(&own) && !all.contains(&own));
        child.kill().and_then(|()| child.wait()).unwrap();
    }

    #[test]
    fn numbers_are_given_in_order() {
        let before = last_number().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let (number, after) = (child.id() as i32, last_number().unwrap());
        child.wait().unwrap();
        assert!(
            (before + 1..=after).contains(&number) || after < before,
            "{before} {number} {after}"
        );
        assert!(greatest_number() >= number);
    }
}
