//! Reasons why the kernel does not read the counter: from its log, its command line, the hypervisor and the CPU's
//! flags.

use super::arch;
use super::facts::Facts;
use super::messages::{self, CauseKind};
use super::proof::Proof;

/// A cause and its proof.
pub(super) struct Cause {
    pub(super) kind: CauseKind,
    pub(super) says: String,
    pub(super) proof: Proof,
}

/// Returns all causes with a proof, the strongest first.
pub(super) fn from_facts(facts: &Facts) -> Vec<Cause> {
    if let Some(name) = facts.machine.stand_in.as_deref() {
        return vec![Cause {
            kind: CauseKind::StandIn,
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
    // A choice of another clocksource decides nothing where the kernel rejects the counter for a reason of its own.
    let rejects = |cause: &Cause| {
        !matches!(
            cause.kind,
            CauseKind::CommandLine | CauseKind::Hypervisor | CauseKind::NotInvariant
        )
    };
    let lists_counter = facts.clocksource.available.iter().any(|name| is_counter(name));
    if !lists_counter && !facts.clocksource.is_too_coarse() && causes.iter().any(rejects) {
        causes.sort_by_key(|cause| cause.says == CHOSEN);
    }
    causes
}

/// The parameter of some distributions' kernels by which the kernel writes the TSCs of CPUs that differ.
pub(super) const DIRECT_SYNC: &str = "tsc=directsync";

const CHOSEN: &str = "the clocksource was chosen on the kernel's command line";

const MISSTATED: &str = "the counter's rate was set on the kernel's command line, and it runs at another";

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
    // arch/x86/kernel/tsc.c, pit_hpet_ptimer_calibrate_cpu
    let mut log = facts.log.iter().flat_map(|log| &log.lines);
    let lacks_reference =
        facts.clocksource.is_too_coarse() && log.any(|line| line.contains("No reference (HPET/PMTIMER) available"));
    let misstating = facts.misstating_parameter();
    let means = |parameter: &str| match parameter.split_once('=') {
        _ if misstating == Some(parameter) => Some(MISSTATED),
        None if parameter == "notsc" => Some("`notsc` forbids the kernel to use the TSC as a clock"),
        Some(("tsc", "unstable")) => Some("`tsc=unstable` tells the kernel not to trust the TSC"),
        Some(("acpi", "off")) if lacks_reference => {
            Some("`acpi=off` hides the HPET and the PM timer, against which the kernel calibrates the TSC")
        }
        Some(("clocksource" | "clock", name)) if name == current && !is_counter(name) => Some(CHOSEN),
        _ => None,
    };
    let cause = |parameter: &String| {
        Some(Cause {
            kind: CauseKind::CommandLine,
            says: means(parameter)?.to_owned(),
            proof: Proof::new("/proc/cmdline", parameter),
        })
    };
    parameters.filter_map(cause).collect()
}

fn of_log(facts: &Facts) -> Vec<Cause> {
    let Some(log) = &facts.log else { return Vec::new() };
    // The log's last message about the rate counts.
    let says_rate = |line: &String| CALIBRATED.iter().any(|words| line.contains(words));
    let calibrated_at = log.lines.iter().rposition(says_rate);
    let explained = log.lines.iter().enumerate().filter_map(|(index, line)| {
        let message = messages::explain(line)?;
        let is_past = message.kind == CauseKind::NotCalibrated && calibrated_at.is_some_and(|at| at > index);
        (!is_past).then_some((message, line))
    });
    let mut explained: Vec<_> = explained.collect();
    // A line that names the reason makes those that only name the result superfluous.
    if explained
        .iter()
        .any(|(message, line)| !message.is_general && is_decision(line))
    {
        explained.retain(|(message, _)| !message.is_general);
    }
    // Then the alarm is true.
    let is_misstated = facts.wrong_rate().is_some() || facts.misstated_rate().is_some();
    let differ = facts
        .counter
        .evidence
        .warp
        .as_ref()
        .is_some_and(|warp| warp.furthest_apart().is_some());
    let mut causes: Vec<Cause> = Vec::new();
    for (message, line) in explained {
        let says = match message.can_be_false && !differ && !is_misstated {
            true => format!("{}; {}", message.meaning, messages::FALSE_ALARM),
            false => message.meaning.to_owned(),
        };
        // Several lines of the kernel can have the same meaning.
        if causes.iter().all(|cause| cause.says != says) {
            causes.push(Cause {
                kind: message.kind,
                says,
                proof: Proof::new(&log.source, line),
            });
        }
    }
    // The kernel's decision comes before the reasons for it.
    causes.sort_by_key(|cause| !is_decision(&cause.proof.shows));
    causes
}

/// Returns whether a line of the kernel's log says that it rejected a clocksource.
fn is_decision(line: &str) -> bool {
    line.contains("unstable")
}

fn of_flags(facts: &Facts) -> Option<Cause> {
    let missing: Vec<&str> = facts
        .counter
        .flags_missing
        .iter()
        .map(AsRef::as_ref)
        .filter(|flag| *flag != "rdtscp")
        .collect();
    (!missing.is_empty()).then(|| Cause {
        kind: CauseKind::NotInvariant,
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
        kind: CauseKind::Hypervisor,
        says: own.to_owned(),
        proof: Proof::new("hypervisor", hypervisor),
    })
}

fn of_choice(facts: &Facts) -> Option<Cause> {
    let current = facts.clocksource.current.as_deref()?;
    let counter = facts.clocksource.available.iter().find(|name| is_counter(name))?;
    (current != counter).then(|| Cause {
        kind: CauseKind::Choice,
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
