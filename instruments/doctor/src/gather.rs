//! Gathers all facts, in an order that gives the rate's measurement a long base without waiting for it.

use super::facts::{CounterFacts, Facts, KernelFacts, KernelLog, MachineFacts, Process, Stated, StatedBy};
use super::root::Root;
use super::sampling::{self, Sampling};
use super::{arch, counter_reads, host, kernel_log, process, rate};
use fastpath_evidence::{Drift, Evidence, Timeouts, Warp};
use fastpath_measure::clocks::Clock;
use fastpath_measure::counter;
use fastpath_measure::functions::Functions;
use fastpath_measure::probe::Probe;
use fastpath_measure::vdso::Vdso;
use fastpath_measure::{Comparison, Limit, Monotonicity, is_synchronized, monotonicity};
use std::borrow::Cow;
use std::path::Path;
use std::time::{Duration, Instant};

/// Options of an examination.
pub struct DoctorOptions<'a> {
    /// The root: `/`, or a directory with a copy of a host's /proc, /sys and /dev.
    pub root: &'a Path,
    /// A process to examine in addition to the host.
    pub pid: Option<u32>,
    /// Time for which that process's CPU time is sampled.
    pub sampled: Duration,
    /// Least time for which the kernel's clocks are compared with the machine's other clocks. Zero: only with those that
    /// take no second to read, and no longer than the examination takes anyway.
    pub rate: Duration,
    /// A probe of this process, if the caller has made one.
    pub probe: Option<&'a Probe>,
}

impl DoctorOptions<'_> {
    /// Returns the options for this host alone.
    pub fn host() -> Self {
        DoctorOptions {
            root: Path::new("/"),
            pid: None,
            sampled: Duration::ZERO,
            rate: Duration::ZERO,
            probe: None,
        }
    }
}

/// Timeouts longer than those of `run` at a start: doctor may take a second, on a busy machine too.
const TIMEOUTS: Timeouts = Timeouts {
    in_all: Duration::from_millis(350),
    for_a_pair: Duration::from_millis(175),
    for_an_answer: Duration::from_millis(60),
};
/// Least duration of the rate's measurement. Brackets of 100 ns, as through a vDSO, then cause an error of 0.7 ppm, and
/// brackets of 4 µs, as through hpet, one of 27 ppm.
const RATE_BASE: Duration = Duration::from_millis(150);

/// Time between two comparisons of the CPUs' counters that are apart. Bounds of 200 ns then cause an error of 0.2 ppm.
const DRIFT_BASE: Duration = Duration::from_secs(1);
/// Time for which all CPUs read the clocks.
const READS: Limit = Limit {
    duration: Duration::from_millis(30),
    reads: u64::MAX,
};

pub(super) fn gather(root: &Root, options: &DoctorOptions) -> Result<Facts, String> {
    // The process comes first, because it may not exist.
    let begun = options.pid.map(|pid| Begun::with(root, pid, options.sampled));
    let begun = begun.transpose()?;
    let here = process::look(root, "self").unwrap_or_else(|why| {
        root.miss(
            "this process's own state",
            "/proc/self",
            &why,
            "look at it where /proc is mounted",
        );
        process::unseen_self()
    });
    let probe = options.probe.cloned().unwrap_or_else(Probe::run);
    let clocksource = host::clocksource(root);
    let comparison = begin_comparison(root, &probe, clocksource.current.as_deref(), options.rate);
    let started = Instant::now();
    let rate_start = may_measure_rate(&probe).then(rate::Start::now).flatten();

    let cpuinfo = root.expect("the CPU's flags", "/proc/cpuinfo", "look at it where /proc is mounted");
    let product = host::product(root);
    let log = kernel_log::read(root);
    let mut counter = counter_facts(root, &probe, cpuinfo.as_deref(), log.as_ref());
    let stand_in = host::stand_in(root, cpuinfo.as_deref(), &probe.host.kernel);
    if stand_in.is_some() {
        // User Mode Linux computes bogomips with a delay loop of its own, which says nothing about the counter.
        counter.stated.clear();
    }
    let mut facts = Facts {
        machine: machine(root, &probe, cpuinfo.as_deref(), product, stand_in),
        kernel: KernelFacts {
            release: probe.host.kernel.clone(),
            machine: probe.host.machine.clone(),
            parameters: host::parameters(root),
        },
        clocksource,
        log,
        counter,
        syscall_ns: cheapest_system_call(&probe),
        vdso: host::kernel_vdso(Vdso::of_kernel().as_ref()),
        mitigations: host::mitigations(root),
        rates: Vec::new(),
        is_synchronized: is_synchronized(),
        monotonicity: backward_steps(&probe),
        clocks: probe.clocks,
        functions: probe.functions,
        vsyscall: probe.vsyscall,
        here,
        process: None,
        counter_programs: None,
    };
    if root.is_host() && begun.is_none() && facts.counter.is_wrong_or_may_be() {
        facts.counter_programs = counter_reads::running(root);
    }
    if rate_start.is_some() || comparison.is_some() {
        let wanted = if comparison.is_some() {
            options.rate
        } else {
            Duration::ZERO
        };
        fastpath_evidence::pause(RATE_BASE.max(wanted).saturating_sub(started.elapsed()));
    }
    facts.counter.measured = rate_start.and_then(|start| start.rate());
    facts.rates = comparison.map(Comparison::end).unwrap_or_default();
    facts.process = begun.map(|begun| begun.end(root));
    Ok(facts)
}

