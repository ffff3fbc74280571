//! Compares the paths: the same calls, in one run, in interleaved rounds.

mod row;
mod subject;

pub use row::{Ratios, Row};

use crate::cost::{self, Effort};
use crate::functions::{Functions, VdsoCall};
use crate::host::MeasuredHost;
use crate::path;
use crate::timer::Timer;
use crate::vdso::Vdso;
use fastpath_page::clocks::Clock;
use serde::Serialize;

/// The extent of a measurement.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// The clocks for which `clock_gettime` is compared.
    pub clocks: Vec<Clock>,
    /// Number of rounds per call; each round measures every path once.
    pub rounds: u32,
    /// Number of calls of a path in one round; an eighth of it for the system call, which is more expensive.
    pub batch: u32,
}

impl Default for BenchOptions {
    /// Returns options that take about two seconds.
    fn default() -> BenchOptions {
        let coarse = [Clock::REALTIME_COARSE, Clock::MONOTONIC_COARSE];
        BenchOptions {
            clocks: Clock::SERVED.iter().copied().chain(coarse).collect(),
            rounds: 301,
            batch: 2000,
        }
    }
}

/// The output of `fastpath bench`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bench {
    /// Number of rounds per call.
    pub rounds: u32,
    /// Number of calls of a path in one round.
    pub batch: u32,
    /// Each call by every path.
    pub rows: Vec<Row>,
    /// The host on which this was measured.
    pub host: MeasuredHost,
}

/// Compares fastpath's functions, if given, with the kernel's vDSO, the system calls and the bare counter.
/// `progress` is called between measurements, after each round, with the number of rounds measured so far and their
/// total.
pub fn run(ours: Option<&Functions>, options: &BenchOptions, progress: &mut dyn FnMut(u64, u64)) -> Bench {
    let timer = Timer::start();
    let kernel = Vdso::of_kernel();
    let clocks = options.clocks.iter().map(|clock| VdsoCall::ClockGettime(*clock));
    let calls: Vec<VdsoCall> = clocks.chain(VdsoCall::FUNCTIONS.iter().copied()).collect();
    // A path that is missing, or that a filter forbids, is left out. As in the probe, this is tested in a child.
    let evidence = path::establish(&calls);
    let kernel_functions = kernel.as_ref().and_then(Vdso::functions);
    let is_supported = |(_, evidence): &(&VdsoCall, &path::PathEvidence)| !evidence.is_unsupported();
    let rounds = u64::from(options.rounds);
    let all = calls.iter().zip(&evidence).filter(is_supported).count() as u64 * rounds;
    let mut done = 0;
    let mut is_done = || {
        done += 1;
        progress(done, all);
    };
    let rows: Vec<row::Ticks> = calls
        .iter()
        .zip(&evidence)
        .filter(is_supported)
        .map(|(call, evidence)| {
            let works = evidence.syscall_works();
            let raw = works.then(Functions::syscalls);
            // Both may fall back to the system call.
            let ours = ours.filter(|_| works);
            let stays_outside = matches!(evidence.enters_kernel(), Ok((false, _)));
            let kernel = kernel_functions.filter(|_| works || stays_outside);
            row::measure(
                &timer,
                *call,
                &subject::subjects(*call, ours, kernel, raw),
                options,
                &mut is_done,
            )
        })
        .collect();
    let counter_ticks = cost::ticks_per_read(&timer, Effort::PROBE);
    let ns_per_tick = timer.ns_per_tick();
    let host = MeasuredHost::look(
        counter_ticks.map(|ticks| ticks * ns_per_tick),
        Vdso::of_auxv().as_ref().map(Vdso::facts),
    );
    let rows = rows.into_iter().map(|row| row.in_ns(ns_per_tick)).collect();
    Bench {
        rounds: options.rounds,
        batch: options.batch,
        rows,
        host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick() -> BenchOptions {
        BenchOptions {
            clocks: vec![Clock::MONOTONIC, Clock::TAI],
            rounds: 9,
            batch: 200,
        }
    }

    #[test]
    fn a_path_measured_against_itself_is_as_fast_as_itself() {
        let Some(kernel) = Vdso::of_kernel().and_then(|vdso| vdso.functions()) else {
            crate::skip::skip("this process has no vDSO of the kernel's");
            return;
        };
        // One quiet run of five is enough: the arithmetic is tested, not this machine.
        let ratio = |_| {
            run(Some(&kernel), &quick(), &mut |_, _| {}).rows[0]
                .ratios
                .ours_to_kernel_vdso
                .unwrap()
                .median
        };
        let nearest = (0..5)
            .map(ratio)
            .min_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs()))
            .unwrap();
        assert!((0.9..1.1).contains(&nearest), "{nearest}");
    }

    #[test]
    fn every_call_is_compared_with_its_system_call() {
        let mut seen = Vec::new();
        let bench = run(None, &quick(), &mut |done, all| seen.push((done, all)));
        let all = bench.rows.len() as u64 * u64::from(bench.rounds);
        assert_eq!(seen, (1..=all).map(|done| (done, all)).collect::<Vec<_>>());
        let calls: Vec<String> = bench.rows.iter().map(|row| row.call.to_string()).collect();
        let functions = ["gettimeofday", "time", "getcpu", "clock_getres MONOTONIC"];
        assert_eq!(
            calls,
            [["clock_gettime MONOTONIC", "clock_gettime TAI"].as_slice(), &functions].concat()
        );
        for row in &bench.rows {
            assert!(row.syscall_ns.unwrap().median > 20.0, "{row:?}");
            assert!(row.ours_ns.is_none() && row.ratios.syscall_to_ours.is_none());
        }
    }

    #[test]
    fn the_json_names_each_path() {
        let libc = Functions::libc();
        let bench = serde_json::to_value(run(Some(&libc), &quick(), &mut |_, _| {})).unwrap();
        let row = &bench["rows"][0];
        assert_eq!(row["call"], "clock_gettime MONOTONIC");
        for key in ["counter_ns", "ours_ns", "kernel_vdso_ns", "syscall_ns"] {
            assert!(row.get(key).is_some(), "{key}: {row}");
        }
        for field in ["median", "mean", "stddev", "min", "max"] {
            assert!(row["ours_ns"][field].as_f64().unwrap() >= 0.0, "{field}: {row}");
        }
        assert!(row["ours_ns"]["outliers"].is_u64());
        assert!(row["ratios"]["syscall_to_ours"]["p5"].as_f64().unwrap() > 0.0);
    }
}
