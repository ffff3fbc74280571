//! Hosts as in the field, for tests.

use crate::data::{Costs, Doctor, Host, Part, Trace};
use crate::read::{parse, read};
use crate::{Distribution, Nanoseconds};
use serde_json::{Value, json};

/// Returns a probe in which the counter's clocks have this cost and path, and the others their usual ones.
fn probe(name: &str, path: &str, ns: f64, verdict: &str, clocksource: &str) -> Value {
    let clock =
        |name: &str| json!({"clock": name, "id": 0, "path": path, "ns": ns, "syscall_ns": 246.0, "verdict": verdict});
    let clocks: Vec<Value> = ["REALTIME", "MONOTONIC", "MONOTONIC_RAW", "BOOTTIME", "TAI"]
        .map(clock)
        .into_iter()
        .chain([
            json!({"clock": "MONOTONIC_COARSE", "id": 6, "path": "vdso", "ns": 5.1, "syscall_ns": 130.2, "verdict": "fast"}),
            json!({"clock": "THREAD_CPUTIME_ID", "id": 3, "path": "syscall", "ns": 301.7, "syscall_ns": 299.9, "verdict": "syscall-only"}),
            json!({"clock": "BOOTTIME_ALARM", "id": 9, "path": "unsupported", "ns": null, "syscall_ns": null, "verdict": "unsupported"}),
        ])
        .collect();
    json!({
        "isa": "x86_64",
        "clocks": clocks,
        "functions": [{"function": "gettimeofday", "path": path, "ns": ns, "syscall_ns": 192.6, "verdict": verdict}],
        "vsyscall": {"mode": "xonly", "entries": [{"function": "time", "ns": 1480.2}]},
        "host": {
            "name": name, "kernel": "6.1.0-28-amd64", "machine": "x86_64", "cpu": "AMD EPYC 7B13", "ncpu": 16,
            "clocksource": clocksource, "clocksources_available": ["tsc", "hpet", "acpi_pm"], "counter": "lfence; rdtsc",
            "counter_ns": 18.1, "vdso": {"address": "0x7ffd", "build_id": null, "is_fastpath": false}, "hypervisor": "KVM",
        },
    })
}

fn host(probe: &Value) -> Host {
    let mut host = read(&probe.to_string(), "-", "-").unwrap().remove(0);
    host.file = None;
    host
}

/// Returns costs around this one, with a few disturbed samples.
fn spread(around: f64) -> Distribution {
    let near = (0..990).map(|n| around * (1.0 + f64::from(n % 10) / 100.0));
    let far = (0..10).map(|n| around * (2.0 + f64::from(n)));
    Distribution::from_samples(near.chain(far).collect()).unwrap()
}

fn costs(host: &Host, now: f64) -> Costs {
    let clock = |clock: &crate::data::Clock| crate::data::ClockCosts {
        clock: clock.clock.clone(),
        now: spread(now),
        fastpath: Some(spread(20.6)),
    };
    Costs {
        calls_per_sample: 16,
        clocks: host.probe.clocks[..5].iter().map(clock).collect(),
    }
}

fn doctor(value: Value) -> Option<Doctor> {
    Some(parse(value).unwrap())
}

/// Returns a host whose clocks are fast.
pub(crate) fn healthy(name: &str) -> Host {
    let mut host = host(&probe(name, "vdso", 21.9, "fast", "tsc"));
    host.measured_unix = Some(1_795_264_695);
    host.costs = Some(costs(&host, 21.9));
    host.doctor = doctor(json!({
        "verdict": "healthy",
        "summary": "every clock that can be fast is fast: MONOTONIC 21.9 ns, by system call 246 ns",
        "findings": [],
        "remedies": [],
        "unseen": [{"what": "the kernel's log", "source": "/dev/kmsg", "why": "Permission denied", "remedy": "look as root"}],
        "evidence": [{"section": "kernel", "what": "clocksource", "shows": "tsc", "mark": "ok", "source": "/sys/devices/system/clocksource"}],
    }));
    host.trace = Some(
        parse(json!({
            "schema": 1, "method": "bpf", "seconds": 2.001, "calls": 0,
            "lost": {"calls": 0, "stacks": 0, "process_events": 0}, "rows": [],
        }))
        .unwrap(),
    );
    host
}

/// Returns a host whose kernel uses hpet instead of the counter, with a process that reads clocks by system call.
pub(crate) fn slow(name: &str) -> Host {
    let mut host = host(&probe(name, "syscall", 836.4, "slow", "hpet"));
    host.costs = Some(costs(&host, 836.4));
    host.doctor = doctor(json!({
        "verdict": "slow",
        "summary": "the kernel runs on hpet, so REALTIME, MONOTONIC, MONOTONIC_RAW, BOOTTIME, TAI take 836 ns",
        "findings": [{
            "id": "counter-unused", "severity": "slow", "says": "the kernel runs on hpet",
            "proofs": [{"source": "/sys/devices/system/clocksource/clocksource0/current_clocksource", "shows": "hpet"}],
            "because": [{"says": "the watchdog found the TSC unstable",
                         "proof": {"source": "/dev/kmsg", "shows": "clocksource: timekeeping watchdog on CPU3: Marking clocksource 'tsc' as unstable"}}],
        }],
        "remedies": [
            {"id": "run", "when": "now", "does": "`fastpath run --trust-counter -- PROGRAM`, at about 22 ns a call", "cost": "a start of the program"},
            {"id": "clocksource", "when": "until-reboot", "does": "`echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource`", "cost": "time can be wrong"},
        ],
        "unseen": [],
        "evidence": [{"section": "kernel", "what": "clocksource", "shows": "hpet", "mark": "bad", "source": "/sys/devices/system/clocksource"}],
    }));
    host.trace = Some(trace());
    host
}

fn trace() -> Trace {
    let row = |pid: u32, comm: &str, rate: f64| {
        json!({
            "pid": pid, "comm": comm, "program": format!("/usr/bin/{comm}"), "has_ended": false, "call": "clock_gettime",
            "clock": "MONOTONIC", "abi": "x86_64", "calls": (rate * 2.0) as u64, "calls_per_second": rate, "cost_ns": 836.4,
            "cpu_percent": (rate * 836.4 / 1e4).round() / 1e3, "why": "clocksource",
            "says": "the kernel's clocksource cannot be read in user space (fastpath doctor says why)",
        })
    };
    parse(json!({
        "schema": 1, "method": "bpf", "seconds": 2.001, "calls": 312_000,
        "lost": {"calls": 3, "stacks": 0, "process_events": 0},
        "rows": [row(812, "postgres", 120_000.0), row(4711, "redis-server", 36_000.5)],
    }))
    .unwrap()
}

/// Returns a host of which only the output of `probe --json` exists.
pub(crate) fn only_probed(name: &str) -> Host {
    host(&probe(name, "vdso", 24.2, "fast", "tsc"))
}

/// Returns a host with little data, for these reasons.
pub(crate) fn partial(name: &str) -> Host {
    let mut host = slow(name);
    host.trace = None;
    host.costs
        .as_mut()
        .unwrap()
        .clocks
        .iter_mut()
        .for_each(|clock| clock.fastpath = None);
    for (what, why) in [
        (Part::Trace, "only root may count the system calls of all processes"),
        (Part::Fastpath, "the counter cannot be trusted"),
    ] {
        host.missing.push(crate::data::Missing {
            what,
            why: why.to_owned(),
        });
    }
    host.probe.host.counter_ns = None;
    host.probe.clocks[0].ns = Some(Nanoseconds::new(0.0));
    host
}
