//! Determines the path of a guarded call, and whether the call can be made here.

use super::subject::{Subject, urandom};
use crate::child::{self, End};
use crate::clocks::Clock;
use crate::functions::{Call, Functions};
use crate::host;
use crate::path::{self, Path, TAKEN_AWAY, TIME_LIMIT, TRIES, step};
use crate::probe;
use crate::vdso::Vdso;
use fastpath_isa::Isa;

/// A call's path.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Route {
    /// The path.
    pub path: Path,
    /// Reason why the path is unknown, or the error that the call returns.
    pub why: Option<String>,
    /// Whether it can be made in this process, so that its cost can be measured.
    pub is_callable: bool,
    /// Whether the system call that it is compared with can be made.
    pub syscall_works: bool,
    /// Whether a seccomp filter kills this process for the call.
    pub is_forbidden: bool,
    /// Whether fastpath's page is in this process.
    pub has_page: bool,
    /// Whether a vDSO should answer it here: libc calls one, and the kernel's has the function.
    pub can_be_fast: bool,
}

/// Returns the path of each call.
pub(super) fn of_all(subjects: &[Subject]) -> Vec<Route> {
    let calls: Vec<Call> = subjects
        .iter()
        .filter_map(|subject| match subject {
            Subject::Clock(clock) => Some(Call::ClockGettime(*clock)),
            _ => None,
        })
        .collect();
    let vdso = Vdso::of_auxv();
    let mut evidence = if calls.is_empty() {
        Vec::new()
    } else {
        path::establish(&calls)
    }
    .into_iter();
    let mut getpid_works = None;
    let mut route = |subject: &Subject| match subject {
        Subject::Clock(clock) => {
            let call = Call::ClockGettime(*clock);
            let Some(evidence) = evidence.next() else {
                return unknown("it was not examined".to_owned());
            };
            let evidence = path::Evidence {
                syscalls: evidence.syscalls.or_else(|why| by_filter_in_force(*clock).ok_or(why)),
                ..evidence
            };
            let (path, why) = probe::path_of(call, &evidence, vdso.as_ref());
            let enters_kernel = !matches!(evidence.enters_kernel(), Ok((false, _)));
            Route {
                path,
                why,
                is_callable: !evidence.is_unsupported() && (evidence.syscall_works() || !enters_kernel),
                syscall_works: evidence.syscall_works(),
                is_forbidden: false,
                has_page: vdso.as_ref().is_some_and(|vdso| vdso.facts().is_fastpath),
                can_be_fast: true,
            }
        }
        other => {
            let getpid = *getpid_works.get_or_insert_with(|| answer_of(Subject::Getpid, None) == Ok(0));
            kernels(*other, getpid)
        }
    };
    subjects.iter().map(&mut route).collect()
}

fn unknown(why: String) -> Route {
    Route {
        path: Path::Unknown,
        why: Some(why),
        is_callable: false,
        syscall_works: false,
        is_forbidden: false,
        has_page: false,
        can_be_fast: false,
    }
}

/// Returns the path of a call that is a system call on all or nearly all hosts.
fn kernels(subject: Subject, getpid_works: bool) -> Route {
    // The state that a first call sets up (a descriptor, getrandom's state in glibc) is set up before a child is
    // forked.
    urandom();
    let route = |path, why| Route {
        path,
        why,
        is_callable: true,
        syscall_works: getpid_works,
        is_forbidden: false,
        has_page: false,
        can_be_fast: false,
    };
    match answer_of(subject, None) {
        Err(Unmeasured::Killed) => return forbidden(Path::Unknown),
        Err(Unmeasured::Other(why)) => return unknown(why),
        Ok(0) => {}
        Ok(libc::ENOSYS) => {
            return Route {
                is_callable: false,
                ..route(Path::Unsupported, None)
            };
        }
        Ok(errno) => return unknown(format!("it fails: {}", std::io::Error::from_raw_os_error(errno))),
    }
    if subject != Subject::Getrandom {
        return route(Path::Syscall, None);
    }
    subject.call();
    let can_be_fast = libc_asks_for_getrandom() && kernel_answers_getrandom();
    match answer_of(subject, Some(libc::SYS_getrandom)) {
        Ok(TAKEN_AWAY) => Route {
            can_be_fast,
            ..route(Path::Syscall, None)
        },
        Ok(_) => Route {
            can_be_fast,
            ..route(Path::Vdso, None)
        },
        Err(refusal) => route(Path::Unknown, Some(refusal.in_words())),
    }
}

const KILLED: &str = "a seccomp filter kills this process for it";

fn forbidden(path: Path) -> Route {
    Route {
        path,
        is_forbidden: true,
        ..unknown(KILLED.to_owned())
    }
}

/// Reason why a call's result is unknown.
#[derive(Debug, PartialEq)]
enum Unmeasured {
    /// A seccomp filter kills this process for the call.
    Killed,
    /// Another reason, in words.
    Other(String),
}

impl Unmeasured {
    fn in_words(self) -> String {
        match self {
            Unmeasured::Killed => KILLED.to_owned(),
            Unmeasured::Other(why) => why,
        }
    }
}

