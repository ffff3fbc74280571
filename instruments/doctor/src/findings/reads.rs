//! The share of its CPU time that the process spends in clock reads, and the functions that make them.

use super::super::facts::{Facts, Process, ReadCaller, ReadClock, Reads, VdsoKind};
use super::finding::{Finding, Severity, finding};
use super::gains::{OVER_COUNTER, gains};
use fastpath_measure::clocks::Clock;

/// Share of the CPU time below which reads are not worth a change of the program.
const WORTHWHILE: f64 = 0.02;
/// Least share of a CPU of which a share means anything, at a sample a millisecond.
const LEAST_CPU: f64 = 0.02;

pub(super) fn find(process: &Process, facts: &Facts) -> Option<Finding> {
    let reads = process.reads.as_ref()?;
    let seconds = reads.elapsed_ns as f64 / 1e9;
    let cpu = reads.cpu_ns as f64 / reads.elapsed_ns.max(1) as f64;
    let shows = format!(
        "{:.0} of {:.0} ms in a vDSO, in {seconds:.1} s",
        reads.reads_ns as f64 / 1e6,
        reads.cpu_ns as f64 / 1e6
    );
    let finding = |says| finding("process-reads", Severity::Note, says).proof("samples of its CPU time", &shows);
    if cpu < LEAST_CPU {
        return Some(finding(format!(
            "the process used {:.1} % of a CPU while it was sampled, too little for its clock reads to matter; if it works \
             in bursts, sample it again in one",
            100.0 * cpu
        )));
    }
    if reads.share() < WORTHWHILE / 2.0 {
        return Some(finding(
            "the process spends less than 1 % of its CPU time in clock reads".to_owned(),
        ));
    }
    let rate = match rates(reads, process, facts) {
        Some(total) => format!(", about {} a second", rounded(total)),
        None => String::new(),
    };
    let found = finding(format!(
        "the process spends {:.0} % of its CPU time in clock reads ({:.1} % of a CPU){rate}",
        100.0 * reads.share(),
        100.0 * reads.share() * cpu
    ));
    let found = reads.callers.iter().fold(found, |found, caller| {
        let share = 100.0 * caller.share;
        let made = match name(caller) {
            Some(name) => format!("{share:.0} % of them are made by {name}"),
            None => format!("the callers of {share:.0} % of them could not be found"),
        };
        let clock = |read: &ReadClock| match rate_of(reads, caller.share * read.share, read.clock, process, facts) {
            Some(rate) => format!("{}, about {} a second", read.clock, rounded(rate)),
            None => format!("{}, {:.0} %", read.clock, 100.0 * read.share),
        };
        let clocks: Vec<String> = caller.clocks.iter().map(clock).collect();
        found.because(&match clocks.is_empty() {
            true => format!("{made}: unknown clock"),
            false => format!("{made}: {}", clocks.join("; ")),
        })
    });
    let found = match predicted(reads, facts) {
        Some(share) => found.because(&format!(
            "under fastpath they would take about {:.1} % of its CPU time",
            100.0 * share
        )),
        None => found,
    };
    let found = match reads.unsampled_threads {
        0 => found,
        count => found.because(&format!("its busiest threads were sampled, {count} others were not")),
    };
    Some(match reads.includes_kernel {
        true => found,
        false => found.because("time in the kernel is not included: this user may sample user space only"),
    })
}

/// Returns the caller of most reads, if they are worth a change of the program and no path of them is slow.
pub(in super::super) fn worth_a_change(facts: &Facts) -> Option<&ReadCaller> {
    let process = facts.process.as_ref()?;
    let reads = process.reads.as_ref()?;
    let is_fast = matches!(process.vdso, Some(VdsoKind::Kernel | VdsoKind::Fastpath)) && gains(facts).is_empty();
    (is_fast && reads.share() >= WORTHWHILE)
        .then(|| reads.callers.first())
        .flatten()
}

/// Returns a caller in words, if it was found.
pub(in super::super) fn name(caller: &ReadCaller) -> Option<String> {
    Some(match (&caller.function, &caller.file) {
        (Some(function), Some(file)) if caller.is_clock_function() => format!("callers of `{function}` ({file})"),
        (Some(function), Some(file)) => format!("`{function}` ({file})"),
        (None, Some(file)) => format!("a function of {file}"),
        (Some(function), None) => format!("`{function}`"),
        (None, None) => return None,
    })
}

/// Returns the number of its reads a second. Those of an unknown clock cost as those of MONOTONIC.
fn rates(reads: &Reads, process: &Process, facts: &Facts) -> Option<f64> {
    let clocks = reads.callers.iter().flat_map(|caller| {
        let clocks = caller.clocks.iter();
        clocks.map(|read| (caller.share * read.share, read.clock))
    });
    let known: f64 = clocks.clone().map(|(share, _)| share).sum();
    let all = clocks.chain([((1.0 - known).max(0.0), Clock::MONOTONIC)]);
    all.map(|(share, clock)| rate_of(reads, share, clock, process, facts))
        .sum()
}

