//! Measures one call by every path, round by round.

use super::BenchOptions;
use super::subject::{Path, Subject};
use crate::cost;
use crate::functions::VdsoCall;
use crate::stats::{CostSummary, Spread, tenths, thousandths};
use crate::timer::Timer;
use serde::Serialize;

/// The cost of one call by each path.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Row {
    /// The function, and the clock if it takes one.
    pub call: VdsoCall,
    /// A bare ordered read of the counter.
    pub counter_ns: Option<CostSummary>,
    /// fastpath's function.
    pub ours_ns: Option<CostSummary>,
    /// The kernel's vDSO, called directly.
    pub kernel_vdso_ns: Option<CostSummary>,
    /// The bare system call.
    pub syscall_ns: Option<CostSummary>,
    /// Ratios of the costs.
    pub ratios: Ratios,
}

/// Ratios of two costs, each taken within one round, so that a disturbance of the whole round cancels.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ratios {
    /// fastpath's cost by that of the kernel's vDSO; below 1, fastpath is faster.
    pub ours_to_kernel_vdso: Option<Spread>,
    /// fastpath's cost by that of a read of the counter.
    pub ours_to_counter: Option<Spread>,
    /// Cost of the kernel's vDSO by that of a read of the counter.
    pub kernel_vdso_to_counter: Option<Spread>,
    /// Cost of a system call by fastpath's.
    pub syscall_to_ours: Option<Spread>,
}

/// Ticks per call of each path, one value per round.
pub(super) struct Ticks {
    call: VdsoCall,
    rounds: Vec<(Path, Vec<f64>)>,
}

/// Measures the subjects in rounds. Calls `is_done` after each round.
pub(super) fn measure(
    timer: &Timer,
    call: VdsoCall,
    subjects: &[Subject],
    options: &BenchOptions,
    is_done: &mut dyn FnMut(),
) -> Ticks {
    let mut rounds: Vec<(Path, Vec<f64>)> = subjects.iter().map(|subject| (subject.path, Vec::new())).collect();
    let calls = |path| {
        if path == Path::Syscall {
            options.batch.div_ceil(8)
        } else {
            options.batch.max(1)
        }
    };
    for subject in subjects {
        (subject.repeat)(calls(subject.path)); // cold caches are not compared
    }
    for round in 0..options.rounds {
        for step in 0..subjects.len() {
            // Rounds alternate between forward and backward, so that no path profits from always following the same
            // other one.
            let index = if round % 2 == 0 {
                step
            } else {
                subjects.len() - 1 - step
            };
            let subject = &subjects[index];
            rounds[index]
                .1
                .push(cost::batch(timer, calls(subject.path), &subject.repeat));
        }
        is_done();
    }
    Ticks { call, rounds }
}

impl Ticks {
    pub(super) fn in_ns(self, ns_per_tick: f64) -> Row {
        let ns = |path| {
            let ticks = self.ticks(path)?.to_vec();
            Some(CostSummary::from_samples(ticks)?.map(|ticks| tenths(ticks * ns_per_tick)))
        };
        Row {
            call: self.call,
            counter_ns: ns(Path::Counter),
            ours_ns: ns(Path::Ours),
            kernel_vdso_ns: ns(Path::KernelVdso),
            syscall_ns: ns(Path::Syscall),
            ratios: Ratios {
                ours_to_kernel_vdso: self.ratio(Path::Ours, Path::KernelVdso),
                ours_to_counter: self.ratio(Path::Ours, Path::Counter),
                kernel_vdso_to_counter: self.ratio(Path::KernelVdso, Path::Counter),
                syscall_to_ours: self.ratio(Path::Syscall, Path::Ours),
            },
        }
    }

    fn ticks(&self, path: Path) -> Option<&[f64]> {
        self.rounds
            .iter()
            .find(|(of, _)| *of == path)
            .map(|(_, ticks)| ticks.as_slice())
    }

    fn ratio(&self, of: Path, to: Path) -> Option<Spread> {
        let ratios = self
            .ticks(of)?
            .iter()
            .zip(self.ticks(to)?)
            .map(|(of, to)| of / to)
            .collect();
        Some(Spread::from_samples(ratios)?.map(thousandths))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;

    #[test]
    fn a_ratio_is_taken_within_a_round_so_that_a_slow_round_cancels() {
        // The machine runs at a third of its speed in two rounds of five.
        let rounds = vec![
            (Path::Ours, vec![10.0, 30.0, 10.0, 30.0, 10.0]),
            (Path::Syscall, vec![70.0, 210.0, 70.0, 210.0, 70.0]),
        ];
        let row = Ticks {
            call: VdsoCall::ClockGettime(Clock::TAI),
            rounds,
        }
        .in_ns(0.5);
        assert_eq!(
            row.ratios.syscall_to_ours,
            Some(Spread {
                p5: 7.0,
                median: 7.0,
                p95: 7.0
            })
        );
        assert_eq!(
            row.ours_ns,
            Some(CostSummary {
                p5: 5.0,
                median: 5.0,
                p95: 15.0,
                mean: 9.0,
                stddev: Some(5.5),
                min: 5.0,
                max: 15.0,
                outliers: 0
            })
        );
        assert_eq!(row.ratios.ours_to_counter, None);
    }
}
