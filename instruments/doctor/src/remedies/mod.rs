//! Remedies, and the cost of each.

mod counter;
mod rate;
mod remedy;

use super::facts::{Facts, HIDES_VDSO_32, NEVER_WRITES_CODE, VdsoKind};
use super::findings::{self, Finding, Severity};
use super::host;
use fastpath_evidence::Trust;
use remedy::remedy;

pub use remedy::{Remedy, When};

/// The remedies of a finding, by the findings' identifiers.
type Helps = fn(&Facts, &[Finding]) -> Vec<Remedy>;
const BY_FINDING: [(&[&str], Helps); 14] = [
    (&["clock-rate"], |facts, _| rate::wrong_rate(facts)),
    (&["counter-unused"], |facts, _| counter::counter_unused(facts)),
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
        counter::hypervisor(facts).into_iter().collect()
    }),
    (&["counter-slow-on-some-cpus"], |_, _| {
        vec![remedy(
            "other-cpus",
            When::Now,
            "let threads that read clocks run on the other CPUs (`taskset`, a cpuset)",
            "the CPU time of those CPUs",
        )]
    }),
    (&["counters-apart", "clock-backward"], |facts, findings| {
        counter::unsound_counter(facts, findings).into_iter().collect()
    }),
    (&["rate-mismatch"], |_, findings| {
        counter::recalibrate(findings).into_iter().collect()
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
    // A faster clock that is wrong is no help.
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
                && matches!(process.isa.as_deref(), Some("x86_64" | "aarch64"))
                && process.tracer_pid.is_none_or(|tracer| tracer == 0)
                && !process.is_kernel_thread,
        ),
        None => ("PID".to_owned(), findings.iter().all(|finding| finding.id != "no-vdso")),
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
        remedies.extend(counter::counter_unused(facts));
    }
    remedies
}

#[cfg(test)]
mod tests;
