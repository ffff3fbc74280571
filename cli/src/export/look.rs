//! The exported data: repeated looks at the host, and their sums.

use std::path::Path as File;
use std::time::{Duration, Instant};

use fastpath_doctor::{DoctorOptions, DoctorReport, Verdict, Walks};
use fastpath_measure::{CallVerdict, Clock, Functions, Histogram, Path, Probe, cost_samples};
use fastpath_protocol::Client;
use fastpath_publish::evidence::Trust;

use super::metrics::Family;
use super::pages::{Refreshes, publishers};
use crate::unserved;
use crate::version;

/// Time for which doctor's findings are kept.
const DOCTOR: Duration = Duration::from_secs(600);
/// Cost samples of each clock in one look.
const SAMPLES: u32 = 32;
/// Upper bounds in nanoseconds, from a counter read on a fast CPU to a system call under a tracer.
const BOUNDS_NS: [u64; 13] = [10, 15, 20, 25, 30, 40, 50, 75, 100, 200, 500, 1000, 5000];

/// Costs seen so far.
struct Costs {
    clock: Clock,
    histogram: Histogram,
    sum_ns: f64,
}

/// Data seen since the start.
pub struct Looks {
    costs: Vec<Costs>,
    doctor: Option<(Instant, DoctorReport)>,
    refreshes: Refreshes,
    walks: Walks,
    looks: u64,
}

impl Looks {
    pub fn new() -> Looks {
        let costs = |clock: &Clock| Costs {
            clock: *clock,
            histogram: Histogram::default(),
            sum_ns: 0.0,
        };
        Looks {
            costs: Clock::SERVED.iter().map(costs).collect(),
            doctor: None,
            refreshes: Refreshes::default(),
            walks: Walks::default(),
            looks: 0,
        }
    }

    /// Looks once more, and returns all that is known.
    pub fn look(&mut self) -> Vec<Family> {
        let begun = Instant::now();
        let probe = Probe::run();
        self.examine(&probe);
        self.measure_costs(&probe);
        self.looks += 1;
        let (served, requests) = self.walks.served(File::new("/"), unserved::of_tree);
        let mut families = clocks(&probe);
        families.push(self.costs());
        families.extend(host(&probe));
        families.extend(
            self.doctor
                .as_ref()
                .map(|(_, report)| counter(report))
                .unwrap_or_default(),
        );
        families.extend(publishers(&served, self.refreshes.add(&served.pages)));
        families.push(unserved_requests(requests));
        families.push(interventions());
        families.extend(of_ourselves(self.looks, begun.elapsed()));
        families
    }

    fn examine(&mut self, probe: &Probe) {
        if self.doctor.as_ref().is_some_and(|(when, _)| when.elapsed() < DOCTOR) {
            return;
        }
        let report = fastpath_doctor::examine(&DoctorOptions {
            probe: Some(probe),
            ..DoctorOptions::host()
        });
        self.doctor = report.ok().map(|report| (Instant::now(), report));
    }

    fn measure_costs(&mut self, probe: &Probe) {
        // A clock that could not be measured there cannot be called.
        let can_be_called = |clock: &Clock| {
            let report = probe.clocks.iter().find(|report| report.clock == *clock);
            report.is_some_and(|report| report.measured.ns.is_some())
        };
        let clocks: Vec<Clock> = Clock::SERVED.iter().copied().filter(can_be_called).collect();
        let reads: Vec<_> = clocks.iter().map(|clock| (Functions::libc(), *clock)).collect();
        for (clock, samples) in clocks.iter().zip(cost_samples(&reads, SAMPLES)) {
            let Some(costs) = self.costs.iter_mut().find(|costs| costs.clock == *clock) else {
                continue;
            };
            for ns in samples {
                costs.sum_ns += ns;
                // A cost of 10.2 ns is not at most 10 ns.
                costs.histogram.add(ns.ceil() as u64);
            }
        }
    }

    fn costs(&self) -> Family {
        let mut family = Family::histogram(
            "fastpath_clock_gettime_path_seconds",
            "Cost of clock_gettime by libc, as a mean of 16 calls in a row.",
        );
        for costs in &self.costs {
            let samples = costs.histogram.samples();
            if samples == 0 {
                continue;
            }
            let buckets = BOUNDS_NS.map(|ns| (ns as f64 / 1e9, costs.histogram.at_most(ns)));
            let labels = [("clock", costs.clock.name())];
            family.add_histogram(&labels, &buckets, costs.sum_ns / 1e9, samples);
        }
        family
    }
}

fn flag(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}