/// Returns the number of reads a second of a clock that take this share of the time in reads.
fn rate_of(reads: &Reads, share: f64, clock: Clock, process: &Process, facts: &Facts) -> Option<f64> {
    let seconds = reads.elapsed_ns as f64 / 1e9;
    Some(reads.reads_ns as f64 * share / cost_ns(clock, process, facts)? / seconds)
}

/// Returns the cost of one of its reads of a clock.
fn cost_ns(clock: Clock, process: &Process, facts: &Facts) -> Option<f64> {
    match process.vdso? {
        VdsoKind::Fastpath if Clock::SERVED.contains(&clock) => Some(facts.counter.read_ns? * OVER_COUNTER),
        VdsoKind::Fastpath | VdsoKind::Kernel => {
            let is_it = |report: &&fastpath_measure::probe::ClockReport| report.clock == clock;
            facts.clocks.iter().find(is_it)?.measured.ns
        }
        VdsoKind::None | VdsoKind::Other => None,
    }
}

/// Returns the share that the reads would have of the CPU time under fastpath, where that gains anything.
fn predicted(reads: &Reads, facts: &Facts) -> Option<f64> {
    let gains = gains(facts);
    let gain = gains.iter().find(|gain| gain.clock == Clock::MONOTONIC)?;
    let share = reads.share();
    let left = share * gain.under_fastpath_ns / gain.now_ns;
    Some(left / (1.0 - share + left))
}

/// Rounds to two digits: `6.1 million`, `120,000`, `850`.
fn rounded(value: f64) -> String {
    if value < 1.0 {
        return "less than one".to_owned();
    }
    let unit = 10f64.powf(value.log10().floor() - 1.0);
    let value = (value / unit).round() * unit;
    match value {
        1e6.. => format!("{:.1} million", value / 1e6),
        1e3.. => format!("{},{:03.0}", (value / 1e3) as u64, value % 1e3),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::samples;
    use super::*;

    #[test]
    fn counts_have_two_digits() {
        let texts = [6_123_456.0, 123_456.0, 1_049.0, 851.0, 0.2].map(rounded);
        assert_eq!(texts, ["6.1 million", "120,000", "1,000", "850", "less than one"]);
    }

    #[test]
    fn a_reads_caller_that_was_not_found_has_no_name() {
        let mut facts = samples::served_process();
        let process = facts.process.as_mut().expect("a process");
        process.reads = Some(Reads {
            elapsed_ns: 1_000_000_000,
            cpu_ns: 100_000_000,
            reads_ns: 50_000_000,
            includes_kernel: true,
            unsampled_threads: 68,
            callers: vec![ReadCaller {
                share: 1.0,
                ..ReadCaller::default()
            }],
            ..Reads::default()
        });
        let found = find(facts.process.as_ref().expect("a process"), &facts).expect("a finding");
        assert!(
            found
                .says
                .contains("50 % of its CPU time in clock reads (5.0 % of a CPU)"),
            "{}",
            found.says
        );
        assert_eq!(
            found.because[0].says,
            "the callers of 100 % of them could not be found: unknown clock"
        );
        assert!(found.because[1].says.ends_with("68 others were not"), "{found:?}");
    }

    #[test]
    fn each_caller_has_its_clocks_with_their_reads_a_second() {
        let mut facts = samples::healthy();
        let clock = |clock, share| ReadClock { clock, share };
        let caller = |function: &str, share, clocks| ReadCaller {
            function: Some(function.to_owned()),
            share,
            clocks,
            ..ReadCaller::default()
        };
        facts.process = Some(Process {
            reads: Some(Reads {
                elapsed_ns: 1_000_000_000,
                cpu_ns: 1_000_000_000,
                reads_ns: 1_000_000_000,
                includes_kernel: true,
                callers: vec![
                    caller("work", 0.7, vec![clock(Clock::MONOTONIC, 1.0)]),
                    caller(
                        "log",
                        0.3,
                        vec![clock(Clock::REALTIME, 0.7), clock(Clock::REALTIME_COARSE, 0.3)],
                    ),
                ],
                ..Reads::default()
            }),
            ..samples::process()
        });
        // 21 ns a read, and 5 ns one of a COARSE clock.
        let found = find(facts.process.as_ref().expect("a process"), &facts).expect("a finding");
        assert!(found.says.ends_with(", about 61.0 million a second"), "{}", found.says);
        let because: Vec<&str> = found.because.iter().map(|one| one.says.as_str()).collect();
        assert_eq!(
            because,
            [
                "70 % of them are made by `work`: MONOTONIC, about 33.0 million a second",
                "30 % of them are made by `log`: REALTIME, about 10.0 million a second; REALTIME_COARSE, about 18.0 \
                 million a second",
            ]
        );
    }
}