/// The examination of a process, while its CPU time is sampled.
pub(super) struct Begun {
    process: Process,
    sampling: Option<Sampling>,
}

impl Begun {
    /// Begins it. The error says why nothing of the process can be seen.
    pub(super) fn with(root: &Root, pid: u32, sampled: Duration) -> Result<Begun, String> {
        let sampling = sampling::begin(pid, sampled);
        let process = process::look_aside(root, pid)?;
        Ok(Begun { process, sampling })
    }

    /// Waits for the samples.
    pub(super) fn end(mut self, root: &Root) -> Process {
        if let Some(sampling) = self.sampling {
            sampling::end(sampling, root, &mut self.process);
        }
        self.process
    }
}

/// Begins to compare the kernel's clock with the others that can be read, if there are any.
fn begin_comparison(root: &Root, probe: &Probe, clocksource: Option<&str>, rate: Duration) -> Option<Comparison> {
    let comparison = (root.is_host() && may_call(probe))
        .then(|| Comparison::begin(clocksource, !rate.is_zero()))
        .filter(|comparison| !comparison.is_empty());
    if comparison.is_none() && !rate.is_zero() {
        root.miss(
            "whether the clock runs at the right rate",
            "/dev/hpet, /dev/ptp*, /sys/class/rtc",
            &"no other clock can be read",
            "run it as root, outside of containers",
        );
    }
    comparison
}

fn machine(
    root: &Root,
    probe: &Probe,
    cpuinfo: Option<&str>,
    product: Option<String>,
    stand_in: Option<&'static str>,
) -> MachineFacts {
    let hypervisor = || {
        probe
            .host
            .hypervisor
            .clone()
            .or_else(|| host::hypervisor(root, product.as_deref()))
    };
    MachineFacts {
        cpu: probe.host.cpu.clone(),
        cpus: probe.host.ncpu,
        // CPUID describes the machine of the kernel below.
        hypervisor: stand_in.is_none().then(hypervisor).flatten(),
        stand_in: stand_in.map(Cow::from),
        vendor: cpuinfo.and_then(host::vendor),
        packages: host::packages(root),
        product,
    }
}

/// Looks for backward steps of the clocks that cannot be set. Leaves out those whose system call may kill.
fn backward_steps(probe: &Probe) -> Option<Monotonicity> {
    let can_be_read = |clock: &Clock| {
        let report = probe.clocks.iter().find(|report| report.clock == *clock);
        report.is_some_and(|report| report.measured.ns.is_some() && report.measured.syscall_ns.is_some())
    };
    let clocks: Vec<Clock> = Clock::NEVER_SET.into_iter().filter(can_be_read).collect();
    (counter::usable() && !clocks.is_empty()).then(|| monotonicity(&Functions::libc(), &clocks, READS))
}

/// Returns whether the rate can be measured. A seccomp filter may kill a process that makes a clock's system call;
/// probe has tried it in a child.
fn may_measure_rate(probe: &Probe) -> bool {
    let raw = probe.clocks.iter().find(|report| report.clock == Clock::MONOTONIC_RAW);
    counter::usable() && raw.is_some_and(|report| report.measured.ns.is_some())
}

/// Returns whether the system call of each clock may be made: PTP clocks are read by it.
fn may_call(probe: &Probe) -> bool {
    let raw = probe.clocks.iter().find(|report| report.clock == Clock::MONOTONIC_RAW);
    raw.is_some_and(|report| report.measured.syscall_ns.is_some())
}

