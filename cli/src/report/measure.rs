//! Measures this host.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fastpath_doctor::DoctorOptions;
use fastpath_measure::{CALLS_PER_SAMPLE, Clock, ClockKind, Functions, Probe, cost_samples};
use fastpath_report::Distribution;
use fastpath_report::data::{self, ClockCosts, Costs, Host, Missing, Part, Trace};
use fastpath_tools::trace::{Method, Observer, Whom};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{ours, output};

/// Samples of each clock: ten lie beyond p99.
const SAMPLES: u32 = 1000;
/// Places that are counted at once, the same as in `trace`.
const PLACES: u32 = 16_384;

/// Measures what can be measured in this time. Missing parts are reported with the reason.
pub fn this_host(trace_for: Duration) -> Result<Host, String> {
    let mut missing = Vec::new();
    let mut or_missing = |what: Part, why: String| missing.push(Missing { what, why });
    output::progress("examining this host");
    let probe = Probe::run();
    // One measurement is shown, not two that differ a little.
    let examined = fastpath_doctor::examine(&DoctorOptions {
        probe: Some(&probe),
        ..DoctorOptions::host()
    });
    let doctor = match examined {
        Ok(report) => Some(as_data::<_, data::Doctor>(&report)?),
        Err(why) => {
            or_missing(Part::Doctor, why);
            None
        }
    };
    let trace = match trace(trace_for) {
        Ok(trace) => Some(trace),
        Err(why) => {
            or_missing(Part::Trace, why);
            None
        }
    };
    output::progress("measuring each clock's costs, now and with fastpath");
    let ours = match ours::functions() {
        Ok(functions) => Some(functions),
        Err(why) => {
            or_missing(Part::Fastpath, why);
            None
        }
    };
    let costs = costs(&probe, ours);
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(Host {
        name: probe.host.name.clone(),
        file: None,
        measured_unix: since.ok().map(|since| since.as_secs()),
        probe: as_data(&probe)?,
        costs: Some(costs),
        doctor,
        trace,
        missing,
    })
}

/// Converts a result in the same way as a file of another host, so that a page shows both alike.
fn as_data<M: Serialize, T: DeserializeOwned>(measured: &M) -> Result<T, String> {
    let value = serde_json::to_value(measured).map_err(|error| error.to_string())?;
    fastpath_report::parse(value)
}

/// Measures the costs of clocks that a vDSO can answer, one by one and in turns, so that a disturbance affects both
/// paths.
fn costs(probe: &Probe, ours: Option<Functions>) -> Costs {
    let can_be_fast = |report: &&fastpath_measure::ClockReport| {
        report.clock.kind() != ClockKind::KernelOnly && report.measured.ns.is_some()
    };
    let clocks: Vec<Clock> = probe
        .clocks
        .iter()
        .filter(can_be_fast)
        .map(|report| report.clock)
        .collect();
    // The image leaves COARSE clocks to the kernel.
    let served = |clock: &Clock| ours.filter(|_| Clock::SERVED.contains(clock));
    let now = clocks.iter().map(|clock| (Functions::libc(), *clock));
    let with_fastpath = clocks.iter().filter_map(|clock| Some((served(clock)?, *clock)));
    let reads: Vec<(Functions, Clock)> = now.chain(with_fastpath).collect();
    let mut spreads = cost_samples(&reads, SAMPLES)
        .into_iter()
        .map(Distribution::from_samples);
    let now: Vec<Option<Distribution>> = spreads.by_ref().take(clocks.len()).collect();
    let of_clock = |(clock, now): (&Clock, Option<Distribution>)| {
        let fastpath = served(clock).and_then(|_| spreads.next().flatten());
        Some(ClockCosts {
            clock: clock.name().to_owned(),
            now: now?,
            fastpath,
        })
    };
    Costs {
        calls_per_sample: CALLS_PER_SAMPLE,
        clocks: clocks.iter().zip(now).filter_map(of_clock).collect(),
    }
}

fn trace(duration: Duration) -> Result<Trace, String> {
    if duration.is_zero() {
        return Err("`--trace 0` was asked for".to_owned());
    }
    output::progress(format_args!(
        "counting system calls that read clocks for {:.1} s",
        duration.as_secs_f64()
    ));
    let outcome = fastpath_tools::trace::run(
        &fastpath_tools::trace::TraceOptions {
            whom: Whom::All,
            method: Some(Method::Bpf),
            stacks: false,
            sites: PLACES,
            duration: Some(duration),
        },
        &mut Unobserved,
    )?;
    let mut trace: Trace = as_data(&outcome.report)?;
    trace.shorten();
    Ok(trace)
}

/// A trace that ends by itself and shows nothing.
struct Unobserved;

impl Observer for Unobserved {
    fn is_to_stop(&self) -> bool {
        false
    }

    fn note(&mut self, _text: String) {}

    fn show(&mut self, _report: fastpath_tools::trace::TraceReport) {}

    fn is_looking(&self) -> bool {
        false
    }
}
