//! `fastpath bench`: the paths side by side in one run.

use std::time::Duration;

use comfy_table::{Cell, CellAlignment};
use fastpath_observe::bench::{self, Bench};
use fastpath_observe::{Accuracy, Clock, Limit, Monotonicity, Reference, Spread, accuracy, monotonicity};
use serde::Serialize;

use crate::args;
use crate::document;
use crate::ours;
use crate::output::{self, nanoseconds, note};

#[derive(Serialize, schemars::JsonSchema)]
pub struct Report {
    #[serde(flatten)]
    bench: Bench,
    #[serde(skip_serializing_if = "Option::is_none")]
    accuracy: Option<Accuracy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    monotonicity: Option<Monotonicity>,
}

/// Runs the command; its exit status.
pub fn run(options: &args::Bench) -> i32 {
    let ours = match ours::functions() {
        Ok(functions) => Some(functions),
        Err(why) => {
            note(format_args!("our vDSO is left out: {why}"));
            None
        }
    };
    let defaults = bench::Options::default();
    let rounds = options.rounds.unwrap_or(defaults.rounds);
    let bench = bench::run(ours.as_ref(), &bench::Options { rounds, ..defaults });
    let seconds = |seconds: u64| Duration::from_secs(seconds);
    let clocks: Vec<Clock> = Clock::SERVED.to_vec();
    let accuracy = ours.as_ref().filter(|_| options.accuracy > 0).map(|ours| {
        output::progress(format_args!(
            "comparing with the kernel's clocks for {} s",
            options.accuracy
        ));
        accuracy(ours, reference(&bench), &clocks, seconds(options.accuracy))
    });
    let monotonicity = ours.as_ref().filter(|_| options.reads > 0).map(|ours| {
        output::progress(format_args!(
            "reading {} times, looking for backward steps",
            options.reads
        ));
        monotonicity(
            ours,
            &clocks,
            Limit {
                duration: seconds(3600),
                reads: options.reads,
            },
        )
    });
    let report = Report {
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

/// The tightest bracket that this host offers.
fn reference(bench: &Bench) -> Reference {
    match &bench.host.vdso {
        Some(facts) if !facts.is_fastpath => Reference::KernelVdso,
        _ => Reference::Syscall,
    }
}

fn text(report: &Report) -> String {
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
        let cost = |spread: &Option<Spread>| right(nanoseconds(spread.as_ref().map(|s| s.median)));
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
    if let Some(row) = bench.rows.iter().find(|row| row.quanta_instant_ns.is_some()) {
        let quanta = nanoseconds(row.quanta_instant_ns.as_ref().map(|s| s.median));
        text += &format!(
            "\nThe crate quanta (Instant::now): {quanta} ns; its counter read is not ordered with\nthe program's memory.\n"
        );
    }
    if let Some(throughput) = &bench.throughput {
        text += &format!(
            "\n{} threads against one, {}: {:.2}x the throughput\n",
            throughput.threads, throughput.call, throughput.scaling.median
        );
    }
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

/// A clock is named alone, and so is a function that is called for one clock only.
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
