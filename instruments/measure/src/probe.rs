//! Determines the path that every clock takes here, and the cost of a call.

use crate::cost::{Cost, Effort, least, until_settled};
use crate::functions::{Functions, VdsoCall};
use crate::host::MeasuredHost;
use crate::path::{self, Path, PathEvidence};
use crate::stats::tenths;
use crate::timer::Timer;
use crate::vdso::Vdso;
use crate::verdict::{CallVerdict, judge};
use crate::vsyscall;
use fastpath_isa::Isa;
use fastpath_page::clocks::Clock;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::cell::Cell;
use std::time::Duration;

/// Pauses before a call that seems to cost too much is measured again. A call that is always slow takes a quarter of a
/// second.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(60),
    Duration::from_millis(120),
];

/// The output of `fastpath probe`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Probe {
    /// The ISA of the programs that take these paths.
    pub isa: &'static str,
    /// Every clock id, in numerical order.
    pub clocks: Vec<ClockReport>,
    /// The other functions that a vDSO answers, if this libc has them.
    pub functions: Vec<FunctionReport>,
    /// The vsyscall page (x86-64).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vsyscall: Option<vsyscall::Vsyscall>,
    /// The host on which this was measured.
    pub host: MeasuredHost,
}

/// One clock id's path and cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClockReport {
    /// The clock.
    pub clock: Clock,
    /// Its number.
    pub id: i32,
    /// Path, costs and verdict.
    #[serde(flatten)]
    pub measured: MeasuredCall,
}

/// One function's path and cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FunctionReport {
    /// Its name.
    pub function: Cow<'static, str>,
    /// Path, costs and verdict.
    #[serde(flatten)]
    pub measured: MeasuredCall,
}

/// Path and cost of a call.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MeasuredCall {
    /// The path that libc takes.
    pub path: Path,
    /// Cost of a call by libc.
    pub ns: Option<f64>,
    /// Cost of the bare system call.
    pub syscall_ns: Option<f64>,
    /// Whether that cost is as expected.
    pub verdict: CallVerdict,
    /// Reason why the path is unknown, or a remark about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Probe {
    /// Probes this process and this host. Takes some tens of milliseconds.
    pub fn run() -> Probe {
        let timer = Timer::start();
        let vdso = Vdso::of_auxv();
        let libc = Functions::libc();
        let functions = VdsoCall::FUNCTIONS.iter().copied().filter(|call| libc.has(*call));
        let calls: Vec<VdsoCall> = Clock::ALL
            .iter()
            .map(|clock| VdsoCall::ClockGettime(*clock))
            .chain(functions)
            .collect();
        let measure = |call, known: &PathEvidence| {
            known
                .is_callable()
                .then(|| Cost::measure(&timer, Effort::PROBE, call, known.syscall_works()))
        };
        let mut looks: Vec<Look> = Vec::new();
        for (call, evidence) in calls.iter().zip(path::establish(&calls)) {
            let cost = measure(*call, &evidence);
            looks.push(Look::new(*call, &evidence, cost, vdso.as_ref()));
        }
        let counter_of = |looks: &[Look]| looks.iter().filter_map(|look| look.cost?.counter).reduce(f64::min);
        let counter = Cell::new(counter_of(&looks));
        until_settled(
            &mut looks,
            &PAUSES,
            |look, _| !look.is_doubtful(counter.get()),
            |look| {
                let again = Cost::measure(&timer, Effort::PROBE, look.call, look.syscall_works);
                counter.set(least(counter.get(), again.counter));
                look.cost = look.cost.map(|before| before.least(again));
            },
        );
        let vsyscall = Isa::HOST.is_x86().then(|| vsyscall::cost(&timer));

        let ns_per_tick = timer.ns_per_tick();
        let counter_ns = counter.get().map(|ticks| ticks * ns_per_tick);
        let mut clocks = Vec::new();
        let mut functions = Vec::new();
        for look in looks {
            let call = look.call;
            let measured = look.measured(ns_per_tick, counter_ns);
            match call {
                VdsoCall::ClockGettime(clock) => clocks.push(ClockReport {
                    clock,
                    id: clock.id(),
                    measured,
                }),
                _ => functions.push(FunctionReport {
                    function: call.function().into(),
                    measured,
                }),
            }
        }
        let host = MeasuredHost::look(counter_ns, vdso.as_ref().map(Vdso::facts));
        Probe {
            isa: std::env::consts::ARCH,
            clocks,
            functions,
            vsyscall,
            host,
        }
    }

    /// Returns the names of the clocks and functions that are slow and need not be.
    pub fn slow(&self) -> Vec<&str> {
        let clocks = self.clocks.iter().map(|report| (report.clock.name(), &report.measured));
        let functions = self
            .functions
            .iter()
            .map(|report| (report.function.as_ref(), &report.measured));
        clocks
            .chain(functions)
            .filter(|(_, measured)| measured.verdict == CallVerdict::Slow)
            .map(|(name, _)| name)
            .collect()
    }
}

