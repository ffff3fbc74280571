//! A process that replaces its program (execve(2)) while it is looked at. For a moment it has no memory, and a first thread that has ended;
//! before and after it has another one's. Whatever is found then is true of neither.

use std::time::{Duration, Instant};

use super::refusal::{Answer, Refusal};
use super::threads;
use crate::error::Error;

/// How long a process is looked at again that executes one program after another.
const LONGEST: Duration = Duration::from_secs(3);
/// How long one that has no memory is waited for: its first thread may have ended for good.
const WITHOUT_MEMORY: Duration = Duration::from_secs(1);
/// How long one that unmaps what is looked at is looked at again.
const UNMAPPING: Duration = Duration::from_secs(1);
const BETWEEN: Duration = Duration::from_millis(5);

/// What tells one program of a process from the next: the kernel places its first values anew each time (AT_RANDOM, getauxval(3)). `None`: there
/// is none now.
fn program(pid: i32) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/auxv"))
        .ok()
        .filter(|auxv| !auxv.is_empty())
}

fn is_gone(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Failed(Error::Gone))
}

/// Memory that was mapped a moment ago is not any more (proc_pid_mem(5)): the program unmapped it, or a fastpath that died had made it do so.
fn is_unmapped(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Failed(Error::Io { source, .. }) if source.raw_os_error() == Some(libc::EIO))
}

/// Does `work`, and again for as long as it was refused while the process changed its program.
pub fn outside<T>(pid: i32, mut work: impl FnMut() -> Answer<T>) -> Answer<T> {
    let begun = Instant::now();
    let mut without_since = None;
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
        // Twice: its threads are not all listed while one of them takes the first one's number.
        let has_ended = (0..2).all(|look| {
            std::thread::sleep(BETWEEN * look);
            threads::of(pid).into_iter().all(|tid| threads::has_ended(pid, tid))
        });
        match (&before, &after) {
            _ if has_ended => return Err(refusal),
            (Some(_), Some(_)) if is_unmapped(&refusal) && begun.elapsed() < UNMAPPING => {}
            // The threads end first.
            (Some(before), Some(after)) if before == after && !is_gone(&refusal) => return Err(refusal),
            (_, Some(_)) if begun.elapsed() >= LONGEST => return Err(Refusal::KeepsExecuting),
            (_, Some(_)) => {}
            (_, None) if without_since.get_or_insert_with(Instant::now).elapsed() < WITHOUT_MEMORY => {}
            (_, None) => return Err(refusal),
        }
        std::thread::sleep(BETWEEN);
    }
}
