//! The gain of a process under fastpath.

use super::super::facts::{Facts, VdsoKind};
use fastpath_evidence::Trust;
use fastpath_measure::clocks::Clock;
use fastpath_measure::probe::ClockReport;
use serde::Serialize;

/// Cost of a clock read in a process, now and under fastpath.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Gain {
    /// The clock.
    pub clock: Clock,
    /// Cost of a call in that process: that of the same path here.
    pub now_ns: f64,
    /// Cost of a call under fastpath: that of a counter read and a fifth more, as `fastpath bench` shows.
    pub under_fastpath_ns: f64,
}

/// Cost of fastpath's clock_gettime in counter reads; `fastpath bench` shows 1.13 to 1.18.
pub(super) const OVER_COUNTER: f64 = 1.2;

/// Returns the cost of a call in the process, now and under fastpath. Clocks for which that would be a guess are left
/// out.
pub(crate) fn gains(facts: &Facts) -> Vec<Gain> {
    let (Some(process), Some(read_ns)) = (&facts.process, facts.counter.read_ns) else {
        return Vec::new();
    };
    let is_distrusted = facts.verdict(Trust::AllowNonInvariant).is_err();
    if is_distrusted || process.is_of_other_isa() || facts.machine.is_emulated() || process.asks_for_vdso == Some(false)
    {
        return Vec::new();
    }
    let by_libc_here = facts.here.vdso == Some(VdsoKind::Kernel);
    let now = |report: &ClockReport| match process.vdso? {
        VdsoKind::Kernel if by_libc_here => report.measured.ns,
        VdsoKind::None => report.measured.syscall_ns,
        _ => None,
    };
    let under_fastpath_ns = (read_ns * OVER_COUNTER * 10.0).round() / 10.0;
    let gain = |report: &ClockReport| {
        Some(Gain {
            clock: report.clock,
            now_ns: now(report)?,
            under_fastpath_ns,
        })
    };
    let served = facts
        .clocks
        .iter()
        .filter(|report| Clock::SERVED.contains(&report.clock));
    served
        .filter_map(gain)
        .filter(|gain| gain.now_ns > 2.0 * gain.under_fastpath_ns)
        .collect()
}
