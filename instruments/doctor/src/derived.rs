//! What follows from several facts together.

use super::facts::{Facts, HIDES_VDSO, HIDES_VDSO_32, KernelFacts, Process, Stated, VdsoKind};
use fastpath_evidence::{Distrust, KernelsClock, Trust};
use fastpath_measure::ClockRate;

impl Facts {
    /// Returns the verdict of `fastpath run` on the counter.
    pub(crate) fn verdict(&self, trust: Trust) -> Result<(), Distrust> {
        let current = self.clocksource.current.as_deref();
        let kernels = current.map_or(KernelsClock::Other, KernelsClock::of_clocksource);
        let evidence = &self.counter.evidence;
        let verdict = evidence.verdict_with_offsets(trust, kernels);
        // Offsets would be found to change, and given up.
        match (evidence.verdict(trust), self.counter.fastest_drift()) {
            (Err(Distrust::Warp { .. }), Some(drift)) => Err(Distrust::Drift(*drift)),
            _ => verdict,
        }
    }

    /// Returns the rate of MONOTONIC that is certainly wrong.
    pub(crate) fn wrong_rate(&self) -> Option<&ClockRate> {
        fastpath_measure::wrong_rate(&self.rates)
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
        let is_wrong = self.wrong_rate().is_some() || self.misstated_rate().is_some();
        self.kernel.sets_rate().filter(|_| is_wrong)
    }

    /// Returns the parameter because of which the process that was asked about, or this one, has no vDSO.
    pub(crate) fn hides_vdso(&self) -> Option<&'static str> {
        let is_32_bit = self
            .process
            .as_ref()
            .is_some_and(|process| process.word_bits == Some(32));
        let parameter = if is_32_bit { HIDES_VDSO_32 } else { HIDES_VDSO };
        self.kernel.has_parameter(parameter).then_some(parameter)
    }

    /// Returns whether the process that was asked about is a 32-bit one without a vDSO on a kernel for AArch64, which gives
    /// these programs one only if it was built to (arch/arm64/Kconfig, COMPAT_VDSO).
    pub(crate) fn lacks_compat_vdso(&self) -> bool {
        let is_one = |process: &Process| process.isa.as_deref() == Some("arm") && process.vdso == Some(VdsoKind::None);
        self.kernel.machine == "aarch64" && self.process.as_ref().is_some_and(is_one)
    }
}

impl KernelFacts {
    /// Returns the parameter that sets the TSC's rate.
    pub(super) fn sets_rate(&self) -> Option<&str> {
        let mut parameters = self.parameters.iter().flatten().map(String::as_str);
        parameters.find(|parameter| parameter.starts_with("tsc_early_khz="))
    }

    /// Returns the parameter by which the kernel does not compare the TSC with another clock.
    pub(super) fn trusts_counter(&self) -> Option<&str> {
        let mut parameters = self.parameters.iter().flatten().map(String::as_str);
        parameters.find(|parameter| matches!(*parameter, "tsc=reliable" | "tsc=nowatchdog"))
    }
}
