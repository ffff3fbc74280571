//! Judges whether a call's cost is as expected.

use crate::functions::VdsoCall;
use crate::path::Path;
use fastpath_isa::Isa;
use fastpath_page::clocks::ClockKind;
use serde::{Deserialize, Serialize};

/// The judgement of a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", schemars(rename = "CallVerdict"))]
pub enum CallVerdict {
    /// As fast as possible.
    Fast,
    /// A vDSO could answer this call, but none does, or not at its usual cost.
    Slow,
    /// The kernel has no such clock or function.
    Unsupported,
    /// The call is a system call on every host: nothing is wrong.
    SyscallOnly,
    /// Neither path nor cost could be established.
    Unknown,
}

impl CallVerdict {
    /// Returns the word for it, the same as in JSON.
    pub fn word(self) -> &'static str {
        match self {
            CallVerdict::Fast => "fast",
            CallVerdict::Slow => "slow",
            CallVerdict::Unsupported => "unsupported",
            CallVerdict::SyscallOnly => "syscall-only",
            CallVerdict::Unknown => "unknown",
        }
    }
}

/// Slow is a vDSO call that costs half of a system call or more: a healthy one costs a tenth to a fifth.
const SLOW_AGAINST_SYSCALL: f64 = 0.5;
/// A call below this many counter reads is not slow, because then the counter itself is expensive. A healthy read costs
/// 1.2 to 1.5 counter reads.
const SLOW_AGAINST_COUNTER: f64 = 2.5;

/// Returns the cost above which a call costs more than a vDSO would; `None` if there is no system call to compare it
/// with.
pub fn slow_above(syscall_ns: Option<f64>, counter_ns: Option<f64>) -> Option<f64> {
    let near_a_syscall = SLOW_AGAINST_SYSCALL * syscall_ns?;
    Some(near_a_syscall.max(SLOW_AGAINST_COUNTER * counter_ns.unwrap_or(0.0)))
}

/// Returns whether a call costs more than a vDSO would.
pub fn costs_too_much(ns: f64, syscall_ns: Option<f64>, counter_ns: Option<f64>) -> bool {
    slow_above(syscall_ns, counter_ns).is_some_and(|limit| ns > limit)
}

/// Returns whether the vDSO of any kernel for programs of this ISA answers the call faster than the system call.
fn a_vdso_can_answer(call: VdsoCall, isa: Isa) -> bool {
    !matches!(call, VdsoCall::Getcpu) || isa.facts().has_cpu_number
}

/// Judges a call by its path and its cost.
pub fn judge(
    call: VdsoCall,
    path: Path,
    ns: Option<f64>,
    syscall_ns: Option<f64>,
    counter: Option<f64>,
) -> CallVerdict {
    if path == Path::Unsupported {
        return CallVerdict::Unsupported;
    }
    if call.clock().is_some_and(|clock| clock.kind() == ClockKind::KernelOnly) {
        return CallVerdict::SyscallOnly;
    }
    match (path, ns) {
        (Path::Syscall, _) if !a_vdso_can_answer(call, Isa::HOST) => CallVerdict::SyscallOnly,
        (Path::Syscall, _) => CallVerdict::Slow,
        (_, None) => CallVerdict::Unknown,
        (_, Some(ns)) if costs_too_much(ns, syscall_ns, counter) => CallVerdict::Slow,
        // The call is cheap, whatever answered it.
        (_, Some(_)) if syscall_ns.is_some() || path != Path::Unknown => CallVerdict::Fast,
        _ => CallVerdict::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;

    const MONOTONIC: VdsoCall = VdsoCall::ClockGettime(Clock::MONOTONIC);

    fn judged(path: Path, ns: f64) -> CallVerdict {
        judge(MONOTONIC, path, Some(ns), Some(140.0), Some(15.0))
    }

    #[test]
    fn a_clock_that_a_vdso_could_answer_is_slow_by_system_call_whatever_it_costs() {
        assert_eq!(judged(Path::Syscall, 140.0), CallVerdict::Slow);
        assert_eq!(judged(Path::Syscall, 1.0), CallVerdict::Slow);
        let coarse = VdsoCall::ClockGettime(Clock::REALTIME_COARSE);
        assert_eq!(
            judge(coarse, Path::Syscall, Some(140.0), Some(140.0), Some(15.0)),
            CallVerdict::Slow
        );
    }

    #[test]
    fn a_vdso_is_slow_when_it_costs_as_much_as_a_system_call() {
        assert_eq!(judged(Path::Vdso, 20.0), CallVerdict::Fast);
        assert_eq!(judged(Path::Fastpath, 69.0), CallVerdict::Fast);
        assert_eq!(judged(Path::Vdso, 71.0), CallVerdict::Slow);
        assert_eq!(judged(Path::Fastpath, 900.0), CallVerdict::Slow);
    }

    #[test]
    fn an_expensive_counter_is_not_blamed_on_the_vdso() {
        assert_eq!(
            judge(MONOTONIC, Path::Vdso, Some(1100.0), Some(1200.0), Some(900.0)),
            CallVerdict::Fast
        );
        assert_eq!(
            judge(MONOTONIC, Path::Vdso, Some(1100.0), Some(1200.0), Some(20.0)),
            CallVerdict::Slow
        );
        assert_eq!(
            judge(MONOTONIC, Path::Vdso, Some(1100.0), Some(1200.0), None),
            CallVerdict::Slow
        );
    }

    #[test]
    fn a_clock_that_only_the_kernel_answers_is_not_slow() {
        for clock in [
            Clock::PROCESS_CPUTIME_ID,
            Clock::THREAD_CPUTIME_ID,
            Clock::BOOTTIME_ALARM,
        ] {
            let verdict = judge(
                VdsoCall::ClockGettime(clock),
                Path::Syscall,
                Some(300.0),
                Some(290.0),
                Some(15.0),
            );
            assert_eq!(verdict, CallVerdict::SyscallOnly);
        }
        assert_eq!(
            judge(MONOTONIC, Path::Unsupported, None, None, None),
            CallVerdict::Unsupported
        );
    }

    #[test]
    fn getcpu_is_a_system_call_where_the_cpu_does_not_tell_a_program_its_number() {
        assert!(a_vdso_can_answer(VdsoCall::Getcpu, Isa::X86_64));
        assert!(!a_vdso_can_answer(VdsoCall::Getcpu, Isa::Aarch64));
        assert!(a_vdso_can_answer(VdsoCall::Gettimeofday, Isa::Aarch64) && a_vdso_can_answer(MONOTONIC, Isa::Aarch64));
        let verdict = judge(VdsoCall::Getcpu, Path::Syscall, Some(90.0), Some(90.0), Some(15.0));
        assert_eq!(
            verdict,
            if Isa::HOST.is_x86() {
                CallVerdict::Slow
            } else {
                CallVerdict::SyscallOnly
            }
        );
    }

    #[test]
    fn nothing_is_concluded_from_nothing() {
        assert_eq!(
            judge(MONOTONIC, Path::Vdso, None, Some(140.0), Some(15.0)),
            CallVerdict::Unknown
        );
        assert_eq!(
            judge(MONOTONIC, Path::Unknown, Some(20.0), None, Some(15.0)),
            CallVerdict::Unknown
        );
        assert_eq!(
            judge(MONOTONIC, Path::Unknown, Some(20.0), Some(140.0), None),
            CallVerdict::Fast
        );
    }
}
