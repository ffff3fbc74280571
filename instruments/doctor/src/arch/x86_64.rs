//! The time stamp counter: CPUID, and the words that Linux for x86 has for the counter.

use super::super::facts::{Stated, StatedBy};
use std::arch::x86_64::{__cpuid, __cpuid_count};

/// Clocksources with a vDSO mode (enum vdso_clock_mode, arch/x86/include/asm/vdso/clocksource.h): the counter itself,
/// and the two that hypervisors correct by a page. `xen` has a vDSO mode in some versions only; its cost shows whether
/// it has.
pub(crate) const COUNTER_CLOCKSOURCES: &[&str] = &["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"];

/// Exports of arch/x86/entry/vdso/vdso.lds.S, with the first version that has each one beyond the original four.
pub(crate) const FUNCTIONS: &[(&str, &str)] = &[
    ("__vdso_clock_gettime", "2.6.24"),
    ("__vdso_gettimeofday", "2.6.24"),
    ("__vdso_time", "2.6.39"),
    ("__vdso_getcpu", "2.6.24"),
    ("__vdso_clock_getres", "5.3"),
    ("__vdso_getrandom", "6.11"),
];

/// Flags that arch/x86/kernel/tsc.c looks for (unsynchronized_tsc, check_system_tsc_reliable).
pub(crate) const FLAGS: &[&str] = &["tsc", "constant_tsc", "nonstop_tsc", "rdtscp"];

/// Flags that are further evidence for the counter; their absence is not evidence against it.
pub(crate) const MORE_FLAGS: &[&str] = &["tsc_known_freq", "tsc_reliable", "tsc_adjust"];

/// Executes CPUID. Under a hypervisor each execution costs a microsecond or more.
pub(crate) fn stated() -> Vec<Stated> {
    let mut rates = Vec::new();
    let mut add = |source: &str, by, hz: f64| {
        if hz > 0.0 {
            rates.push(Stated {
                source: source.to_owned(),
                by,
                hz,
            });
        }
    };
    let highest = __cpuid(0).eax;
    if highest >= 0x15 {
        let leaf = __cpuid_count(0x15, 0);
        if leaf.eax != 0 {
            let crystal = f64::from(leaf.ecx);
            add(
                "CPUID 15H",
                StatedBy::Cpu,
                crystal * f64::from(leaf.ebx) / f64::from(leaf.eax),
            );
        }
    }
    if highest >= 0x16 {
        let megahertz = __cpuid(0x16).eax & 0xffff;
        add(
            "CPUID 16H, base frequency",
            StatedBy::CpuNominal,
            f64::from(megahertz) * 1e6,
        );
    }
    // This leaf, which VMware introduced and KVM may offer, contains the guest's TSC rate in kHz. No hypervisor uses
    // the leaf for anything else.
    let hypervised = __cpuid(1).ecx >> 31 == 1;
    if hypervised && (0x4000_0010..0x4000_1000).contains(&__cpuid(0x4000_0000).eax) {
        let kilohertz = __cpuid(0x4000_0010).eax;
        add("CPUID 4000_0010H", StatedBy::Cpu, f64::from(kilohertz) * 1e3);
    }
    rates
}

/// Parses `tsc: Detected 2299.998 MHz processor` or `tsc: Refined TSC clocksource calibration: 2095.078 MHz`.
pub(crate) fn rate_of_log_line(line: &str) -> Option<(StatedBy, f64)> {
    let (_, rest) = line.split_once("tsc: ")?;
    let by = match rest.split_once(' ')?.0 {
        "Detected" => StatedBy::KernelEarly,
        "Refined" => StatedBy::Kernel,
        _ => return None,
    };
    let words: Vec<&str> = rest.split_whitespace().collect();
    let unit = words.iter().position(|word| *word == "MHz")?;
    let megahertz: f64 = words.get(unit.checked_sub(1)?)?.parse().ok()?;
    Some((by, megahertz * 1e6))
}

/// Returns the TSC's rate in Hz, from half of `bogomips`. The kernel derives its delay loop from the TSC where there is
/// one, and prints twice the TSC's rate in MHz.
pub(crate) fn rate_of_cpuinfo(cpuinfo: &str, flags: &[String]) -> Option<(&'static str, f64)> {
    let constant = flags.iter().any(|flag| flag == "constant_tsc");
    let line = cpuinfo.lines().find(|line| line.starts_with("bogomips"))?;
    let value: f64 = line.split(':').nth(1)?.trim().parse().ok()?;
    constant.then_some(("/proc/cpuinfo, half of bogomips", value / 2.0 * 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_figure_is_found_in_its_log() {
        let rate = rate_of_log_line;
        let early = |hz| Some((StatedBy::KernelEarly, hz));
        assert_eq!(rate("tsc: Detected 2299.998 MHz processor"), early(2299.998e6));
        assert_eq!(rate("tsc: Detected 3000.000 MHz TSC"), early(3000e6));
        assert_eq!(
            rate("tsc: Refined TSC clocksource calibration: 2095.078 MHz"),
            Some((StatedBy::Kernel, 2095.078e6))
        );
        assert_eq!(rate("tsc: Fast TSC calibration using PIT"), None);
        assert_eq!(rate("clocksource: tsc: mask: 0xffffffffffffffff"), None);
        assert_eq!(rate("tsc: Detected MHz"), None);
    }

    #[test]
    fn bogomips_count_only_where_the_tsc_is_constant() {
        let cpuinfo = "processor\t: 0\nbogomips\t: 4599.99\n";
        let constant = ["constant_tsc".to_owned()];
        assert_eq!(rate_of_cpuinfo(cpuinfo, &constant).unwrap().1, 2299.995e6);
        assert_eq!(rate_of_cpuinfo(cpuinfo, &[]), None);
    }

    #[test]
    fn cpuid_is_asked_without_a_fault_and_states_plausible_rates() {
        for rate in stated() {
            assert!((1e8..1e11).contains(&rate.hz), "{rate:?}");
        }
    }

    #[test]
    fn flags_that_the_kernel_would_like_to_see_are_missed_by_name() {
        let (set, missing) = crate::host::flags("processor: 0\nflags\t\t: fpu tsc rdtscp tsc_adjust sse\nflags : x\n");
        assert_eq!(set, ["tsc", "rdtscp", "tsc_adjust"]);
        assert_eq!(missing, ["constant_tsc", "nonstop_tsc"]);
    }
}
