//! Which of the rates among the facts are wrong.

use super::facts::{Facts, Stated};
use fastpath_measure::ClockRate;
use fastpath_measure::clocks::Clock;

impl Facts {
    /// Returns the rate of MONOTONIC that is certainly wrong: no slew explains it, for MONOTONIC_RAW has it, too.
    pub(crate) fn wrong_rate(&self) -> Option<&ClockRate> {
        let of = |clock| {
            self.rates
                .iter()
                .filter(move |rate| rate.clock == clock && rate.is_wrong())
        };
        let is_slewed = |rate: &&ClockRate| of(Clock::MONOTONIC_RAW).all(|raw| raw.against != rate.against);
        of(Clock::MONOTONIC).find(|rate| !is_slewed(rate))
    }

    /// Returns the stated rate of the counter that is certainly wrong, and by how much, in millionths, the counter is off.
    pub(crate) fn misstated_rate(&self) -> Option<(&Stated, f64)> {
        // The kernel's timer ticks are no reference: a machine that was stopped has lost some.
        let measured = self
            .counter
            .measured
            .as_ref()
            .filter(|_| !self.clocksource.is_too_coarse())?;
        let is_off = |stated: &&Stated| {
            let apart = (measured.hz - stated.hz).abs() - measured.error_hz;
            stated.by.tolerance().is_some_and(|share| apart > share * stated.hz)
        };
        let stated = self.counter.stated.iter().find(is_off)?;
        Some((stated, (measured.hz / stated.hz - 1.0) * 1e6))
    }

    /// Returns the parameter that sets the TSC's rate, where that is wrong.
    pub(crate) fn misstating_parameter(&self) -> Option<&str> {
        let parameters = self.kernel.parameters.iter().flatten();
        let sets_rate = |parameter: &&String| parameter.starts_with("tsc_early_khz=");
        let is_wrong = self.wrong_rate().is_some() || self.misstated_rate().is_some();
        parameters.filter(|_| is_wrong).find(sets_rate).map(String::as_str)
    }
}
