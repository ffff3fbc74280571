//! Determines the path that every clock takes here, and the cost of a call.

use crate::clocks::Clock;
use crate::cost::{Effort, ticks_per_call};
use crate::functions::{Call, Functions};
use crate::host::Host;
use crate::path::{self, Evidence, Path};
use crate::stats::tenths;
use crate::timer::Timer;
use crate::vdso::Vdso;
use crate::verdict::{CallVerdict, judge};
use crate::{counter, vsyscall};
use fastpath_isa::Isa;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
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
    pub host: Host,
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
    pub measured: Measured,
}

/// One function's path and cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FunctionReport {
    /// Its name.
    pub function: Cow<'static, str>,
    /// Path, costs and verdict.
    #[serde(flatten)]
    pub measured: Measured,
}

/// Path and cost of a call.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Measured {
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
        let functions = Call::FUNCTIONS.iter().copied().filter(|call| libc.has(*call));
        let calls: Vec<Call> = Clock::ALL
            .iter()
            .map(|clock| Call::ClockGettime(*clock))
            .chain(functions)
            .collect();
        let evidence = path::establish(&calls);
        let mut costs: Vec<Cost> = calls
            .iter()
            .zip(&evidence)
            .map(|(call, known)| Cost::measure(&timer, *call, known))
            .collect();
        let mut counter_ticks = counter::ticks_per_read(&timer, Effort::PROBE);
        for pause in PAUSES {
            let is_doubtful =
                |at: &usize| costs[*at].is_doubtful(calls[*at], &evidence[*at], counter_ticks, vdso.as_ref());
            let doubtful: Vec<usize> = (0..calls.len()).filter(is_doubtful).collect();
            if doubtful.is_empty() {
                break;
            }
            fastpath_evidence::pause(pause);
            for at in doubtful {
                costs[at] = costs[at].least(Cost::measure(&timer, calls[at], &evidence[at]));
            }
            counter_ticks = least(counter_ticks, counter::ticks_per_read(&timer, Effort::PROBE));
        }
        let vsyscall = Isa::HOST.is_x86().then(|| vsyscall::cost(&timer));

        let ns_per_tick = timer.ns_per_tick();
        let counter_ns = counter_ticks.map(|ticks| ticks * ns_per_tick);
        let mut clocks = Vec::new();
        let mut functions = Vec::new();
        for ((call, evidence), cost) in calls.into_iter().zip(evidence).zip(costs) {
            let measured = Measured::new(call, &evidence, cost.in_ns(ns_per_tick), counter_ns, vdso.as_ref());
            match call {
                Call::ClockGettime(clock) => clocks.push(ClockReport {
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
        let host = Host::look(counter_ns, vdso.as_ref().map(Vdso::facts));
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

fn least(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.zip(b).map(|(a, b)| a.min(b)).or(a).or(b)
}

/// Cost of a call, in ticks or in nanoseconds.
#[derive(Clone, Copy)]
struct Cost {
    libc: Option<f64>,
    syscall: Option<f64>,
}

impl Cost {
    fn measure(timer: &Timer, call: Call, evidence: &Evidence) -> Cost {
        // A call for which a filter kills the process was identified in a child; it is not made here.
        let (libc, raw) = (Functions::libc(), Functions::syscalls());
        let enters_kernel = !matches!(evidence.enters_kernel(), Ok((false, _)));
        let libc_is_safe = !evidence.is_unsupported() && (evidence.syscall_works() || !enters_kernel);
        let cost = |functions: Functions| ticks_per_call(timer, Effort::PROBE, |calls| functions.repeat(call, calls));
        Cost {
            libc: libc_is_safe.then(|| cost(libc)),
            syscall: evidence.syscall_works().then(|| cost(raw)),
        }
    }

    /// Returns whether the call stays in the process and seems to cost too much. Other programs on a busy machine evict
    /// it from the caches, so one measurement does not decide.
    fn is_doubtful(self, call: Call, evidence: &Evidence, counter: Option<f64>, vdso: Option<&Vdso>) -> bool {
        let (path, _) = path_of(call, evidence, vdso);
        let is_in_process = matches!(path, Path::Vdso | Path::Fastpath);
        is_in_process && judge(call, path, self.libc, self.syscall, counter) == CallVerdict::Slow
    }

    fn least(self, other: Cost) -> Cost {
        Cost {
            libc: least(self.libc, other.libc),
            syscall: least(self.syscall, other.syscall),
        }
    }

    fn in_ns(self, ns_per_tick: f64) -> Cost {
        let ns = |ticks: Option<f64>| ticks.map(|ticks| ticks * ns_per_tick);
        Cost {
            libc: ns(self.libc),
            syscall: ns(self.syscall),
        }
    }
}

impl Measured {
    fn new(call: Call, evidence: &Evidence, cost: Cost, counter_ns: Option<f64>, vdso: Option<&Vdso>) -> Measured {
        let (path, why) = path_of(call, evidence, vdso);
        Measured {
            path,
            ns: cost.libc.map(tenths),
            syscall_ns: cost.syscall.map(tenths),
            verdict: judge(call, path, cost.libc, cost.syscall, counter_ns),
            why,
        }
    }
}

pub fn path_of(call: Call, evidence: &Evidence, vdso: Option<&Vdso>) -> (Path, Option<String>) {
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

    fn evidence(syscalls: Result<u64, String>) -> Evidence {
        Evidence {
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

    #[test]
    fn a_vdso_that_seems_expensive_is_measured_again_and_a_system_call_is_not() {
        let cost = |libc: f64| Cost {
            libc: Some(libc),
            syscall: Some(140.0),
        };
        let clock = Call::ClockGettime(Clock::MONOTONIC);
        let vdso = Vdso::of_auxv();
        let is_doubtful =
            |libc: f64, syscalls| cost(libc).is_doubtful(clock, &evidence(Ok(syscalls)), Some(15.0), vdso.as_ref());
        assert_eq!(is_doubtful(90.0, 0), vdso.is_some());
        assert!(!is_doubtful(20.0, 0));
        assert!(!is_doubtful(140.0, 32));
        let least = cost(90.0).least(cost(20.0));
        assert_eq!((least.libc, least.syscall), (Some(20.0), Some(140.0)));
    }

    #[test]
    fn the_json_of_a_clock_has_exactly_these_fields() {
        let cost = Cost {
            libc: Some(18.94),
            syscall: Some(136.96),
        };
        let measured = Measured::new(
            Call::ClockGettime(Clock::MONOTONIC),
            &evidence(Ok(32)),
            cost,
            Some(14.0),
            None,
        );
        let report = ClockReport {
            clock: Clock::MONOTONIC,
            id: 1,
            measured,
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
        let call = Call::ClockGettime(Clock::TAI);
        let (path, why) = path_of(call, &evidence(Err("no seccomp".to_owned())), None);
        assert_eq!((path, why.as_deref()), (Path::Unknown, Some("no seccomp")));
        let unsupported = Evidence {
            raw_errno: Some(libc::EINVAL),
            syscalls: Ok(32),
        };
        assert_eq!(path_of(call, &unsupported, None), (Path::Unsupported, None));
        let (path, why) = path_of(call, &evidence(Ok(0)), None);
        assert_eq!(path, Path::Unknown);
        assert!(why.unwrap().contains("no vDSO"));
    }
}