/// One call so far.
struct Look {
    call: VdsoCall,
    path: Path,
    why: Option<String>,
    syscall_works: bool,
    /// `None` if it cannot be called here. A call for which a filter kills the process was identified in a child.
    cost: Option<Cost>,
}

impl Look {
    fn new(call: VdsoCall, evidence: &PathEvidence, cost: Option<Cost>, vdso: Option<&Vdso>) -> Look {
        let (path, why) = path_of(call, evidence, vdso);
        Look {
            call,
            path,
            why,
            syscall_works: evidence.syscall_works(),
            cost,
        }
    }

    fn verdict(&self, cost: Option<Cost>, counter: Option<f64>) -> CallVerdict {
        let (ns, syscall_ns) = (cost.map(|cost| cost.call), cost.and_then(|cost| cost.syscall));
        judge(self.call, self.path, ns, syscall_ns, counter)
    }

    /// Returns whether the call stays in the process and seems to cost too much.
    fn is_doubtful(&self, counter: Option<f64>) -> bool {
        let is_in_process = matches!(self.path, Path::Vdso | Path::Fastpath);
        is_in_process && self.verdict(self.cost, counter) == CallVerdict::Slow
    }

    fn measured(self, ns_per_tick: f64, counter_ns: Option<f64>) -> MeasuredCall {
        let cost = self.cost.map(|cost| cost.in_ns(ns_per_tick));
        MeasuredCall {
            path: self.path,
            ns: cost.map(|cost| tenths(cost.call)),
            syscall_ns: cost.and_then(|cost| cost.syscall).map(tenths),
            verdict: self.verdict(cost, counter_ns),
            why: self.why,
        }
    }
}

