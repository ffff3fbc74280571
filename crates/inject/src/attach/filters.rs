//! Seccomp filters of a process's threads, and the calls for time on which they have no effect.

use std::time::Duration;

use fastpath_image::Isa;
use fastpath_rescue::thunk::Routine;
use nix::errno::Errno;

use super::refusal::Answer;
use super::session::Session;
use super::threads::{self, AllStopped};
use crate::seccomp_filter::{Call, Filter, Instruction, MOST_INSTRUCTIONS, Verdict};
use crate::target::Status;

/// Time for which threads may be stopped for this: half of the deadline. A call for each filter of each thread takes
/// some microseconds.
const LONGEST: Duration = Duration::from_millis(50);

/// Most different filters that are judged, which takes milliseconds for each in the worst case. A service of systemd
/// has about 20.
const MOST_FILTERS: usize = 256;

/// Returns whether any thread has a filter: each may have its own.
pub fn are_on(pid: i32) -> bool {
    let mut statuses = threads::of(pid)
        .into_iter()
        .filter_map(|tid| Status::of(&format!("{pid}/task/{tid}")).ok());
    statuses.any(|status| status.filters > 0)
}

/// Removes the routines for calls that a filter of any thread may answer itself, and returns the reasons.
///
/// A thread that starts later inherits its filters from one of these. A filter that is installed later is like one that
/// is installed after the rescue.
pub fn remove_answered(session: &Session<'_>, isa: Isa, routines: &mut Vec<Routine>) -> Answer<Vec<String>> {
    let (stopped, read) = AllStopped::of(session, |all| Ok(Some(read(session, all))))?;
    drop(stopped);
    let filters = read.and_then(|filters| match filters.iter().any(Filter::reads_the_address) {
        // The calls of a changed site are made from other addresses.
        true => Err("it has a seccomp filter that tests the address of a call".to_owned()),
        false => Ok(filters),
    });
    let filters = match filters {
        Ok(filters) => filters,
        Err(why) => {
            routines.clear();
            return Ok(vec![why]);
        }
    };
    let mut reasons = Vec::new();
    routines.retain(|routine| {
        let why = reason(&filters, isa, routine);
        let is_allowed = why.is_none();
        reasons.extend(why);
        is_allowed
    });
    Ok(reasons)
}

/// Returns why a call must remain a system call, if a filter may answer it.
fn reason(filters: &[Filter], isa: Isa, routine: &Routine) -> Option<String> {
    let call = Call {
        arch: audit_arch(isa),
        number: routine.number,
    };
    let name = routine.name;
    filters.iter().find_map(|filter| match filter.verdict(call) {
        Verdict::Allowed => None,
        Verdict::Not(action) => Some(format!("it has a seccomp filter that may answer {name} by {action}")),
        Verdict::Unknown => Some(format!(
            "it has a seccomp filter whose answer to {name} cannot be foreseen"
        )),
    })
}

/// Returns the number of an architecture (AUDIT_ARCH_* of include/uapi/linux/audit.h).
fn audit_arch(isa: Isa) -> u32 {
    const IS_64_BIT: u32 = 0x8000_0000;
    const IS_LITTLE_ENDIAN: u32 = 0x4000_0000;
    let facts = isa.facts();
    let width = if facts.is_64 { IS_64_BIT } else { 0 };
    u32::from(facts.elf_machine) | IS_LITTLE_ENDIAN | width
}

/// Reads the filters of all threads, which are stopped. Filters that threads have in common are listed once. An error is
/// the reason why they are unknown.
fn read(session: &Session<'_>, all: &AllStopped<'_>) -> Result<Vec<Filter>, String> {
    let mut filters: Vec<Filter> = Vec::new();
    let mut buffer = vec![Instruction::default(); MOST_INSTRUCTIONS];
    let too_many = || "it has too many seccomp filters to read all of them".to_owned();
    for thread in &all.threads {
        for index in 0.. {
            if session.stop_time.elapsed() > LONGEST {
                return Err(too_many());
            }
            match thread.look().seccomp_filter(index, &mut buffer) {
                Ok(filter) if filters.iter().any(|known| known.is(filter)) => {}
                Ok(_) if filters.len() == MOST_FILTERS => return Err(too_many()),
                Ok(filter) => filters.push(Filter::new(filter)),
                Err(Errno::ENOENT) => break,
                Err(errno) => match unreadable(all.pid(), thread.tid(), errno) {
                    None => break,
                    Some(why) => return Err(why),
                },
            }
        }
    }
    Ok(filters)
}

/// Returns why a thread's filters cannot be read; `None` if it has none.
fn unreadable(pid: i32, tid: i32, errno: Errno) -> Option<String> {
    const NONE: u32 = 0;
    const STRICT: u32 = 1;
    let status = fastpath_proc::Status::of(format!("{pid}/task/{tid}"));
    match status.ok().and_then(|status| status.number("Seccomp")) {
        Some(NONE) => None,
        Some(STRICT) => Some("seccomp kills it for these calls (SECCOMP_MODE_STRICT)".to_owned()),
        _ => Some(format!(
            "it has a seccomp filter, which cannot be read: {errno} (PTRACE_SECCOMP_GET_FILTER takes CAP_SYS_ADMIN, no filter \
             on fastpath itself, and a kernel with CONFIG_CHECKPOINT_RESTORE)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_have_the_kernels_numbers() {
        let all = [
            (Isa::X86_64, 0xc000_003e),
            (Isa::I386, 0x4000_0003),
            (Isa::Aarch64, 0xc000_00b7),
            (Isa::Arm, 0x4000_0028),
        ];
        for (isa, number) in all {
            assert_eq!(audit_arch(isa), number, "{isa}");
        }
    }
}
