//! Reasons why the kernel does not read the counter: from its log, its command line, the hypervisor and the CPU's
//! flags.

use super::arch;
use super::facts::Facts;
use super::findings::Proof;

/// Kind of reason for choosing or rejecting a clocksource. It decides which remedy helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A parameter on the kernel's command line.
    CommandLine,
    /// The kernel's watchdog, which compared it with another clock and found a difference.
    Watchdog,
    /// The CPUs' counters differ.
    Unsynchronized,
    /// The counter stops or changes its rate.
    NotInvariant,
    /// The kernel could not determine its rate.
    NotCalibrated,
    /// The hypervisor has a clock of its own, or does not guarantee the counter.
    Hypervisor,
    /// The counter could be used, but another clocksource was chosen.
    Choice,
    /// Reads from user space are trapped.
    Trapped,
    /// The kernel is a program that runs on another kernel.
    StandIn,
}

/// A cause and its proof.
pub(super) struct Cause {
    pub(super) kind: Kind,
    pub(super) says: String,
    pub(super) proof: Proof,
}

/// Messages of Linux and their meanings: arch/x86/kernel/tsc.c and tsc_sync.c, kernel/time/clocksource.c,
/// drivers/clocksource/arm_arch_timer.c. The first message that a line contains explains it.
const MESSAGES: &[(&str, Kind, &str)] = &[
    (
        "due to clocksource watchdog",
        Kind::Watchdog,
        "the kernel compared the TSC with another clock and found a difference; under load, or with a virtual hpet, that can be \
         a false alarm",
    ),
    (
        "as unstable because the skew is too large",
        Kind::Watchdog,
        "the kernel's watchdog found that the clocksource differs from its reference",
    ),
    (
        "due to check_tsc_sync_source failed",
        Kind::Unsynchronized,
        "at boot the kernel found CPUs whose TSCs differ",
    ),
    (
        "TSC warp between CPUs",
        Kind::Unsynchronized,
        "at boot the kernel found CPUs whose TSCs differ",
    ),
    (
        "due to TSCs unsynchronized",
        Kind::Unsynchronized,
        "the CPU does not guarantee that its several TSCs agree",
    ),
    (
        "due to TSC halts in idle",
        Kind::NotInvariant,
        "the CPU stops its TSC in deep idle states (no nonstop_tsc)",
    ),
    (
        "due to cpufreq changes",
        Kind::NotInvariant,
        "the TSC changes its rate with the CPU's frequency (no constant_tsc)",
    ),
    (
        "due to boot parameter",
        Kind::CommandLine,
        "it was declared unstable on the kernel's command line",
    ),
    (
        "due to running on Hyper-V",
        Kind::Hypervisor,
        "Hyper-V does not guarantee the TSC of this virtual machine",
    ),
    (
        "TSC found unstable after boot",
        Kind::Unsynchronized,
        "firmware has changed the TSC without the kernel's knowledge",
    ),
    (
        "Marking TSC unstable",
        Kind::Watchdog,
        "the kernel marked the TSC unstable",
    ),
    (
        "Fast TSC calibration failed",
        Kind::NotCalibrated,
        "the kernel could not calibrate the TSC quickly",
    ),
    (
        "Unable to calibrate against PIT",
        Kind::NotCalibrated,
        "the kernel could not calibrate the TSC against the PIT",
    ),
    (
        "could not calculate TSC khz",
        Kind::NotCalibrated,
        "the kernel could not calibrate the TSC, and disabled it",
    ),
    (
        "TSC ADJUST",
        Kind::Unsynchronized,
        "firmware has changed a CPU's TSC, and the kernel corrected it",
    ),
    (
        "Trapping CNTVCT access",
        Kind::Trapped,
        "because of an erratum, the kernel traps reads of the counter and removes it from the vDSO",
    ),
    (
        "workaround for",
        Kind::Trapped,
        "the counter of this CPU has an erratum that the kernel works around",
    ),
];

/// Returns the meaning of a line of the kernel's log, if it is about a counter that was rejected.
pub(super) fn explain(line: &str) -> Option<(Kind, &'static str)> {
    let found = MESSAGES.iter().find(|(words, ..)| line.contains(words));
    let (words, kind, meaning) = found?;
    // "workaround for" is a common phrase; only the timer's workarounds count.
    (*words != "workaround for" || line.contains("arch_timer")).then_some((*kind, *meaning))
}

/// Returns all causes with a proof, the strongest first.
pub(super) fn of(facts: &Facts) -> Vec<Cause> {
    if let Some(name) = facts.machine.stand_in {
        return vec![Cause {
            kind: Kind::StandIn,
            says: format!("the kernel here is {name}, which runs on another kernel and asks it for the time"),
            proof: Proof::new("/proc/cpuinfo, /proc/version", name),
        }];
    }
    let mut causes = of_command_line(facts);
    // The kernel lists a counter only while it would use it: if it does, another clocksource was chosen, regardless of
    // the log.
    if causes.is_empty() {
        causes.extend(of_choice(facts));
    }
    causes.extend(of_log(facts));
    causes.extend(of_flags(facts));
    causes.extend(of_hypervisor(facts));
    causes
}

/// Messages that show that the kernel knows the TSC's rate despite an earlier failure (arch/x86/kernel/tsc.c).
const CALIBRATED: [&str; 4] = [
    "Refined TSC clocksource calibration",
    "MHz processor",
    "MHz TSC",
    "Fast TSC calibration using",
];

