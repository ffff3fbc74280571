//! The path that a call takes, established by blocking the system call, not inferred from the cost.
//!
//! A forked child puts itself under a seccomp filter that answers the clocks' system calls with an errno that they
//! never give by themselves, and then calls libc. A call that still works made no system call.

use crate::child::{self, ChildRecord, End};
use crate::functions::{Functions, VdsoCall, syscall};
use fastpath_page::clocks::Clock;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The path that libc takes for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// The kernel's vDSO answers without a system call.
    Vdso,
    /// fastpath's page answers.
    Fastpath,
    /// Every call enters the kernel.
    Syscall,
    /// The kernel has no such clock or function.
    Unsupported,
    /// The path could not be established; the report states the reason.
    Unknown,
}

impl Path {
    /// Returns the word for it, the same as in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Path::Vdso => "vdso",
            Path::Fastpath => "fastpath",
            Path::Syscall => "syscall",
            Path::Unsupported => "unsupported",
            Path::Unknown => "unknown",
        }
    }
}

/// Errno with which the filter blocks a system call ("Exchange full"): none of the system calls below can fail with it.
const TAKEN_AWAY: i32 = libc::EXFULL;

/// Number of calls. A single one may enter the kernel by accident: a reader that is preempted twice in the middle of a
/// read falls back to the kernel.
pub const TRIES: u64 = 32;

/// The evidence about one call's path.
#[derive(Clone, Debug, PartialEq)]
pub struct PathEvidence {
    /// Result of the bare system call: 0 or an errno. `None` if there is no such system call, or the result is unknown.
    pub raw_errno: Option<i32>,
    /// Number of the `TRIES` calls by libc that made a system call.
    pub syscalls: Result<u64, String>,
}

impl PathEvidence {
    /// The kernel has no such clock or function.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.raw_errno, Some(libc::EINVAL | libc::ENOSYS))
    }

    /// Returns whether the bare system call answers, so that its cost can be measured.
    pub fn syscall_works(&self) -> bool {
        self.raw_errno == Some(0)
    }

    /// Returns whether the call by libc can be made in this process: a filter may kill it for the system call.
    pub fn is_callable(&self) -> bool {
        !self.is_unsupported() && (self.syscall_works() || matches!(self.enters_kernel(), Ok((false, _))))
    }

    /// Returns whether the calls entered the kernel, and a remark if they did not all take the same path.
    pub fn enters_kernel(&self) -> Result<(bool, Option<String>), String> {
        let syscalls = self.syscalls.clone()?;
        let mixed = syscalls != 0 && syscalls != TRIES;
        let remark = mixed.then(|| format!("{syscalls} of {TRIES} calls made a system call"));
        Ok((2 * syscalls > TRIES, remark))
    }
}

/// The steps of a child's records.
mod step {
    pub(super) const RAW: u64 = 1;
    pub(super) const FILTER: u64 = 2;
    pub(super) const CONTROL: u64 = 3;
    pub(super) const LIBC: u64 = 4;
}

/// Establishes the path of each call by libc.
pub fn establish(calls: &[VdsoCall]) -> Vec<PathEvidence> {
    establish_for(Functions::libc(), calls)
}

fn establish_for(program: Functions, calls: &[VdsoCall]) -> Vec<PathEvidence> {
    let raw_errnos = raw_errnos(calls);
    let syscalls = syscalls_made(program, calls);
    raw_errnos
        .into_iter()
        .zip(syscalls)
        .map(|(raw_errno, syscalls)| PathEvidence { raw_errno, syscalls })
        .collect()
}

/// Returns the results of the bare system calls: 0 or an errno. They are called in a child, because a filter of this
/// process may kill it for one; nothing is known about that call and those after it.
pub(crate) fn raw_errnos(calls: &[VdsoCall]) -> Vec<Option<i32>> {
    let raw = Functions::syscalls();
    let body = |reporter: &child::Reporter| {
        for (item, call) in calls.iter().enumerate().filter(|(_, call)| raw.has(**call)) {
            reporter.report(step::RAW, item as u64, errno_of(|| raw.call(*call)) as u64);
        }
    };
    // SAFETY: the clocks' system calls and write are async-signal-safe, and nothing in there allocates.
    let records = unsafe { child::run(TIME_LIMIT, body) }
        .map(|(records, _)| records)
        .unwrap_or_default();
    (0..calls.len() as u64)
        .map(|item| value(&records, step::RAW, item).map(|errno| errno as i32))
        .collect()
}