fn clocks(probe: &Probe) -> Vec<Family> {
    let mut paths = Family::gauge(
        "fastpath_clock_path",
        "1 for the path that clock_gettime takes, else 0.",
    );
    let mut slow = Family::gauge(
        "fastpath_clock_slow",
        "1 if reading the clock costs more than by a vDSO, which could answer it.",
    );
    let mut system_call = Family::gauge(
        "fastpath_clock_system_call_seconds",
        "Cost of the clock by system call.",
    );
    const PATHS: [(Path, &str); 4] = [
        (Path::Vdso, "vdso"),
        (Path::Fastpath, "fastpath"),
        (Path::Syscall, "syscall"),
        (Path::Unknown, "unknown"),
    ];
    for report in probe
        .clocks
        .iter()
        .filter(|report| report.measured.path != Path::Unsupported)
    {
        let clock = report.clock.name();
        for (path, name) in PATHS {
            paths.add(&[("clock", clock), ("path", name)], flag(report.measured.path == path));
        }
        slow.add(&[("clock", clock)], flag(report.measured.verdict == CallVerdict::Slow));
        if let Some(ns) = report.measured.syscall_ns {
            system_call.add(&[("clock", clock)], ns / 1e9);
        }
    }
    vec![paths, slow, system_call]
}

fn host(probe: &Probe) -> Vec<Family> {
    let mut clocksource = Family::info("fastpath_clocksource", "The kernel's clocksource.");
    let name = probe.host.clocksource.as_deref().unwrap_or("unknown");
    clocksource.add(&[("clocksource", name), ("kernel", &probe.host.kernel)], 1.0);
    let counter = Family::gauge(
        "fastpath_tsc_read_seconds",
        "Cost of an ordered read of the CPU's counter.",
    );
    vec![clocksource, counter.with(probe.host.counter_ns.map(|ns| ns / 1e9))]
}

fn counter(report: &DoctorReport) -> Vec<Family> {
    let mut health = Family::gauge(
        "fastpath_doctor_verdict",
        "1 for doctor's verdict on this host, else 0.",
    );
    for (verdict, name) in [
        (Verdict::Healthy, "healthy"),
        (Verdict::Slow, "slow"),
        (Verdict::Wrong, "wrong"),
        (Verdict::Unknown, "unknown"),
    ] {
        health.add(&[("verdict", name)], flag(report.verdict == verdict));
    }
    let facts = &report.facts.counter;
    let trusted = Family::gauge("fastpath_tsc_trusted", "1 if fastpath run would use the CPU's counter.");
    let trusted = trusted.with(flag(facts.evidence.verdict(Trust::Invariant).is_ok()));
    let apart = Family::gauge(
        "fastpath_tsc_warped_pairs",
        "Pairs of CPUs whose counters certainly differ.",
    );
    let within = Family::gauge(
        "fastpath_tsc_warp_bound_cycles",
        "Upper bound of the difference between any two compared CPUs' counters.",
    );
    // Without a compared pair, none is known not to differ.
    let warp = facts.evidence.warp.as_ref();
    let compared = warp.and_then(|warp| Some((warp, warp.within_cycles()?)));
    let are_apart = compared.map(|(warp, _)| warp.pairs.iter().filter(|pair| pair.apart_cycles() > 0).count() as f64);
    let apart = apart.with(are_apart);
    let within = within.with(compared.map(|(_, cycles)| cycles as f64));
    let mut rate = Family::gauge(
        "fastpath_clock_rate_error_ppm",
        "How much faster the kernel's clock runs than another clock of the machine.",
    );
    let mut bound = Family::gauge(
        "fastpath_clock_rate_error_bound_ppm",
        "Largest such value, up or down, that is no fault.",
    );
    for each in &report.facts.rates {
        let labels = [("clock", each.clock.name()), ("against", &*each.against)];
        rate.add(&labels, each.ppm);
        bound.add(&labels, each.bound_ppm);
    }
    vec![health, trusted, apart, within, rate, bound]
}

fn unserved_requests(of_trees: Vec<Option<unserved::OfTree>>) -> Family {
    let mut family = Family::gauge(
        "fastpath_unserved_requests",
        "Requests that were not served, in trees of processes that run, by reason.",
    );
    for (reason, count) in unserved::totals(of_trees) {
        family.add(&[("reason", reason)], count as f64);
    }
    family
}

/// Returns the counts of the host's daemon; none if there is no daemon.
fn interventions() -> Family {
    let mut family = Family::counter(
        "fastpath_interventions",
        "Changes of processes, and refusals, by fastpathd, by what was done and the result.",
    );
    let status = Client::connect().and_then(|client| client.state());
    for each in status.iter().flat_map(|status| &status.interventions) {
        let labels = [("what", &*each.what), ("result", &*each.result)];
        family.add(&labels, each.count as f64);
    }
    family
}

fn of_ourselves(looks: u64, took: Duration) -> Vec<Family> {
    let mut build = Family::info("fastpath_build", "The version of this fastpath.");
    let commit = version::COMMIT.unwrap_or("unknown");
    build.add(&[("version", env!("CARGO_PKG_VERSION")), ("commit", commit)], 1.0);
    vec![
        build,
        Family::counter("fastpath_export_looks", "Number of looks at this host.").with(looks as f64),
        Family::gauge("fastpath_export_look_seconds", "Duration of the last look.").with(took.as_secs_f64()),
        Family::counter(
            "fastpath_export_cpu_seconds",
            "CPU time of the exporter, children included.",
        )
        .with(cpu_seconds(libc::RUSAGE_SELF) + cpu_seconds(libc::RUSAGE_CHILDREN)),
    ]
}

fn cpu_seconds(who: libc::c_int) -> f64 {
    // SAFETY: all-zero bytes are a valid rusage, and getrusage writes one.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