fn of_command_line(facts: &Facts) -> Vec<Cause> {
    let current = facts.clocksource.current.as_deref().unwrap_or_default();
    let parameters = facts.kernel.parameters.iter().flatten();
    let means = |parameter: &str| match parameter.split_once('=') {
        None if parameter == "notsc" => Some("`notsc` forbids the kernel to use the TSC as a clock"),
        Some(("tsc", "unstable")) => Some("`tsc=unstable` tells the kernel not to trust the TSC"),
        Some(("clocksource" | "clock", name)) if name == current && !is_counter(name) => {
            Some("the clocksource was chosen on the kernel's command line")
        }
        _ => None,
    };
    let cause = |parameter: &String| {
        Some(Cause {
            kind: Kind::CommandLine,
            says: means(parameter)?.to_owned(),
            proof: Proof::new("/proc/cmdline", parameter),
        })
    };
    parameters.filter_map(cause).collect()
}

fn of_log(facts: &Facts) -> Vec<Cause> {
    let Some(log) = &facts.log else { return Vec::new() };
    let mut causes: Vec<Cause> = Vec::new();
    // The log's last message about the rate counts.
    let says_rate = |line: &String| CALIBRATED.iter().any(|words| line.contains(words));
    let calibrated_at = log.lines.iter().rposition(says_rate);
    for (index, line) in log.lines.iter().enumerate() {
        let Some((kind, meaning)) = explain(line) else { continue };
        if kind == Kind::NotCalibrated && calibrated_at.is_some_and(|at| at > index) {
            continue;
        }
        // Several lines of the kernel can have the same meaning.
        if causes.iter().all(|cause| cause.says != meaning) {
            causes.push(Cause {
                kind,
                says: meaning.to_owned(),
                proof: Proof::new(&log.source, line),
            });
        }
    }
    // The kernel's decision comes before the reasons for it.
    causes.sort_by_key(|cause| !cause.proof.shows.contains("unstable"));
    causes
}

fn of_flags(facts: &Facts) -> Option<Cause> {
    let missing: Vec<&str> = facts
        .counter
        .flags_missing
        .iter()
        .copied()
        .filter(|flag| *flag != "rdtscp")
        .collect();
    (!missing.is_empty()).then(|| Cause {
        kind: Kind::NotInvariant,
        says: format!(
            "the CPU, or the hypervisor, does not guarantee {}",
            missing.join(" and ")
        ),
        proof: Proof::new("/proc/cpuinfo", "not among the flags"),
    })
}

fn of_hypervisor(facts: &Facts) -> Option<Cause> {
    let hypervisor = facts.machine.hypervisor.as_deref()?;
    let current = facts.clocksource.current.as_deref()?;
    let own = match current {
        "xen" => "Xen has its own clocksource, which this kernel cannot read in user space",
        "kvm-clock" => "kvm-clock is read in user space only if the host guarantees one stable TSC on all CPUs",
        "hyperv_clocksource_msr" => "Hyper-V's clocksource is read by a trap, because the host offers no TSC page",
        _ => return None,
    };
    Some(Cause {
        kind: Kind::Hypervisor,
        says: own.to_owned(),
        proof: Proof::new("hypervisor", hypervisor),
    })
}

fn of_choice(facts: &Facts) -> Option<Cause> {
    let current = facts.clocksource.current.as_deref()?;
    let counter = facts.clocksource.available.iter().find(|name| is_counter(name))?;
    (current != counter).then(|| Cause {
        kind: Kind::Choice,
        says: format!("the kernel could use {counter}, but {current} was chosen, or no choice has been made yet"),
        proof: Proof::new(
            "/sys/devices/system/clocksource",
            &format!("available: {}", facts.clocksource.available.join(" ")),
        ),
    })
}

/// Returns whether a clocksource is the CPU's counter itself.
pub(super) fn is_counter(name: &str) -> bool {
    arch::COUNTER_CLOCKSOURCES.first() == Some(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kernels_write_when_they_give_a_counter_up_is_understood() {
        let lines = [
            ("tsc: Marking TSC unstable due to clocksource watchdog", Kind::Watchdog),
            (
                "clocksource: timekeeping watchdog on CPU2: Marking clocksource 'tsc' as unstable because the skew is too large:",
                Kind::Watchdog,
            ),
            ("tsc: Marking TSC unstable due to TSC halts in idle", Kind::NotInvariant),
            (
                "tsc: Marking TSC unstable due to TSCs unsynchronized",
                Kind::Unsynchronized,
            ),
            (
                "tsc: Marking TSC unstable due to check_tsc_sync_source failed",
                Kind::Unsynchronized,
            ),
            (
                "Measured 28745 cycles TSC warp between CPUs, turning off TSC clock.",
                Kind::Unsynchronized,
            ),
            ("tsc: Marking TSC unstable due to boot parameter", Kind::CommandLine),
            ("tsc: Fast TSC calibration failed", Kind::NotCalibrated),
            (
                "[Firmware Bug]: TSC ADJUST differs: CPU0 0 --> -5. Restoring",
                Kind::Unsynchronized,
            ),
            ("arch_timer: CPU0: Trapping CNTVCT access", Kind::Trapped),
            (
                "arch_timer: Enabling global workaround for ARM erratum 858921",
                Kind::Trapped,
            ),
        ];
        for (line, kind) in lines {
            assert_eq!(explain(line).map(|(kind, _)| kind), Some(kind), "{line}");
        }
        for line in [
            "clocksource: Switched to clocksource tsc",
            "tsc: Fast TSC calibration using PIT",
            "spectre: workaround for something",
        ] {
            assert!(explain(line).is_none(), "{line}");
        }
    }
}