/// Returns for each call how many of `TRIES` made a system call.
fn syscalls_made(program: Functions, calls: &[VdsoCall]) -> Vec<Result<u64, String>> {
    // Everything that allocates is done before the fork.
    let raw = Functions::syscalls();
    let outcome = filter(&of_clocks()).and_then(|filter| {
        let body = |reporter: &child::Reporter| {
            reporter.report(step::FILTER, 0, install(&filter) as u64);
            let control = errno_of(|| raw.call(VdsoCall::ClockGettime(Clock::MONOTONIC)));
            reporter.report(step::CONTROL, 0, control as u64);
            for (item, call) in calls.iter().enumerate() {
                let taken_away = (0..TRIES).filter(|_| errno_of(|| program.call(*call)) == TAKEN_AWAY);
                reporter.report(step::LIBC, item as u64, taken_away.count() as u64);
            }
        };
        // SAFETY: prctl, seccomp, the clocks' calls and write are async-signal-safe, and nothing in there allocates.
        unsafe { child::run(TIME_LIMIT, body) }.map_err(|error| format!("no child process could be started: {error}"))
    });
    match outcome {
        Ok((records, end)) => interpret(calls.len(), &records, end),
        Err(why) => vec![Err(why); calls.len()],
    }
}

/// Time limit of a child, which needs well below a millisecond.
pub const TIME_LIMIT: Duration = Duration::from_secs(2);

/// Returns the errno of a call, 0 if it succeeded. libc's functions leave errno alone when they succeed, with or
/// without a system call behind them. Some of them are the vDSO's own (glibc binds gettimeofday and time to it, by
/// IFUNC) and return minus the error instead.
fn errno_of(call: impl FnOnce() -> libc::c_long) -> i32 {
    /// Least value of minus an errno: minus the kernel's MAX_ERRNO.
    const LEAST: libc::c_long = -4095;
    // SAFETY: errno is this thread's.
    let (answer, errno) = unsafe {
        let errno = libc::__errno_location();
        *errno = 0;
        (call(), *errno)
    };
    // -1 means that errno is set, by libc's convention, or EPERM if it is not.
    match answer {
        LEAST..=-1 if errno == 0 => -answer as i32,
        _ => errno,
    }
}

/// Returns the system calls behind every [`VdsoCall`].
fn of_clocks() -> Vec<libc::c_long> {
    let time = syscall::TIME.map(libc::c_long::from);
    let others = [
        libc::SYS_clock_gettime,
        libc::SYS_clock_getres,
        libc::SYS_gettimeofday,
        libc::SYS_getcpu,
    ];
    others.into_iter().chain(time).collect()
}

/// Returns a filter that answers these system calls with [`TAKEN_AWAY`].
fn filter(numbers: &[libc::c_long]) -> Result<BpfProgram, String> {
    let build = || -> Result<BpfProgram, seccompiler::BackendError> {
        let rules = numbers.iter().map(|number| (*number, Vec::new())).collect();
        let taken_away = SeccompAction::Errno(TAKEN_AWAY as u32);
        SeccompFilter::new(
            rules,
            SeccompAction::Allow,
            taken_away,
            std::env::consts::ARCH.try_into()?,
        )?
        .try_into()
    };
    build().map_err(|error| format!("no seccomp filter could be made: {error}"))
}

/// Installs the filter. Returns 0 or the errno.
pub fn install(filter: &BpfProgram) -> i32 {
    match seccompiler::apply_filter(filter) {
        Ok(()) => 0,
        Err(seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error)) => {
            error.raw_os_error().unwrap_or(libc::EIO)
        }
        Err(_) => libc::EIO,
    }
}

fn value(records: &[ChildRecord], step: u64, item: u64) -> Option<u64> {
    records
        .iter()
        .find(|record| record[0] == step && record[1] == item)
        .map(|record| record[2])
}

