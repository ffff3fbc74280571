//! Finding everything out, in an order that leaves the rate's measurement a long base without waiting for it.

use super::facts::{Counter, Facts, Kernel, KernelLog, Machine, Process, Stated, StatedBy};
use super::root::Root;
use super::{Options, arch, host, kernel_log, process, rate};
use fastpath_evidence::{Evidence, Timeouts};
use fastpath_measure::clocks::Clock;
use fastpath_measure::counter;
use fastpath_measure::probe::{ClockReport, Probe};
use fastpath_measure::vdso::Vdso;
use std::time::{Duration, Instant};

/// More than `run` has at a start: whoever asks doctor waits a second, on a busy machine too.
const TIMEOUTS: Timeouts = Timeouts {
    in_all: Duration::from_millis(350),
    for_a_pair: Duration::from_millis(175),
    for_an_answer: Duration::from_millis(60),
};
/// The rate is measured over this at least: brackets of 100 ns, as through a vDSO, then make an error of 0.7 ppm; of 4 us, as
/// through hpet, one of 27.
const RATE_BASE: Duration = Duration::from_millis(150);

pub(super) fn gather(root: &Root, options: &Options) -> Result<Facts, String> {
    // What may turn out not to be there comes first.
    let asked = options
        .pid
        .map(|pid| process::look(root, &pid.to_string()))
        .transpose()?;
    let here = process::look(root, "self").unwrap_or_else(|why| {
        root.miss(
            "this process's own state",
            "/proc/self",
            &why,
            "look at it where /proc is mounted",
        );
        process::unseen_self()
    });
    let probe = Probe::run();
    let started = Instant::now();
    let rate_start = may_measure_rate(&probe).then(rate::Start::now).flatten();

    let cpuinfo = root.expect("the CPU's flags", "/proc/cpuinfo", "look at it where /proc is mounted");
    let product = host::product(root);
    let log = kernel_log::read(root);
    let mut counter = counter_facts(root, &probe, cpuinfo.as_deref(), log.as_ref());
    counter.evidence = if root.is_host() {
        Evidence::gather(TIMEOUTS)
    } else {
        Evidence::at_first_sight()
    };
    let stand_in = host::stand_in(root, cpuinfo.as_deref(), &probe.host.kernel);
    if stand_in.is_some() {
        // User Mode Linux computes bogomips by a delay loop of its own: it says nothing about the counter.
        counter.stated.clear();
    }
    let mut facts = Facts {
        kernel: Kernel {
            release: probe.host.kernel.clone(),
            machine: probe.host.machine.clone(),
            parameters: host::parameters(root),
            // SAFETY: getauxval only looks at what the kernel gave this process.
            page_size: unsafe { libc::getauxval(libc::AT_PAGESZ) },
        },
        machine: Machine {
            cpu: probe.host.cpu.clone(),
            cpus: probe.host.ncpu,
            // CPUID is the other kernel's machine's.
            hypervisor: match stand_in {
                Some(_) => None,
                None => probe
                    .host
                    .hypervisor
                    .clone()
                    .or_else(|| host::hypervisor(root, product.as_deref())),
            },
            stand_in,
            product,
        },
        clocksource: host::clocksource(root),
        log,
        counter,
        syscall_ns: cheapest_system_call(&probe),
        vdso: host::kernel_vdso(Vdso::of_kernel().as_ref()),
        mitigations: host::mitigations(root),
        clocks: probe.clocks,
        functions: probe.functions,
        vsyscall: probe.vsyscall,
        here,
        process_clocks: asked.as_ref().and_then(clocks_of_its_isa),
        process: asked,
    };
    facts.counter.measured = rate_start.and_then(|start| {
        fastpath_evidence::pause(RATE_BASE.saturating_sub(started.elapsed()));
        start.rate()
    });
    Ok(facts)
}

/// A program of another ISA has another vDSO, which can be left out of a kernel, or be slower.
fn clocks_of_its_isa(process: &Process) -> Option<Vec<ClockReport>> {
    let isa = process.isa.as_deref()?;
    let is_other = isa != std::env::consts::ARCH && Probe::isas().contains(&isa);
    is_other
        .then(|| Probe::of(isa).ok())
        .flatten()
        .map(|probe| probe.clocks)
}

/// What enters the kernel for a clock may be answered with death by a filter; probe found that out in a child.
fn may_measure_rate(probe: &Probe) -> bool {
    let raw = probe.clocks.iter().find(|report| report.clock == Clock::MONOTONIC_RAW);
    counter::usable() && raw.is_some_and(|report| report.measured.ns.is_some())
}

/// getcpu does next to nothing once it is in the kernel.
fn cheapest_system_call(probe: &Probe) -> Option<f64> {
    let functions = probe.functions.iter().map(|report| &report.measured);
    let clocks = probe.clocks.iter().map(|report| &report.measured);
    functions
        .chain(clocks)
        .filter_map(|measured| measured.syscall_ns)
        .min_by(f64::total_cmp)
}

fn counter_facts(root: &Root, probe: &Probe, cpuinfo: Option<&str>, log: Option<&KernelLog>) -> Counter {
    let flags = cpuinfo.map(host::flags);
    let mut stated = if root.is_host() { arch::stated() } else { Vec::new() };
    let mut by_kernel = |source: &str, hz| {
        stated.push(Stated {
            source: source.to_owned(),
            by: StatedBy::Kernel,
            hz,
        });
    };
    if let Some(log) = log {
        // Refined later than detected, and better.
        if let Some(hz) = log.lines.iter().rev().find_map(|line| arch::rate_of_log_line(line)) {
            by_kernel(&log.source, hz);
        }
    }
    if let Some(kilohertz) = root.line(TSC_FREQ).and_then(|line| line.parse::<f64>().ok()) {
        by_kernel(TSC_FREQ, kilohertz * 1e3);
    }
    let set = flags.as_ref().map(|(set, _)| set.as_slice()).unwrap_or_default();
    if let Some((source, hz)) = cpuinfo.and_then(|cpuinfo| arch::rate_of_cpuinfo(cpuinfo, set)) {
        by_kernel(source, hz);
    }
    let (flags, flags_missing) = flags.map_or((None, Vec::new()), |(set, missing)| (Some(set), missing));
    Counter {
        name: probe.host.counter,
        read_ns: probe.host.counter_ns,
        flags,
        flags_missing,
        stated,
        ..Counter::default()
    }
}

/// Not in every kernel; where it is, it is exact.
const TSC_FREQ: &str = "/sys/devices/system/cpu/cpu0/tsc_freq_khz";

#[cfg(test)]
mod tests {
    use super::super::{Report, Verdict, examine};
    use super::*;
    use std::path::Path;

    fn report(root: &Path, pid: Option<u32>) -> Report {
        examine(&Options { root, pid }).unwrap()
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
