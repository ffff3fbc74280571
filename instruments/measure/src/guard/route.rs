//! Determines the path of a guarded call, and whether the call can be made here.

use crate::child::{self, End};
use crate::functions::{Functions, VdsoCall};
use crate::path::{self, Path, TIME_LIMIT, TRIES};
use crate::probe;
use crate::vdso::Vdso;
use fastpath_page::clocks::Clock;

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
    /// Whether fastpath's page is in this process.
    pub has_page: bool,
}

/// Returns the path of each clock.
pub(super) fn of_all(clocks: &[Clock]) -> Vec<Route> {
    let calls: Vec<VdsoCall> = clocks.iter().map(|clock| VdsoCall::ClockGettime(*clock)).collect();
    let vdso = Vdso::of_auxv();
    let route = |(clock, evidence): (&Clock, path::PathEvidence)| {
        let evidence = path::PathEvidence {
            syscalls: evidence.syscalls.or_else(|why| by_filter_in_force(*clock).ok_or(why)),
            ..evidence
        };
        let (path, why) = probe::path_of(VdsoCall::ClockGettime(*clock), &evidence, vdso.as_ref());
        Route {
            path,
            why,
            is_callable: evidence.is_callable(),
            syscall_works: evidence.syscall_works(),
            has_page: vdso.as_ref().is_some_and(|vdso| vdso.facts().is_fastpath),
        }
    };
    clocks.iter().zip(path::establish(&calls)).map(route).collect()
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
    if killed(&|| raw.repeat(VdsoCall::ClockGettime(clock), 1)) != Some(true) {
        return None;
    }
    killed(&|| Functions::libc().repeat(VdsoCall::ClockGettime(clock), TRIES as u32))
        .map(|killed| if killed { TRIES } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_goes_where_the_probe_sees_it_go() {
        let routes = of_all(&[Clock::PROCESS_CPUTIME_ID, Clock::THREAD_CPUTIME_ID]);
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
            (seen, of_all(&[Clock::MONOTONIC]).remove(0))
        };
        let before = &of_all(&[Clock::MONOTONIC])[0];
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
}