/// Uses a seccomp filter that kills this process for the clock's system call as evidence: a child that survives made
/// none. Returns how many of the calls by libc made one; `None` if there is no such filter.
fn by_filter_in_force(clock: Clock) -> Option<u64> {
    let raw = Functions::syscalls();
    let killed = |repeat: &dyn Fn()| {
        // SAFETY: clock reads are async-signal-safe.
        let ended = unsafe { child::run(TIME_LIMIT, |_| repeat()) };
        match ended {
            Ok((_, End::Killed(libc::SIGSYS))) => Some(true),
            Ok((_, End::Finished)) => Some(false),
            _ => None,
        }
    };
    if killed(&|| raw.repeat(Call::ClockGettime(clock), 1)) != Some(true) {
        return None;
    }
    killed(&|| Subject::Clock(clock).repeat(TRIES as u32)).map(|killed| if killed { TRIES } else { 0 })
}

/// Returns the result of a call in a child: 0 or an errno. There, the system call `taken_away` fails with an errno of
/// its own.
fn answer_of(subject: Subject, taken_away: Option<libc::c_long>) -> Result<i32, Unmeasured> {
    let filter = taken_away
        .map(|number| path::filter(&[number]))
        .transpose()
        .map_err(Unmeasured::Other)?;
    let body = |reporter: &child::Reporter| {
        if filter.is_some() {
            // A fork wipes the state of glibc's getrandom: the first call in a child takes a new key from the kernel.
            subject.call();
        }
        let installed = filter.as_ref().map_or(0, path::install);
        reporter.report(step::FILTER, 0, installed as u64);
        reporter.report(step::LIBC, 0, subject.call() as u64);
    };
    // SAFETY: getpid, read, write, seccomp and getrandom, which was called before, are async-signal-safe in every libc.
    let (records, end) = unsafe { child::run(TIME_LIMIT, body) }
        .map_err(|error| Unmeasured::Other(format!("no child process could be started: {error}")))?;
    let installed = path::value(&records, step::FILTER, 0);
    if let Some(errno) = installed.filter(|errno| *errno != 0) {
        let error = std::io::Error::from_raw_os_error(errno as i32);
        return Err(Unmeasured::Other(format!(
            "no seccomp filter can be installed here: {error}"
        )));
    }
    match (path::value(&records, step::LIBC, 0), end) {
        (Some(errno), _) => Ok(errno as i32),
        (None, End::Killed(libc::SIGSYS)) if installed.is_some() => Err(Unmeasured::Killed),
        (None, end) => Err(Unmeasured::Other(format!(
            "a child process that tried it {}",
            end.describe()
        ))),
    }
}

/// Returns whether this process's libc calls the vDSO's getrandom: glibc does since 2.41.
#[cfg(target_env = "gnu")]
fn libc_asks_for_getrandom() -> bool {
    // SAFETY: a constant string of libc's.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    fastpath_os::version(&version.to_string_lossy()) >= (2, 41)
}

#[cfg(not(target_env = "gnu"))]
fn libc_asks_for_getrandom() -> bool {
    false
}

/// Returns whether the kernel's vDSO has getrandom: by its symbols if it is mapped, else by the kernel's version.
fn kernel_answers_getrandom() -> bool {
    // Linux 6.11 on x86-64, 6.12 on AArch64.
    const SINCE: (u32, u32) = if Isa::HOST.is_x86() { (6, 11) } else { (6, 12) };
    match Vdso::of_kernel() {
        Some(vdso) => vdso.exports("__vdso_getrandom") || vdso.exports("__kernel_getrandom"),
        None => fastpath_os::version(&host::kernel_release()) >= SINCE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_goes_where_the_probe_sees_it_go_and_getpid_to_the_kernel() {
        let routes = of_all(&[Subject::Getpid, Subject::Clock(Clock::PROCESS_CPUTIME_ID)]);
        assert!(routes.iter().all(|route| route.path == Path::Syscall), "{routes:?}");
        assert!(
            routes.iter().all(|route| route.is_callable && route.syscall_works),
            "{routes:?}"
        );
    }

    #[test]
    fn a_filter_that_kills_is_evidence_by_itself() {
        let look = || {
            let filter = seccompiler::SeccompFilter::new(
                [(libc::SYS_clock_gettime, Vec::new())].into(),
                seccompiler::SeccompAction::Allow,
                seccompiler::SeccompAction::KillProcess,
                std::env::consts::ARCH.try_into().unwrap(),
            );
            assert_eq!(path::install(&filter.unwrap().try_into().unwrap()), 0);
            let seen = [Clock::MONOTONIC, Clock::THREAD_CPUTIME_ID].map(by_filter_in_force);
            (seen, of_all(&[Subject::Clock(Clock::MONOTONIC)]).remove(0))
        };
        let before = &of_all(&[Subject::Clock(Clock::MONOTONIC)])[0];
        if before.path == Path::Syscall {
            return crate::skip::skip("a clock read in this process would be killed");
        }
        // A filter applies to the thread that installs it.
        let (seen, after) = std::thread::spawn(look).join().unwrap();
        assert_eq!(seen, [Some(0), Some(TRIES)]);
        assert_eq!(
            (after.path, after.is_callable, after.syscall_works),
            (before.path, true, false)
        );
        assert_eq!(
            by_filter_in_force(Clock::MONOTONIC),
            None,
            "there is no such filter here"
        );
    }

    #[test]
    fn getrandom_goes_to_the_kernel_unless_libc_asks_a_vdso() {
        let route = &of_all(&[Subject::Getrandom])[0];
        let wanted = if route.can_be_fast { Path::Vdso } else { Path::Syscall };
        assert_eq!(route.path, wanted, "{route:?}");
    }
}
