//! Remedies, and the cost of each.

mod rate;
mod remedy;

use super::causes::{self, DIRECT_SYNC};
use super::facts::{Facts, HIDES_VDSO_32, NEVER_WRITES_CODE, VdsoKind};
use super::findings::{self, Finding, Severity};
use super::host;
use super::messages::CauseKind;
use fastpath_evidence::Trust;
use fastpath_image::Isa;
use remedy::remedy;

pub use remedy::{Remedy, When};

const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// The remedies of a finding, by the findings' identifiers.
type Helps = fn(&Facts, &[Finding]) -> Vec<Remedy>;
const BY_FINDING: [(&[&str], Helps); 13] = [
    (&["clock-rate"], |facts, _| rate::wrong_rate(facts)),
    (&["counter-unused"], |facts, _| counter_unused(facts)),
    (&["process-reads"], |facts, _| {
        read_less_often(facts).into_iter().collect()
    }),
    (&["process-reads-counter"], |_, findings| {
        let is_wrong = |finding: &Finding| finding.id == "process-reads-counter" && finding.severity == Severity::Wrong;
        let read_the_clock = || {
            remedy(
                "read-the-clock",
                When::Permanent,
                "have the program read CLOCK_MONOTONIC, or fastpath's clock for programs (fastpath-clock.h), instead of the counter",
                "a change of the program, or of how it is built or configured; fastpath changes no code that reads the counter",
            )
        };
        findings.iter().any(is_wrong).then(read_the_clock).into_iter().collect()
    }),
    (&["no-vdso", "process-without-vdso"], |facts, _| no_vdso(facts)),
    (&["clock-not-in-vdso", "function-not-in-vdso"], |facts, _| {
        vec![remedy(
            "newer-kernel",
            When::Permanent,
            format!("run a newer kernel than {}", facts.kernel.release),
            "a reboot, and whatever else the newer kernel changes",
        )]
    }),
    (&["counter-forbidden"], |_, _| {
        vec![remedy(
            "allow-counter",
            When::Now,
            "let the program that starts it allow the counter: `prctl(PR_SET_TSC, PR_TSC_ENABLE)` before exec",
            "a start of the program; a sandbox that hides the counter against timing attacks loses that",
        )]
    }),
    (&["counter-expensive"], |facts, _| {
        hypervisor(facts).into_iter().collect()
    }),
    (&["counters-apart", "clock-backward"], |facts, findings| {
        unsound_counter(facts, findings).into_iter().collect()
    }),
    (&["rate-mismatch"], |_, findings| {
        recalibrate(findings).into_iter().collect()
    }),
    (&["process-page-stale", "process-page-withdrawn"], |_, _| {
        vec![remedy(
            "start-again",
            When::Now,
            "start the program again under `fastpath run`",
            "a restart of the program; until then its reads fall back to the kernel, which is slow but correct",
        )]
    }),
    (&["process-bypasses-vdso"], |_, _| {
        vec![remedy(
            "rebuild",
            When::Permanent,
            "build the program against a libc that uses the vDSO (glibc 2.31, musl 1.1, any Go)",
            "a rebuild; no vDSO, not even fastpath's, can help a program that does not call it",
        )]
    }),
    (&["process-makes-own-calls", "process-calls-vsyscall"], |_, _| {
        vec![remedy(
            "call-libc",
            When::Permanent,
            "have the code call the C library's clock_gettime, or the vDSO's function (AT_SYSINFO_EHDR), instead of making the system \
             call",
            "a change of the program; no vDSO, not even fastpath's, can help code that does not call it",
        )]
    }),
];

fn read_less_often(facts: &Facts) -> Option<Remedy> {
    let caller = findings::worth_a_change(facts)?;
    Some(remedy(
        "read-less-often",
        When::Permanent,
        format!(
            "read clocks less often{}: once in each turn of a loop, and pass the time on",
            findings::caller_name(caller).map_or_else(String::new, |name| format!(" in {name}"))
        ),
        "a change of the program; each read already costs no more than the counter does",
    ))
}

