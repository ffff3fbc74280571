//! The system calls that fastpath makes in a program, by the injection and by the hook, and whether a program's seccomp
//! filters let all of them pass.
//!
//! A process's filters are inherited by what it forks and executes, and only others are added. `run` tries its calls
//! under the filters that it inherited itself. Other filters are read, which takes a tracer with CAP_SYS_ADMIN and without
//! filters, and evaluated.

use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

use fastpath_image::Isa;
use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::target;
use crate::target::seccomp_filter::{Filter, FilterVerdict, FilteredCall, Instruction, MOST_INSTRUCTIONS};
use crate::target::tracee::Tracee;

/// The calls of an injection (`surgery`, with those that make a batch end), and of the hook (`hook/hook.c`). The hook
/// also repeats calls of the program itself. The image makes no call that the program did not make before.
const OURS: [(&str, libc::c_long); 12] = [
    ("clock_gettime", libc::SYS_clock_gettime),
    ("close", libc::SYS_close),
    ("futex", libc::SYS_futex),
    ("gettid", libc::SYS_gettid),
    ("mmap", libc::SYS_mmap),
    ("munmap", libc::SYS_munmap),
    ("prctl", libc::SYS_prctl),
    ("readlinkat", libc::SYS_readlinkat),
    ("recvmsg", libc::SYS_recvmsg),
    ("restart_syscall", libc::SYS_restart_syscall),
    ("socketpair", libc::SYS_socketpair),
    ("tgkill", libc::SYS_tgkill),
];

/// Most filters of a thread that are read. The kernel limits the sum of their instructions (MAX_INSNS_PER_PATH in
/// kernel/seccomp.c).
const MOST_FILTERS: usize = 256;
/// Most results that are kept: the services and containers of a host have a few different filters.
const MOST_KEPT: usize = 16;

/// Returns why fastpath must not make its calls in a 64-bit program under these filters; `None`: all of them allow every
/// one, whatever its arguments are, and wherever it is made.
pub fn obstacle(filters: &[Filter], isa: Isa) -> Option<String> {
    if filters.iter().any(Filter::reads_the_address) {
        return Some("it has a seccomp filter that tests the address of a call".into());
    }
    OURS.iter().find_map(|(name, number)| {
        let call = FilteredCall {
            arch: isa.audit_arch(),
            number: *number as u32,
        };
        answer_other_than_allow(filters, call, name)
    })
}

/// Returns what a filter may answer to a call other than SECCOMP_RET_ALLOW, in words.
pub fn answer_other_than_allow(filters: &[Filter], call: FilteredCall, name: &str) -> Option<String> {
    filters.iter().find_map(|filter| match filter.verdict(call) {
        FilterVerdict::Allowed => None,
        FilterVerdict::Not(action) => Some(format!("it has a seccomp filter that may answer {name} by {action}")),
        FilterVerdict::Unknown => Some(format!(
            "it has a seccomp filter whose answer to {name} cannot be foreseen"
        )),
    })
}

/// The results for sets of filters that were seen before: a container's programs all have the same.
#[derive(Default)]
pub struct Permissions(Mutex<Vec<(Vec<Filter>, Option<String>)>>);

impl Permissions {
    /// Refuses a stopped 64-bit program whose filters do not let all of fastpath's calls pass.
    pub fn require(&self, tracee: &Tracee, isa: Isa) -> Result<()> {
        let filters = read(tracee)?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let why = match known.iter().find(|(theirs, _)| *theirs == filters) {
            Some((_, why)) => why.clone(),
            None => {
                let why = obstacle(&filters, isa);
                if known.len() == MOST_KEPT {
                    known.remove(0);
                }
                known.push((filters, why.clone()));
                why
            }
        };
        why.map_or(Ok(()), |why| Err(Error::Unsupported(why)))
    }
}

/// Returns whether the filters of a stopped thread allow restart_syscall, by which the kernel continues a sleep after a
/// stop. Filters that cannot be read do not.
pub fn may_restart(tracee: &Tracee, isa: Isa) -> bool {
    thread_local! {
        /// The filters that were read last, and the result: the threads of a process mostly have the same.
        static LAST: RefCell<(Vec<Filter>, bool)> = const { RefCell::new((Vec::new(), true)) };
    }
    let has_none = || {
        let status = fastpath_os::Status::read(format!("{}/task/{}", tracee.process(), tracee.pid()));
        status.is_ok_and(|status| status.number::<u32>("Seccomp") == Some(0))
    };
    // The errno of a thread without filters is EINVAL.
    let mut buffer = vec![Instruction::default(); MOST_INSTRUCTIONS];
    if tracee.seccomp_filter(0, &mut buffer).err() == Some(Errno::EINVAL) {
        return true;
    }
    let Ok(filters) = read(tracee) else {
        return has_none();
    };
    LAST.with_borrow_mut(|last| {
        if last.0 != filters {
            let call = FilteredCall {
                arch: isa.audit_arch(),
                number: libc::SYS_restart_syscall as u32,
            };
            let is_allowed = answer_other_than_allow(&filters, call, "").is_none();
            *last = (filters, is_allowed);
        }
        last.1
    })
}

/// Reads the filters of a stopped thread.
fn read(tracee: &Tracee) -> Result<Vec<Filter>> {
    let mut buffer = vec![Instruction::default(); MOST_INSTRUCTIONS];
    let mut filters = Vec::new();
    loop {
        match tracee.seccomp_filter(filters.len(), &mut buffer) {
            Ok(_) if filters.len() == MOST_FILTERS => {
                return Err(Error::Unsupported("it has too many seccomp filters".into()));
            }
            Ok(filter) => filters.push(Filter::new(filter)),
            Err(Errno::ENOENT) => return Ok(filters),
            Err(Errno::ESRCH) => return Err(Error::Gone),
            Err(errno) => return Err(Error::Unsupported(unreadable(errno))),
        }
    }
}

/// Says why a filter cannot be read.
pub fn unreadable(errno: Errno) -> String {
    let why = match target::why_filters_stay() {
        Some(why) => why,
        None => format!("{errno} (PTRACE_SECCOMP_GET_FILTER takes a kernel with CONFIG_CHECKPOINT_RESTORE)"),
    };
    format!("it has a seccomp filter, which cannot be read: {why}")
}
