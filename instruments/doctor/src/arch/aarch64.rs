//! The generic timer's virtual counter, which the architecture defines to be invariant and the same on all CPUs.

use super::super::facts::{Stated, StatedBy};
use std::arch::asm;

/// Defined in drivers/clocksource/arm_arch_timer.c.
pub(crate) const COUNTER_CLOCKSOURCES: &[&str] = &["arch_sys_counter"];

/// Exports of arch/arm64/kernel/vdso/vdso.lds.S. They contain neither time() nor getcpu().
pub(crate) const FUNCTIONS: &[(&str, &str)] = &[
    ("__kernel_clock_gettime", "2.6.39"),
    ("__kernel_gettimeofday", "2.6.39"),
    ("__kernel_clock_getres", "2.6.39"),
    ("__kernel_rt_sigreturn", "2.6.39"),
    ("__kernel_getrandom", "6.12"),
];

/// No flags: the counter is part of the architecture, not a feature.
pub(crate) const FLAGS: &[&str] = &[];

/// "ecv": CNTVCTSS_EL0, which needs no barrier before it.
pub(crate) const MORE_FLAGS: &[&str] = &["ecv"];

/// Reads the registers that user space may read.
pub(crate) fn stated() -> Vec<Stated> {
    let hz: u64;
    // SAFETY: Linux lets user space read cntfrq_el0 wherever it lets it read the counter, and traps it to the same
    // value where it does not; reading it changes nothing.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nomem, nostack, preserves_flags)) };
    vec![Stated {
        source: "CNTFRQ_EL0".to_owned(),
        by: StatedBy::Cpu,
        hz: hz as f64,
    }]
}

/// Parses `arch_timer: cp15 timer(s) running at 24.00MHz (virt).`
pub(crate) fn rate_of_log_line(line: &str) -> Option<(StatedBy, f64)> {
    let (_, rest) = line.split_once("arch_timer: ")?;
    let (_, rate) = rest.split_once("running at ")?;
    let megahertz: f64 = rate.split_once("MHz")?.0.trim().parse().ok()?;
    Some((StatedBy::Kernel, megahertz * 1e6))
}

/// Returns `None`: /proc/cpuinfo describes the counter here only by BogoMIPS, which the kernel rounds.
pub(crate) fn rate_of_cpuinfo(_: &str, _: &[String]) -> Option<(&'static str, f64)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_figure_is_found_in_its_log() {
        let line = "arch_timer: cp15 timer(s) running at 62.50MHz (virt).";
        assert_eq!(rate_of_log_line(line), Some((StatedBy::Kernel, 62.5e6)));
        assert_eq!(rate_of_log_line("arch_timer: CPU0: Trapping CNTVCT access"), None);
    }
}