/// Returns the remedies of the findings, those with an immediate effect first.
pub(super) fn from_facts(facts: &Facts, findings: &[Finding]) -> Vec<Remedy> {
    let found = |id: &str| findings.iter().any(|finding| finding.id == id);
    if let Some(name) = facts.machine.stand_in.as_deref() {
        let of_clocks = ["counter-unused", "clock-not-in-vdso", "no-vdso", "vdso-expensive"];
        // The functions of its vDSO are its authors' matter.
        return match of_clocks.iter().any(|id| found(id)) {
            true => of_stand_in(facts, findings, name),
            false => Vec::new(),
        };
    }
    let mut remedies = by_fastpath(facts, findings);
    for (ids, helps) in BY_FINDING {
        if ids.iter().any(|id| found(id)) {
            remedies.extend(helps(facts, findings));
        }
    }
    remedies.sort_by_key(|remedy| remedy.when);
    remedies
}

/// Returns `run` and `attach`, where they help, in the order of their use.
fn by_fastpath(facts: &Facts, findings: &[Finding]) -> Vec<Remedy> {
    if !is_served_by_run(facts, findings) {
        return Vec::new();
    }
    if !facts.kernel.lets_write_code() {
        return vec![remedy(
            "code-writable",
            When::Permanent,
            format!(
                "remove `{NEVER_WRITES_CODE}` from the kernel's command line, or put `ptrace` in place of `never`; `fastpath run` and \
                 `attach` then serve programs"
            ),
            "a reboot; with `ptrace`, a tracer alone may write code",
        )];
    }
    let run = run(facts);
    let attach = run.as_ref().and_then(|run| attach(facts, findings, run));
    // A user who asks about a running process prefers not to restart it.
    let in_order = if facts.process.is_some() {
        [attach, run]
    } else {
        [run, attach]
    };
    in_order.into_iter().flatten().collect()
}

/// Returns the remedies where another program acts as the kernel: its clocksource, command line and version are no
/// matter of the machine's.
fn of_stand_in(facts: &Facts, findings: &[Finding], name: &str) -> Vec<Remedy> {
    let mut remedies = match name {
        // It has no pidfd_getfd(2) and no /proc/PID/mem, which `run` and `attach` need. pkg/sentry/time: the vDSO makes
        // system calls until the calibration against the host's clock has settled.
        host::GVISOR => vec![remedy(
            "again",
            When::Now,
            "run `fastpath doctor` again: gVisor's own vDSO makes system calls in a sandbox's first seconds, until gVisor has \
             calibrated the counter",
            "none; if the result stays, gVisor does not get a counter that it trusts",
        )],
        _ => by_fastpath(facts, findings),
    };
    remedies.push(remedy(
        "host",
        When::Now,
        format!("run `fastpath doctor` on the host: {name} gets its time from there"),
        "none; a call that reaches the kernel also pays the cost of that sandbox, which this does not reduce",
    ));
    remedies
}

/// Returns whether `fastpath run` would make any slow clock fast.
fn is_served_by_run(facts: &Facts, findings: &[Finding]) -> bool {
    const SERVED: [&str; 5] = [
        "counter-unused",
        "no-vdso",
        "clock-not-in-vdso",
        "vdso-expensive",
        "process-without-vdso",
    ];
    let slow = |finding: &Finding| finding.severity == Severity::Slow;
    // A faster clock that is wrong helps nobody.
    let is_wrong = facts.wrong_rate().is_some();
    let bypasses = findings.iter().any(|finding| finding.id == "process-bypasses-vdso");
    let served_already = facts
        .process
        .as_ref()
        .is_some_and(|process| process.vdso == Some(VdsoKind::Fastpath));
    let helps = findings
        .iter()
        .any(|finding| slow(finding) && SERVED.contains(&&*finding.id));
    helps && !is_wrong && !bypasses && !served_already
}

/// Cost of a read, in reads of the counter, without and with offsets (docs/benchmarks.md, docs/counter.md).
const READ: f64 = 1.2;
const READ_WITH_OFFSETS: f64 = 2.2;