fn interpret(calls: usize, records: &[ChildRecord], end: End) -> Vec<Result<u64, String>> {
    let died = || format!("a child process that tried it {}", end.describe());
    let refused = match (value(records, step::FILTER, 0), value(records, step::CONTROL, 0)) {
        (Some(0), Some(errno)) if errno == TAKEN_AWAY as u64 => None,
        (Some(0), Some(_)) => Some("this system accepts a seccomp filter, but does not obey it".to_owned()),
        (Some(0), None) | (None, _) => Some(died()),
        (Some(errno), _) => {
            let error = std::io::Error::from_raw_os_error(errno as i32);
            Some(format!("no seccomp filter can be installed here: {error}"))
        }
    };
    let made = |item| match &refused {
        Some(why) => Err(why.clone()),
        None => value(records, step::LIBC, item).ok_or_else(died),
    };
    (0..calls as u64).map(made).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROL: ChildRecord = [step::CONTROL, 0, TAKEN_AWAY as u64];

    fn evidence(syscalls: u64) -> PathEvidence {
        PathEvidence {
            raw_errno: Some(0),
            syscalls: Ok(syscalls),
        }
    }

    #[test]
    fn cpu_time_always_enters_the_kernel_and_coarse_clocks_need_not() {
        let calls = [
            VdsoCall::ClockGettime(Clock::PROCESS_CPUTIME_ID),
            VdsoCall::ClockGettime(Clock::THREAD_CPUTIME_ID),
            VdsoCall::ClockGettime(Clock::MONOTONIC_COARSE),
        ];
        let evidence = establish(&calls);
        assert!(evidence.iter().all(PathEvidence::syscall_works), "{evidence:?}");
        assert_eq!(evidence[0].enters_kernel(), Ok((true, None)));
        assert_eq!(evidence[1].enters_kernel(), Ok((true, None)));
        // SAFETY: getauxval only reads.
        let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } != 0;
        assert_eq!(evidence[2].enters_kernel(), Ok((!vdso, None)), "vDSO: {vdso}");
    }

    #[test]
    fn a_program_that_makes_its_system_calls_itself_is_seen_to() {
        let mut calls: Vec<VdsoCall> = Clock::ALL.iter().map(|clock| VdsoCall::ClockGettime(*clock)).collect();
        calls.extend(VdsoCall::FUNCTIONS);
        for (call, evidence) in calls.iter().zip(establish_for(Functions::syscalls(), &calls)) {
            assert_eq!(evidence.enters_kernel(), Ok((true, None)), "{call}");
        }
    }

    #[test]
    fn establishing_a_path_leaves_this_process_as_it_was() {
        let seccomp = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let lines = status
                .lines()
                .filter(|line| line.starts_with("Seccomp") || line.starts_with("NoNewPrivs"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let before = seccomp();
        establish(&[VdsoCall::Time]);
        assert_eq!(seccomp(), before);
        assert_eq!(errno_of(|| Functions::syscalls().call(VdsoCall::Getcpu)), 0);
    }

    #[test]
    fn a_path_is_unknown_with_its_reason_where_seccomp_is_missing() {
        let refused = interpret(1, &[[step::FILTER, 0, libc::EPERM as u64]], End::Finished);
        assert!(
            refused[0].as_ref().unwrap_err().contains("not permitted"),
            "{refused:?}"
        );

        let disobeyed = interpret(
            1,
            &[[step::FILTER, 0, 0], [step::CONTROL, 0, 0], [step::LIBC, 0, 0]],
            End::Finished,
        );
        assert!(
            disobeyed[0].as_ref().unwrap_err().contains("does not obey"),
            "{disobeyed:?}"
        );

        let killed = interpret(2, &[], End::Killed(libc::SIGSYS));
        assert!(killed[1].as_ref().unwrap_err().contains("SIGSYS"), "{killed:?}");
    }

    #[test]
    fn records_of_a_child_that_was_killed_are_used() {
        let made = interpret(
            2,
            &[[step::FILTER, 0, 0], CONTROL, [step::LIBC, 0, 0]],
            End::Killed(libc::SIGSEGV),
        );
        assert_eq!(made[0], Ok(0));
        assert!(made[1].as_ref().unwrap_err().contains("SIGSEGV"));
    }

    #[test]
    fn one_stray_system_call_does_not_make_a_path_but_is_reported() {
        assert_eq!(
            evidence(1).enters_kernel(),
            Ok((false, Some("1 of 32 calls made a system call".to_owned())))
        );
        assert_eq!(
            evidence(31).enters_kernel(),
            Ok((true, Some("31 of 32 calls made a system call".to_owned())))
        );
        assert_eq!(evidence(0).enters_kernel(), Ok((false, None)));
        assert_eq!(evidence(TRIES).enters_kernel(), Ok((true, None)));
    }

    #[test]
    fn an_error_is_seen_by_either_convention() {
        let libcs = || {
            // SAFETY: errno is this thread's.
            unsafe { *libc::__errno_location() = TAKEN_AWAY };
            -1
        };
        assert_eq!(errno_of(libcs), TAKEN_AWAY);
        assert_eq!(errno_of(|| -libc::c_long::from(TAKEN_AWAY)), TAKEN_AWAY);
        assert_eq!(errno_of(|| 0), 0);
        assert_eq!(errno_of(|| 1_900_000_000), 0, "time() answers with the time");
    }

    #[test]
    fn einval_from_the_kernel_is_an_unsupported_clock_and_eperm_is_not() {
        let answered = |errno| PathEvidence {
            raw_errno: errno,
            syscalls: Ok(TRIES),
        };
        assert!(answered(Some(libc::EINVAL)).is_unsupported());
        for errno in [Some(0), Some(libc::EPERM), None] {
            assert!(!answered(errno).is_unsupported(), "{errno:?}");
        }
    }
}