/// Returns the cost of the cheapest system call. That is usually getcpu, which does almost nothing in the kernel.
fn cheapest_system_call(probe: &Probe) -> Option<f64> {
    let functions = probe.functions.iter().map(|report| &report.measured);
    let clocks = probe.clocks.iter().map(|report| &report.measured);
    functions
        .chain(clocks)
        .filter_map(|measured| measured.syscall_ns)
        .min_by(f64::total_cmp)
}

fn counter_facts(root: &Root, probe: &Probe, cpuinfo: Option<&str>, log: Option<&KernelLog>) -> CounterFacts {
    let flags = cpuinfo.map(host::flags);
    let mut stated = if root.is_host() { arch::stated() } else { Vec::new() };
    let mut add = |source: &str, by, hz| {
        let source = source.to_owned();
        stated.push(Stated { source, by, hz });
    };
    if let Some(log) = log {
        // The refined rate is logged after the detected one and is more precise.
        if let Some((by, hz)) = log.lines.iter().rev().find_map(|line| arch::rate_of_log_line(line)) {
            add(&log.source, by, hz);
        }
    }
    if let Some(kilohertz) = root.line(TSC_FREQ).and_then(|line| line.parse::<f64>().ok()) {
        add(TSC_FREQ, StatedBy::Kernel, kilohertz * 1e3);
    }
    let set = flags.as_ref().map(|(set, _)| set.as_slice()).unwrap_or_default();
    if let Some((source, hz)) = cpuinfo.and_then(|cpuinfo| arch::rate_of_cpuinfo(cpuinfo, set)) {
        add(source, StatedBy::KernelEarly, hz);
    }
    let (flags, flags_missing) = flags.map_or((None, Vec::new()), |(set, missing)| (Some(set), missing));
    let flags_missing = flags_missing.into_iter().map(Cow::from).collect();
    let evidence = if root.is_host() {
        Evidence::gather(TIMEOUTS)
    } else {
        Evidence::at_first_sight()
    };
    let trapped_cpus = match root.is_host() && evidence.is_readable {
        true => fastpath_evidence::trapped_cpus(),
        false => Vec::new(),
    };
    let is_apart = evidence.warp.as_ref().and_then(Warp::furthest_apart).is_some();
    CounterFacts {
        drifts: if is_apart {
            Drift::measure(TIMEOUTS, DRIFT_BASE)
        } else {
            Vec::new()
        },
        evidence,
        trapped_cpus,
        name: probe.host.counter.into(),
        read_ns: probe.host.counter_ns,
        flags,
        flags_missing,
        stated,
        ..CounterFacts::default()
    }
}

/// Reads the exact rate from a file that only some kernels have.
const TSC_FREQ: &str = "/sys/devices/system/cpu/cpu0/tsc_freq_khz";

#[cfg(test)]
mod tests {
    use super::super::{DoctorReport, Verdict, examine};
    use super::*;

    fn report(root: &Path, pid: Option<u32>) -> DoctorReport {
        let options = DoctorOptions {
            root,
            pid,
            ..DoctorOptions::host()
        };
        examine(&options).unwrap()
    }

    #[test]
    fn this_host_is_examined_with_the_same_verdict_as_the_probes() {
        let report = report(Path::new("/"), None);
        assert!(report.facts.clocks.len() == Clock::ALL.len() && !report.evidence.is_empty());
        let slow = !Probe::run().slow().is_empty();
        assert_eq!(report.verdict == Verdict::Slow, slow, "{}", report.summary);
        if let Some(rate) = &report.facts.counter.measured {
            assert!(rate.error_hz < rate.hz / 1000.0, "{rate:?}");
        }
    }

    #[test]
    fn this_very_process_can_be_asked_about() {
        let report = report(Path::new("/"), Some(std::process::id()));
        let process = report.facts.process.unwrap();
        assert_eq!(process.pid, std::process::id());
        assert_eq!(process.word_bits.map(u32::from), Some(usize::BITS));
    }

    #[test]
    fn a_bare_directory_for_a_host_costs_no_verdict_only_what_is_not_in_it() {
        let report = report(Path::new("/nonexistent"), None);
        assert_eq!(report.facts.clocksource.current, None);
        let missing: Vec<&str> = report.unseen.iter().map(|unseen| unseen.what.as_str()).collect();
        assert!(missing.len() >= 5, "{missing:?}");
        assert!(!report.facts.clocks.is_empty());
    }
}