fn run(facts: &Facts) -> Option<Remedy> {
    let verdict = |trust| facts.verdict(trust);
    if verdict(Trust::AllowNonInvariant).is_err() {
        return None;
    }
    // The counters differ by offsets, which are measured and watched, and which each read subtracts.
    let has_offsets = facts.counter.evidence.verdict(Trust::AllowNonInvariant).is_err();
    let share = if has_offsets { READ_WITH_OFFSETS } else { READ };
    // `run` decides by the costs in 64-bit programs, which are fast there.
    let clocks = match facts.hides_vdso() {
        Some(HIDES_VDSO_32) => " --clocks all",
        None if facts.lacks_compat_vdso() => " --clocks all",
        _ => "",
    };
    let cost = facts
        .counter
        .read_ns
        .filter(|_| !facts.machine.is_emulated())
        .map(|ns| format!(", at about {:.0} ns a call", ns * share))
        .unwrap_or_default();
    if verdict(Trust::Invariant).is_err() {
        return Some(remedy(
            "run-trusting",
            When::Now,
            format!("`fastpath run --trust-counter{clocks} -- PROGRAM`{cost}"),
            "you guarantee a counter that the CPU does not. It is checked more often, which takes 1 to 2 % of a CPU; if \
                    it goes wrong, that program reads wrong time until that is detected: up to 40 ms off, for up to 15 ms on two CPUs \
                    and longer on more (docs/counter.md)",
        ));
    }
    let watched = if has_offsets {
        ". The CPUs' counters differ: fastpath measures by how much, for a second, and watches them, which takes 1 to 2 % of a CPU"
    } else {
        ""
    };
    Some(remedy(
        "run",
        When::Now,
        format!("`fastpath run{clocks} -- PROGRAM`{cost}"),
        format!(
            "a start of the program, and one helper process beside it; needs no root and no reboot, only that ptrace is \
                allowed at the start{watched}"
        ),
    ))
}

/// Returns the remedy for a running process: one with a vDSO that can be redirected, of a kind that `fastpath attach`
/// supports.
fn attach(facts: &Facts, findings: &[Finding], run: &Remedy) -> Option<Remedy> {
    let (target, is_attachable) = match &facts.process {
        Some(process) => (
            process.pid.to_string(),
            process.vdso == Some(VdsoKind::Kernel)
                && process.isa.as_deref() == Some("x86_64")
                && process.tracer_pid.is_none_or(|tracer| tracer == 0)
                && !process.is_kernel_thread,
        ),
        None => (
            "PID".to_owned(),
            Isa::HOST.facts().attaches && findings.iter().all(|finding| finding.id != "no-vdso"),
        ),
    };
    let (trusting, vouching) = match &*run.id {
        "run-trusting" => (" --trust-counter", format!("; {}", run.cost)),
        _ => ("", String::new()),
    };
    is_attachable.then(|| remedy("attach", When::Now, format!("`fastpath attach{trusting} {target}`, as its user or as root"), format!(
            "no restart: its threads are stopped for some milliseconds, and one helper process, or fastpathd, keeps running; \
             `fastpath detach {target}` undoes it{vouching}"
        )))
}

fn off_command_line(parameters: &[&str]) -> Remedy {
    remedy(
        "command-line",
        When::Permanent,
        format!("remove `{}` from the kernel's command line", parameters.join(" ")),
        "a reboot; the parameter may be there for a reason, so check the kernel's log afterwards",
    )
}

fn counter_unused(facts: &Facts) -> Vec<Remedy> {
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
fn hypervisor(facts: &Facts) -> Option<Remedy> {
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

fn no_vdso(facts: &Facts) -> Vec<Remedy> {
    if facts.lacks_compat_vdso() {
        let does = "use a kernel that was built with CONFIG_COMPAT_VDSO=y, which takes a compiler for 32-bit Arm (CROSS_COMPILE_COMPAT)";
        return vec![remedy("kernel", When::Permanent, does, "another kernel, and a reboot")];
    }
    let Some(parameter) = facts.hides_vdso() else {
        return Vec::new();
    };
    let mut remedies = vec![remedy(
        "command-line",
        When::Permanent,
        format!("remove `{parameter}` from the kernel's command line"),
        "a reboot",
    )];
    // A vDSO alone does not help.
    if facts.clocksource.unreadable().is_some() {
        remedies.extend(counter_unused(facts));
    }
    remedies
}

fn recalibrate(findings: &[Finding]) -> Option<Remedy> {
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

fn unsound_counter(facts: &Facts, findings: &[Finding]) -> Option<Remedy> {
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

#[cfg(test)]
mod tests;