pub fn path_of(call: VdsoCall, evidence: &PathEvidence, vdso: Option<&Vdso>) -> (Path, Option<String>) {
    if evidence.is_unsupported() {
        return (Path::Unsupported, None);
    }
    match (evidence.enters_kernel(), vdso) {
        (Err(why), _) => (Path::Unknown, Some(why)),
        (Ok((true, remark)), _) => (Path::Syscall, remark),
        (Ok((false, remark)), Some(vdso)) if vdso.serves_from_page(call) => (Path::Fastpath, remark),
        (Ok((false, remark)), Some(_)) => (Path::Vdso, remark),
        (Ok((false, _)), None) => (
            Path::Unknown,
            Some("libc makes no system call, although no vDSO is visible in this process".to_owned()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::time::Instant;

    fn evidence(syscalls: Result<u64, String>) -> PathEvidence {
        PathEvidence {
            raw_errno: Some(0),
            syscalls,
        }
    }

    #[test]
    fn a_probe_of_this_process_is_consistent_and_quick() {
        let start = Instant::now();
        let probe = Probe::run();
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        assert_eq!(probe.clocks.len(), Clock::ALL.len());
        let find = |clock| {
            &probe
                .clocks
                .iter()
                .find(|report| report.clock == clock)
                .unwrap()
                .measured
        };

        let cpu_time = find(Clock::PROCESS_CPUTIME_ID);
        assert_eq!(
            (cpu_time.path, cpu_time.verdict),
            (Path::Syscall, CallVerdict::SyscallOnly)
        );
        assert!(cpu_time.ns.unwrap() > 20.0, "{cpu_time:?}");

        let monotonic = find(Clock::MONOTONIC);
        assert!(monotonic.syscall_ns.unwrap() > 20.0, "{monotonic:?}");
        match &probe.host.vdso {
            Some(_) => assert_ne!(find(Clock::MONOTONIC_COARSE).path, Path::Syscall),
            None => assert_eq!(monotonic.path, Path::Syscall),
        }
        let slow = monotonic.verdict == CallVerdict::Slow;
        assert_eq!(probe.slow().contains(&"MONOTONIC"), slow);
    }

    fn look(syscalls: u64, libc: f64, vdso: Option<&Vdso>) -> Look {
        let call = VdsoCall::ClockGettime(Clock::MONOTONIC);
        let cost = Cost::sample(libc, 14.0, Some(136.96));
        Look::new(call, &evidence(Ok(syscalls)), Some(cost), vdso)
    }

    #[test]
    fn a_vdso_that_seems_expensive_is_measured_again_and_a_system_call_is_not() {
        let vdso = Vdso::of_auxv();
        let is_doubtful = |libc, syscalls| look(syscalls, libc, vdso.as_ref()).is_doubtful(Some(15.0));
        assert_eq!(is_doubtful(90.0, 0), vdso.is_some());
        assert!(!is_doubtful(20.0, 0));
        assert!(!is_doubtful(140.0, 32));
    }

    #[test]
    fn the_json_of_a_clock_has_exactly_these_fields() {
        let report = ClockReport {
            clock: Clock::MONOTONIC,
            id: 1,
            measured: look(32, 18.94, None).measured(1.0, Some(14.0)),
        };
        let wanted = r#"{"clock":"MONOTONIC","id":1,"path":"syscall","ns":18.9,"syscall_ns":137.0,"verdict":"slow"}"#;
        assert_eq!(serde_json::to_string(&report).unwrap(), wanted);
    }

    #[test]
    fn the_json_of_a_probe_has_clocks_functions_and_host() {
        let probe = serde_json::to_value(Probe::run()).unwrap();
        assert_eq!(probe["isa"], json!(std::env::consts::ARCH));
        assert_eq!(probe["clocks"][10]["clock"], json!("TAI"));
        assert_eq!(probe["clocks"][10]["id"], json!(11));
        let functions: Vec<&Value> = probe["functions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|f| &f["function"])
            .collect();
        assert_eq!(functions, ["gettimeofday", "time", "getcpu", "clock_getres"]);
        for key in [
            "kernel",
            "machine",
            "cpu",
            "ncpu",
            "clocksource",
            "counter_ns",
            "tsc_flags",
            "vdso",
            "seccomp",
            "hypervisor",
        ] {
            assert!(probe["host"].get(key).is_some(), "{key}");
        }
    }

    #[test]
    fn an_unknown_path_says_why_and_an_unsupported_clock_is_no_riddle() {
        let call = VdsoCall::ClockGettime(Clock::TAI);
        let (path, why) = path_of(call, &evidence(Err("no seccomp".to_owned())), None);
        assert_eq!((path, why.as_deref()), (Path::Unknown, Some("no seccomp")));
        let unsupported = PathEvidence {
            raw_errno: Some(libc::EINVAL),
            syscalls: Ok(32),
        };
        assert_eq!(path_of(call, &unsupported, None), (Path::Unsupported, None));
        let (path, why) = path_of(call, &evidence(Ok(0)), None);
        assert_eq!(path, Path::Unknown);
        assert!(why.unwrap().contains("no vDSO"));
    }
}
