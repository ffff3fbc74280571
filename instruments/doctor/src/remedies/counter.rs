//! Remedies for a counter that is not read, or not to be believed.

use super::off_command_line;
use super::remedy::{Remedy, When, remedy};
use crate::causes::{self, DIRECT_SYNC};
use crate::facts::Facts;
use crate::findings::{Finding, Severity};
use crate::messages::CauseKind;
use fastpath_image::Isa;

const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

pub(super) fn counter_unused(facts: &Facts) -> Vec<Remedy> {
    let causes = causes::from_facts(facts);
    let has = |kind| causes.iter().any(|cause| cause.kind == kind);
    let mut remedies = Vec::new();
    let parameters = facts.kernel.parameters.iter().flatten();
    let against: Vec<&str> = parameters
        .map(String::as_str)
        .filter(|p| {
            let is_of_clocks = p.starts_with("clocksource=") || p.starts_with("clock=");
            is_of_clocks
                || *p == "acpi=off" && facts.clocksource.is_too_coarse()
                || matches!(*p, "notsc" | "tsc=unstable")
                || facts.misstating_parameter() == Some(*p)
        })
        .collect();
    // Without the parameter the kernel would choose again, but could not choose a counter that it does not accept. Every other
    // clocksource is better than timer ticks.
    let forbids = against
        .iter()
        .any(|p| matches!(*p, "notsc" | "tsc=unstable") || facts.misstating_parameter() == Some(*p));
    let lists_counter = facts.clocksource.available.iter().any(|name| causes::is_counter(name));
    let would_help = lists_counter || (forbids && would_be_taken(facts)) || facts.clocksource.is_too_coarse();
    let is_command_line = has(CauseKind::CommandLine) && !against.is_empty() && would_help;
    if is_command_line {
        remedies.push(off_command_line(&against));
    }
    remedies.extend(choose_counter(facts));
    remedies.extend(write_counters(facts, has(CauseKind::Unsynchronized)));
    let runs_on_counter = facts.clocksource.current.as_deref().is_some_and(causes::is_counter);
    if !runs_on_counter && !(is_command_line && (forbids || lists_counter)) {
        remedies.extend(hypervisor(facts));
    }
    // Where TSCs differ, it would certainly make time wrong.
    if Isa::HOST.is_x86() && !has(CauseKind::CommandLine) && !has(CauseKind::Unsynchronized) {
        remedies.extend(trust(facts));
    }
    if has(CauseKind::Watchdog) && fastpath_os::version(&facts.kernel.release) < (5, 16) {
        remedies.push(remedy(
            "newer-kernel",
            When::Permanent,
            "run Linux 5.16 or newer: on machines of one or two sockets it no longer watches a TSC that is constant, \
                   nonstop and adjustable",
            "a reboot, and whatever else the newer kernel changes",
        ));
    }
    remedies
}

/// Returns whether a kernel without parameters about the TSC would use it (`unsynchronized_tsc` in arch/x86/kernel/tsc.c): if
/// its rate is constant, if Intel made the CPU, or if there is one CPU; since Linux 6.9, if there is one socket, which several
/// CPUs of a guest may be.
fn would_be_taken(facts: &Facts) -> bool {
    let counter = &facts.counter;
    let is_apart = counter
        .evidence
        .warp
        .as_ref()
        .is_some_and(|warp| warp.furthest_apart().is_some());
    let is_constant = counter.evidence.features.is_none_or(|features| features.invariant)
        || !counter.flags_missing.iter().any(|flag| flag == "constant_tsc");
    let machine = &facts.machine;
    let is_intels = machine.vendor.as_deref() == Some("GenuineIntel");
    let is_one = match fastpath_os::version(&facts.kernel.release) >= (6, 9) {
        true => machine.packages <= 1,
        false => machine.cpus == 1,
    };
    !is_apart && (is_constant || is_intels || is_one)
}

/// Returns the parameter by which some kernels make the CPUs' TSCs agree: those of CPUs without IA32_TSC_ADJUST, by which Linux
/// itself does (x86/tsc: implement tsc=directsync, a patch that Linux has not taken).
fn write_counters(facts: &Facts, unsynchronized: bool) -> Option<Remedy> {
    let flags = facts.counter.flags.as_ref()?;
    let has = |flag| flags.iter().any(|set| set == flag);
    let helps = unsynchronized && has("constant_tsc") && !has("tsc_adjust") && facts.counter.fastest_drift().is_none();
    let is_tried = facts.kernel.has_parameter(DIRECT_SYNC);
    (helps && !is_tried && facts.machine.hypervisor.is_none()).then(|| {
        remedy(
            "write-counters",
            When::Permanent,
            format!(
                "on a kernel that knows the parameter, as SteamOS's and CachyOS's do, add `{DIRECT_SYNC}` to its command line"
            ),
            "a reboot; other kernels ignore it. The kernel then writes each CPU's TSC at its start, for up to 30 s, and checks the \
             TSCs as before",
        )
    })
}

