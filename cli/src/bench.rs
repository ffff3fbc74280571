//! `fastpath bench`: the paths side by side in one run.

use std::time::Duration;

use comfy_table::{Cell, CellAlignment};
use fastpath_measure::bench::{self, Bench};
use fastpath_measure::{Accuracy, Clock, CostSummary, Limit, Monotonicity, Reference, Spread, accuracy, monotonicity};
use serde::Serialize;

use crate::args;
use crate::document;
use crate::ours;
use crate::output::{self, nanoseconds, note};
use crate::progress::{self, Steps};

/// Time between two progress messages while work keeps all CPUs busy.
const SECOND: Duration = Duration::from_secs(1);

#[derive(Serialize, schemars::JsonSchema)]
pub struct BenchReport {
    #[serde(flatten)]
    bench: Bench,
    #[serde(skip_serializing_if = "Option::is_none")]
    accuracy: Option<Accuracy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    monotonicity: Option<Monotonicity>,
}

/// Runs the command; returns its exit status.
pub fn run(options: &args::Bench) -> i32 {
    let ours = match ours::functions() {
        Ok(functions) => Some(functions),
        Err(why) => {
            note(format_args!("fastpath's vDSO is not measured: {why}"));
            None
        }
    };
    let defaults = bench::BenchOptions::default();
    let rounds = options.rounds.unwrap_or(defaults.rounds);
    let mut steps = Steps::begin();
    let bench = bench::run(
        ours.as_ref(),
        &bench::BenchOptions { rounds, ..defaults },
        &mut |done, all| {
            steps.show(done, all);
        },
    );
    steps.end();
    let seconds = |seconds: u64| Duration::from_secs(seconds);
    let clocks: Vec<Clock> = Clock::SERVED.to_vec();
    let accuracy = ours.as_ref().filter(|_| options.accuracy > 0).map(|ours| {
        let message = || format!("comparing with the kernel's clocks for {} s", options.accuracy);
        progress::watched(SECOND, message, || {
            accuracy(ours, reference(&bench), &clocks, seconds(options.accuracy))
        })
    });
    let monotonicity = ours.as_ref().filter(|_| options.reads > 0).map(|ours| {
        let message = || format!("reading {} times, looking for backward steps", options.reads);
        let limit = Limit {
            duration: seconds(3600),
            reads: options.reads,
        };
        progress::watched(SECOND, message, || monotonicity(ours, &clocks, limit))
    });
    let report = BenchReport {
        bench,
        accuracy,
        monotonicity,
    };
    let status = if options.json {
        document::print("bench", &report)
    } else {
        output::print(text(&report))
    };
    let backward = report.monotonicity.as_ref().map_or(0, Monotonicity::backward);
    if backward > 0 { 1 } else { status }
}

/// Returns the tightest bracket that this host offers.
fn reference(bench: &Bench) -> Reference {
    match &bench.host.vdso {
        Some(facts) if !facts.is_fastpath => Reference::KernelVdso,
        _ => Reference::Syscall,
    }
}

fn text(report: &BenchReport) -> String {
    let bench = &report.bench;
    let mut table = output::table([
        "call",
        "counter",
        "ours",
        "vDSO",
        "syscall",
        "of vDSO",
        "of counter",
        "gain",
    ]);
    for row in &bench.rows {
        let cost = |summary: &Option<CostSummary>| right(nanoseconds(summary.as_ref().map(|s| s.median)));
        let ratio =
            |spread: &Option<Spread>| right(spread.as_ref().map_or("-".into(), |s| format!("{:.2}x", s.median)));
        table.add_row(vec![
            Cell::new(short(&row.call.to_string())),
            cost(&row.counter_ns),
            cost(&row.ours_ns),
            cost(&row.kernel_vdso_ns),
            cost(&row.syscall_ns),
            ratio(&row.ratios.ours_to_kernel_vdso),
            ratio(&row.ratios.ours_to_counter),
            ratio(&row.ratios.syscall_to_ours),
        ]);
    }
    let mut text = format!(
        "Nanoseconds a call, medians of {} interleaved rounds. vDSO: the kernel's.\n\
         Of vDSO, of counter: ours against these. Gain: the system call against ours.\n\n{}\n",
        bench.rounds,
        table.trim_fmt()
    );
    text += &spread_text(bench);
    if let Some(accuracy) = &report.accuracy {
        text += &accuracy_text(accuracy);
    }
    if let Some(monotonicity) = &report.monotonicity {
        text += &format!(
            "\nBackward steps: {} in {} reads on {}\n",
            monotonicity.backward(),
            monotonicity.reads,
            threads(monotonicity.threads)
        );
    }
    text
}

