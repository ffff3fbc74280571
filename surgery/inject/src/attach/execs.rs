//! Retries for a process that replaces its program (execve(2)) while it is examined. For a moment it has no memory, and
//! a first thread that has ended; before and after, its memory is of different programs. What is found meanwhile holds
//! for neither. Of a process that is traced for a moment, the same is true.

use std::time::{Duration, Instant};

use super::listing;
use super::refusal::{Answer, Refusal};
use crate::error::Error;

/// Time for which a process is examined again that executes one program after another.
const LONGEST: Duration = Duration::from_secs(3);
/// The same while its program stays: a thread that made remote calls, and was released between two of them, now waits
/// in the kernel uninterruptibly, as the parent of a vfork does, or its threads end.
const SAME_PROGRAM: Duration = Duration::from_secs(10);
/// Time to wait for a process without memory: its first thread may have ended for good.
const WITHOUT_MEMORY: Duration = Duration::from_secs(1);
/// Time for which a process is examined again that unmaps what is being examined, or maps what was free.
const MAPPING: Duration = Duration::from_secs(1);
/// Time for which a process is examined again that another fastpath traces: at each exec, for milliseconds.
const TRACED: Duration = Duration::from_secs(1);
const BETWEEN: Duration = Duration::from_millis(5);

/// Returns what distinguishes one program of a process from the next: the kernel chooses new addresses each time
/// (AT_RANDOM, getauxval(3)). `None` if the process has no program now: while the kernel still maps it (`load_elf_binary`
/// in fs/binfmt_elf.c), all of this is zero.
fn program(pid: i32) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/auxv"))
        .ok()
        .filter(|auxv| auxv.iter().any(|byte| *byte != 0))
}

fn is_gone(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Failed(Error::Gone))
}

/// Returns whether the tracer is a thread of fastpath, `fastpath-session` among them, or one that has just ended.
fn is_traced_by_fastpath(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Traced { name, .. } if name.is_empty() || name.starts_with("fastpath"))
}

/// Returns whether the memory is not as it was a moment ago: the program, or a fastpath that died, unmapped what is read
/// (EIO, proc_pid_mem(5)), or mapped something in a place that was free.
fn is_mapped_anew(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::Failed(Error::Io { source, .. }) => source.raw_os_error() == Some(libc::EIO),
        Refusal::Failed(Error::PlaceTaken) => true,
        _ => false,
    }
}

/// Returns the refusal for a process that has ended: whatever failed failed for that.
pub fn end_of(pid: i32) -> Option<Refusal> {
    crate::target::proc_shows_this_namespace().ok()?;
    match fastpath_os::Stat::read(pid) {
        Err(_) => Some(Refusal::NoSuchProcess { hint: String::new() }),
        Ok(_) if listing::list(pid).into_iter().all(|tid| listing::has_ended(pid, tid)) => Some(Refusal::Zombie),
        Ok(_) => None,
    }
}

/// Does `work`, and repeats it while it is refused and the process replaces its program.
pub fn outside<T>(pid: i32, mut work: impl FnMut() -> Answer<T>) -> Answer<T> {
    let begun = Instant::now();
    let (mut without_since, mut mapped_anew_since) = (None, None);
    loop {
        let before = program(pid);
        let refusal = match work() {
            Err(refusal) => refusal,
            done => return done,
        };
        let after = program(pid);
        if after.is_some() {
            without_since = None;
        }
        // For 50 ms: not all threads are listed while one of them takes the first one's number, and may wait for a CPU.
        let has_ended = (0..5).all(|look| {
            std::thread::sleep(BETWEEN * look);
            listing::list(pid).into_iter().all(|tid| listing::has_ended(pid, tid))
        });
        match (&before, &after) {
            _ if has_ended => return Err(end_of(pid).unwrap_or(refusal)),
            _ if is_traced_by_fastpath(&refusal) && begun.elapsed() < TRACED => {}
            (Some(_), Some(_))
                if is_mapped_anew(&refusal)
                    && mapped_anew_since.get_or_insert_with(Instant::now).elapsed() < MAPPING => {}
            // `Gone` with the same program before and after: the threads end before the program is replaced, or one of
            // them was lost between two remote calls.
            (Some(before), Some(after)) if before == after && !is_gone(&refusal) => return Err(refusal),
            (Some(before), Some(after)) if before == after && begun.elapsed() < SAME_PROGRAM => {}
            (Some(before), Some(after)) if before == after => {
                let place = fastpath_os::wchan(pid);
                return Err(Refusal::DoesNotStop { tid: pid, place });
            }
            (_, Some(_)) if begun.elapsed() >= LONGEST => return Err(Refusal::KeepsExecuting),
            (_, Some(_)) => {}
            (_, None) if without_since.get_or_insert_with(Instant::now).elapsed() < WITHOUT_MEMORY => {}
            (_, None) => return Err(refusal),
        }
        std::thread::sleep(BETWEEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_thread_or_another_fastpath_prevents_is_tried_again() {
        let traced = |name: &str| Refusal::Traced {
            by: 1,
            name: name.into(),
        };
        let unmapped = || Error::io("/proc/1/mem", std::io::Error::from_raw_os_error(libc::EIO)).into();
        let passing: [fn() -> Refusal; 2] = [|| Error::PlaceTaken.into(), unmapped];
        let passing = passing.map(|refusal| refusal());
        // Names of threads are cut off after 15 bytes.
        let mut passing = passing
            .into_iter()
            .chain(["fastpath", "fastpath-sessio", ""].map(traced));
        let own = std::process::id() as i32;
        outside(own, || passing.next().map_or(Ok(()), Err)).unwrap();
        let refused = outside(own, || Err::<(), _>(traced("gdb")));
        assert!(matches!(refused, Err(Refusal::Traced { .. })));
        let begun = Instant::now();
        let refused = outside(own, || Err::<(), _>(Error::PlaceTaken.into()));
        assert!(matches!(refused, Err(Refusal::Failed(Error::PlaceTaken))));
        assert!(begun.elapsed() >= MAPPING);
    }
}