/// Returns the change of clocksource in /sys, if the kernel lists the counter.
fn choose_counter(facts: &Facts) -> Option<Remedy> {
    let current = facts.clocksource.current.as_deref()?;
    let counter = facts
        .clocksource
        .available
        .iter()
        .find(|name| causes::is_counter(name))?;
    (counter != current).then(|| remedy("choose-clocksource", When::UntilReboot, format!("`echo {counter} | sudo tee {CLOCKSOURCE}`"), format!(
            "requires root; lost at the next boot; affects all programs of the host. A kernel that has marked {counter} unstable \
             accepts the write and changes nothing: read the file afterwards"
        )))
}

fn trust(facts: &Facts) -> Option<Remedy> {
    // If two CPUs were found to differ, `tsc=reliable` would certainly make time wrong.
    let evidence = &facts.counter.evidence;
    let apart = evidence
        .warp
        .as_ref()
        .is_some_and(|warp| warp.furthest_apart().is_some());
    let invariant = evidence.features.is_none_or(|features| features.invariant);
    let lists_tsc = facts.clocksource.available.iter().any(|name| causes::is_counter(name));
    if apart || lists_tsc || !invariant {
        return None;
    }
    let seen = match &evidence.warp {
        Some(warp) if !warp.pairs.is_empty() => "The CPUs' counters agreed in this examination, which is no guarantee",
        _ => "The CPUs could not be compared here",
    };
    Some(remedy(
        "trust-tsc",
        When::Permanent,
        "add `tsc=reliable clocksource=tsc` to the kernel's command line",
        format!(
            "a reboot. DANGER: this disables every check of the TSC. If the TSC drifts, stops or differs between CPUs, time is \
             wrong for every program, and nothing reports it. {seen}"
        ),
    ))
}

/// Returns what the operator of the hypervisor can change.
pub(super) fn hypervisor(facts: &Facts) -> Option<Remedy> {
    let name = facts.machine.hypervisor.as_deref()?;
    let has_invariant = facts
        .counter
        .evidence
        .features
        .is_some_and(|features| features.invariant);
    let (does, cost) = match name {
        _ if name.contains("KVM") && has_invariant => return None,
        _ if name.contains("KVM") => (
            "on the host: give the guest an invariant TSC (QEMU: `-cpu host,+invtsc`; libvirt: `<feature policy='require' \
             name='invtsc'/>`)",
            "a restart of the guest; it can then be migrated only to hosts that have the same TSC frequency or can scale it",
        ),
        "QEMU (TCG)" => (
            "on the host: run the guest under KVM (`-accel kvm`) instead of emulation",
            "requires hardware virtualisation on the host",
        ),
        "Xen" => (
            "in the guest's configuration: `tsc_mode=\"native\"`; in the guest: `clocksource=tsc` on the kernel's command line",
            "a restart of the guest; after a migration to a host with another frequency its time is wrong",
        ),
        "Hyper-V" => (
            "on the host: a VM of a current configuration version offers the TSC page (clocksource `hyperv_clocksource_tsc_page`); \
             upgrade an older one with `Update-VMVersion`",
            "a restart of the guest; an upgraded VM no longer runs on older hosts",
        ),
        "VMware" => (
            "in the guest's .vmx file: remove `monitor_control.virtual_rdtsc` if present; use a current hardware version",
            "a restart of the guest",
        ),
        _ => return None,
    };
    Some(remedy("hypervisor", When::Permanent, does, cost))
}

pub(super) fn recalibrate(findings: &[Finding]) -> Option<Remedy> {
    let is_wrong = |finding: &Finding| finding.id == "rate-mismatch" && finding.severity == Severity::Wrong;
    findings.iter().any(is_wrong).then(|| {
        remedy(
            "recalibrate",
            When::Permanent,
            "add `tsc=recalibrate` to the kernel's command line (Linux 6.3), and look at the log after the boot",
            "a reboot; needs an hpet or a PM timer to calibrate against",
        )
    })
}

pub(super) fn unsound_counter(facts: &Facts, findings: &[Finding]) -> Option<Remedy> {
    let in_use = facts.clocksource.current.as_deref().is_some_and(causes::is_counter);
    let wrong = in_use && findings.iter().any(|finding| finding.severity == Severity::Wrong);
    let other = facts
        .clocksource
        .available
        .iter()
        .find(|name| !causes::is_counter(name))?;
    wrong.then(|| {
        remedy(
            "leave-counter",
            When::UntilReboot,
            format!("`echo {other} | sudo tee {CLOCKSOURCE}`"),
            "every clock read then costs a system call, but time is right",
        )
    })
}