/// Returns the paths of a row, each with its name.
fn paths(row: &bench::Row) -> [(&'static str, &Option<CostSummary>); 4] {
    [
        ("counter", &row.counter_ns),
        ("ours", &row.ours_ns),
        ("vDSO", &row.kernel_vdso_ns),
        ("syscall", &row.syscall_ns),
    ]
}

/// Returns a table of how the rounds differ.
fn spread_text(bench: &Bench) -> String {
    let mut table = output::table(["call", "counter", "ours", "vDSO", "syscall"]);
    for row in &bench.rows {
        let cells = paths(row).map(|(_, summary)| right(summary.as_ref().map_or("-".into(), spread)));
        table.add_row(std::iter::once(Cell::new(short(&row.call.to_string()))).chain(cells));
    }
    let mut text = format!(
        "\nMean ± standard deviation of the rounds; below it minimum and maximum.\n\n{}\n",
        table.trim_fmt()
    );
    let each = bench.rows.iter().flat_map(|row| {
        let outliers =
            move |(path, summary): (_, &Option<CostSummary>)| summary.map(|summary| (row, path, summary.outliers));
        paths(row).into_iter().filter_map(outliers)
    });
    let (measured, outliers) = each
        .clone()
        .fold((0, 0), |(count, sum), (_, _, outliers)| (count + 1, sum + outliers));
    if let Some((row, path, most)) = each.max_by_key(|(_, _, outliers)| *outliers).filter(|_| outliers > 0) {
        let call = row.call.to_string();
        text += "\n";
        text += &output::wrapped(
            "",
            &format!(
                "Outliers: {outliers} of {} rounds; most of them, {most} of {}, of {} by {path}. Something else ran meanwhile, or the CPU \
                 changed its speed: the medians above are valid, means and deviations are not.",
                measured * bench.rounds as usize,
                bench.rounds,
                short(&call)
            ),
        );
    }
    text
}

/// Returns `18.2 ± 0.3`, and below it `17.9..21.0`.
fn spread(summary: &CostSummary) -> String {
    let short = |ns: f64| {
        if ns < 99.95 {
            format!("{ns:.1}")
        } else {
            format!("{ns:.0}")
        }
    };
    let deviation = summary.stddev.map_or("-".to_owned(), short);
    format!(
        "{} ± {deviation}\n{}..{}",
        short(summary.mean),
        short(summary.min),
        short(summary.max)
    )
}

/// Shortens a call to its clock, or to its function if that is called for one clock only.
fn short(call: &str) -> &str {
    match call.split_once(' ') {
        Some(("clock_gettime", clock)) => clock,
        Some((function, _)) => function,
        None => call,
    }
}

fn accuracy_text(accuracy: &Accuracy) -> String {
    let heads = [
        "clock",
        "samples",
        "outside p99.9",
        "outside max",
        "middle p50",
        "middle p99.9",
        "middle max",
        "bracket",
    ];
    let mut table = output::table(heads);
    for clock in &accuracy.clocks {
        let ns = |value: u64| right(format!("{value}"));
        table.add_row(vec![
            Cell::new(clock.clock.name()),
            ns(clock.outside.samples),
            ns(clock.outside.p99_9_ns),
            ns(clock.outside.max_ns),
            ns(clock.from_middle.p50_ns),
            ns(clock.from_middle.p99_9_ns),
            ns(clock.from_middle.max_ns),
            right(format!("{:.0}", clock.bracket_ns)),
        ]);
    }
    format!(
        "\nError in ns against the kernel's clock, read by {} before and after, {:.0} s on {}\n\n{table}\n",
        match accuracy.reference {
            Reference::KernelVdso => "its vDSO",
            Reference::Syscall => "system call",
        },
        accuracy.seconds,
        threads(accuracy.threads)
    )
}

fn threads(count: usize) -> String {
    format!("{count} thread{}", if count == 1 { "" } else { "s" })
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_of_every_call_is_shown_in_80_columns_with_a_note_on_outliers() {
        let options = bench::BenchOptions {
            rounds: 5,
            batch: 50,
            ..bench::BenchOptions::default()
        };
        let mut bench = bench::run(None, &options, &mut |_, _| {});
        let summary = CostSummary {
            p5: 158.0,
            median: 160.0,
            p95: 170.0,
            mean: 2163.44,
            stddev: Some(1234.56),
            min: 99.94,
            max: 123_456.7,
            outliers: 0,
        };
        for row in &mut bench.rows {
            for path in [
                &mut row.counter_ns,
                &mut row.ours_ns,
                &mut row.kernel_vdso_ns,
                &mut row.syscall_ns,
            ] {
                *path = Some(summary);
            }
        }
        let text = spread_text(&bench);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let rows = bench.rows.len();
        assert_eq!(text.matches("2163 ± 1235").count(), 4 * rows, "{text}");
        assert_eq!(text.matches("99.9..123457").count(), 4 * rows, "{text}");
        assert!(!text.contains("Outliers"), "{text}");
        bench.rows[1].syscall_ns = Some(CostSummary { outliers: 3, ..summary });
        bench.rows[0].ours_ns = Some(CostSummary { outliers: 1, ..summary });
        let text = spread_text(&bench);
        let note = format!(
            "Outliers: 4 of {} rounds; most of them, 3 of 5, of MONOTONIC by syscall.",
            4 * rows * 5
        );
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&note), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
