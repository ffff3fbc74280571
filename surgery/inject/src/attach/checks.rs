//! Checks of a process by way of /proc, before it is changed.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use fastpath_evidence::{PageCopy, STALE, age_of};
use fastpath_image::{Isa, Vdso};
use fastpath_page::Reader;

use super::listing;
use super::refusal::{Answer, Refusal};
use super::regions::{FoundRegion, find};
use crate::error::Error;
use crate::plan::redirection::JournalState;
use crate::target::maps::{self, Mapping};
use crate::target::memory::Memory;
use crate::target::{self, ThreadStatus};

/// A process that may be changed.
#[derive(Debug)]
pub struct Target {
    pub maps: Vec<Mapping>,
    /// Code of the kernel's vDSO there.
    pub vdso: Vec<u8>,
    pub vdso_base: u64,
    /// Region that an earlier attach left: with nothing in force, or with a page without a publisher.
    pub leftover: Option<FoundRegion>,
}

/// Refuses every process if /proc shows another PID namespace, and a process that does not exist, has no memory, has
/// ended, is frozen, is traced, or belongs to another user.
pub fn is_reachable(pid: i32) -> Answer<ThreadStatus> {
    target::proc_shows_this_namespace()?;
    let no_such = |hint: &str| Refusal::NoSuchProcess { hint: hint.into() };
    let Ok(stat) = fastpath_os::Stat::read(pid) else {
        return Err(no_such(""));
    };
    let status = ThreadStatus::read(&pid.to_string()).map_err(|_| no_such(""))?;
    if status.group != pid {
        return Err(no_such(&format!(": it is a thread of process {}", status.group)));
    }
    if stat.is_kernel_thread() {
        return Err(Refusal::KernelThread);
    }
    if listing::has_ended(pid, pid) {
        // The first thread may have ended before others.
        return Err(match listing::list(pid).len() {
            0 | 1 => Refusal::Zombie,
            _ => Refusal::FirstThreadEnded,
        });
    }
    if let Some((by, name)) = tracer_of(pid) {
        return Err(Refusal::Traced { by, name });
    }
    // kernel/signal.c; a cgroup v1 freezer keeps threads from stopping at all.
    let is_frozen = |tid| {
        let place = fastpath_os::wchan(format!("{pid}/task/{tid}"));
        listing::state(pid, tid) == Some('S') && ["do_freezer_trap", "get_signal"].contains(&place.trim())
    };
    if listing::list(pid).into_iter().any(is_frozen) {
        return Err(Refusal::Frozen);
    }
    let memory = format!("/proc/{pid}/mem");
    match open_memory(pid) {
        Ok(_) => Ok(status),
        Err(e) if e.kind() == ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH) => Err(no_such("")),
        Err(e) => Err(Refusal::NotPermitted {
            why: reason(pid, &memory, &e),
        }),
    }
}

/// Opens a process's memory for writing. Where a thread other than the first calls execve, no thread has the process's
/// number for a moment (`de_thread` in fs/exec.c), and open(2) returns ESRCH: tries again for up to 100 ms.
fn open_memory(pid: i32) -> std::io::Result<File> {
    const LONGEST: Duration = Duration::from_millis(100);
    let path = format!("/proc/{pid}/mem");
    let begun = Instant::now();
    loop {
        let opened = File::options().read(true).write(true).open(&path);
        let is_no_thread = opened.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::ESRCH));
        if !is_no_thread || begun.elapsed() >= LONGEST {
            return opened;
        }
        crate::remote::nap(begun);
    }
}

fn reason(pid: i32, path: &str, e: &std::io::Error) -> String {
    let own = nix::unistd::geteuid();
    let advice = match std::fs::metadata(format!("/proc/{pid}")).map(|meta| meta.uid()) {
        _ if own.is_root() => {
            "root needs CAP_SYS_PTRACE for it, and a security module may forbid it: see ptrace(2)".to_owned()
        }
        Ok(owner) if owner != own.as_raw() => {
            format!("it belongs to user {owner}, or has privileges that this one has not: run as root")
        }
        _ => "run as root, or see ptrace(2) and /proc/sys/kernel/yama/ptrace_scope".to_owned(),
    };
    format!("{path}: {e}; {advice}")
}

/// Returns the process that traces a thread of the process, and its name.
pub fn tracer_of(pid: i32) -> Option<(i32, String)> {
    let tracers = listing::list(pid).into_iter();
    let by = tracers
        .filter_map(|tid| Some(ThreadStatus::read(&format!("{pid}/task/{tid}")).ok()?.tracer))
        .find(|tracer| *tracer != 0)?;
    Some((by, fastpath_os::comm(by).unwrap_or_default()))
}

/// Refuses a process that cannot be attached.
pub fn may_attach(pid: i32) -> Answer<()> {
    is_reachable(pid)?;
    look_at(pid).map(drop)
}

/// Returns whether the page of an attached process has no publisher: it was killed, or stopped, or gets no CPU. Clocks that
/// a publisher withdrew will be served again.
fn is_abandoned(pid: i32, maps: &[Mapping]) -> bool {
    let Ok(Some(page)) = PageCopy::of_mappings(pid as u32, maps) else {
        return false;
    };
    age_of(&page).is_some_and(|age| age > STALE) && Reader::new(&page).stats().withdrawn_reason.is_none()
}

/// Makes the checks that a tracer may make too, and returns what they found.
pub fn look_at(pid: i32) -> Answer<Target> {
    let maps = maps::read(pid)?;
    let leftover = match find(pid, &maps)? {
        Some(found) if found.journal.state == JournalState::Kept => return Err(Refusal::UnderRun),
        Some(found) if found.is_in_force()? && !is_abandoned(pid, &maps) => {
            return Err(Refusal::AttachedAlready { pid });
        }
        // Only its publisher can write a page.
        None if PageCopy::is_published_in(&maps) => return Err(Refusal::Publisher),
        None if PageCopy::mapping(&maps).is_some() => return Err(Refusal::UnderRun),
        found => found,
    };
    let is_vdso = |m: &&Mapping| m.name == "[vdso]";
    let Some(code) = maps.iter().find(is_vdso) else {
        return Err(match fastpath_image::own_vdso() {
            // gVisor maps it without a name.
            Ok(Some(_)) if !maps::read(std::process::id() as i32)?.iter().any(|m| is_vdso(&m)) => {
                let why = "this kernel does not show vDSOs in /proc/PID/maps (gVisor does not)";
                Error::Unsupported(why.into()).into()
            }
            _ => Refusal::NoVdso { pid },
        });
    };
    let vdso = Memory::open(pid)?.bytes(code.start, (code.end - code.start) as usize)?;
    let vdso_base = code.start;
    let parsed = Vdso::parse(&vdso).map_err(|e| Error::Unsupported(format!("the kernel's vDSO: {e}")))?;
    let isa = Isa::of_elf(parsed.machine(), parsed.is_64());
    if isa.map(Isa::is_64) != Some(true) || isa != Isa::of_name(std::env::consts::ARCH) {
        let what = isa.map_or("it is a program of another kind".to_owned(), |isa| {
            format!("it is an {isa} program")
        });
        return Err(Refusal::OtherPrograms { what });
    }
    Ok(Target {
        maps,
        vdso,
        vdso_base,
        leftover,
    })
}
