//! Findings about the CPU's counter.

use super::super::causes;
use super::super::facts::Facts;
use super::super::words::megahertz;
use super::finding::{Finding, Severity, finding};
use fastpath_evidence::counter::Features;
use fastpath_evidence::{Drift, Warp};

/// Cost above which a counter read is reported. It costs 5 to 30 ns, but microseconds if a hypervisor traps it.
pub(super) const EXPENSIVE_COUNTER_NS: f64 = 100.0;

pub(super) fn from_facts(facts: &Facts) -> Vec<Finding> {
    let counter = &facts.counter;
    let mut findings = Vec::new();
    if !counter.evidence.is_readable {
        let says =
            "programs started like this one may not read the counter: each read of a clock by a vDSO ends in SIGSEGV"
                .to_owned();
        findings.push(
            finding("counter-forbidden", Severity::Slow, says)
                .because("it was forbidden before this process was started (PR_SET_TSC, which programs inherit); doctor has allowed it to itself again")
                .proof("prctl PR_GET_TSC", "PR_TSC_SIGSEGV"),
        );
    }
    if let Some(ns) = counter.read_ns.filter(|ns| *ns > EXPENSIVE_COUNTER_NS) {
        let says = format!("reading the counter itself costs {ns:.0} ns: no vDSO can be faster than that");
        let found = finding("counter-expensive", Severity::Slow, says)
            .proof("measured", &format!("{}: {ns:.1} ns", counter.name));
        findings.push(match &facts.machine.hypervisor {
            Some(hypervisor) => found.because(&format!("{hypervisor} seems to trap the instruction")),
            None => found,
        });
    }
    findings.extend(slow_on_some_cpus(facts));
    let in_use = facts.clocksource.current.as_deref().is_some_and(causes::is_counter);
    if let Some(worst) = counter.evidence.warp.as_ref().and_then(Warp::furthest_apart) {
        let says = format!(
            "the counters of CPU {} and CPU {} are apart by {} cycles or more{}",
            worst.cpu,
            worst.other,
            worst.apart_cycles(),
            if in_use {
                ", and the kernel's clock is read from them: time goes backwards between CPUs"
            } else {
                ""
            }
        );
        let explained = match counter.evidence.warp.as_ref().map(Warp::offsets) {
            Some(Ok(offsets)) => format!(
                "; constant offsets of up to {} cycles explain all that was measured",
                offsets.spread_cycles()
            ),
            _ => "; no constant offsets explain what was measured, so some counters run at other rates, or jump"
                .to_owned(),
        };
        let says = says + &explained + &drift(facts);
        let bounds = format!("{} to {} cycles", worst.least_cycles, worst.most_cycles);
        let severity = if in_use { Severity::Wrong } else { Severity::Note };
        findings.push(finding("counters-apart", severity, says).proof("measured", &bounds));
    }
    if counter.evidence.features.is_some_and(|features| !features.invariant) {
        let used = if in_use {
            ", and the kernel's clock is read from it"
        } else {
            ""
        };
        let says = format!("the CPU does not guarantee that its counter keeps one rate{used}");
        findings
            .push(finding("counter-not-invariant", Severity::Note, says).proof(Features::INVARIANT_SOURCE, "not set"));
    }
    findings.extend(rate_mismatch(facts, in_use));
    findings
}

fn slow_on_some_cpus(facts: &Facts) -> Option<Finding> {
    let slow = facts.counter.slow_cpus();
    if slow.is_empty() {
        return None;
    }
    let cpus = slow.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let says =
        format!("on CPU {cpus}, the kernel answers reads of the counter: there, no vDSO is faster than a system call");
    let found = finding("counter-slow-on-some-cpus", Severity::Slow, says)
        .proof("measured", "a read on each CPU, against a system call");
    let Some(process) = &facts.process else {
        return Some(found);
    };
    let threads = &process.cpus_of_threads;
    let there = threads.iter().filter(|cpu| slow.contains(cpu)).count();
    let all = threads.len();
    Some(found.because(&format!(
        "{there} of the {all} threads of process {} ran there last",
        process.pid
    )))
}

/// Describes how the counters' rates differ.
fn drift(facts: &Facts) -> String {
    let drifts = &facts.counter.drifts;
    let most = |drift: &Drift| drift.ppm.abs() + drift.error_ppm;
    match (
        facts.counter.fastest_drift(),
        drifts.iter().map(most).max_by(f64::total_cmp),
    ) {
        (Some(worst), _) => format!("; {worst}"),
        (None, Some(most)) => format!("; their rates differ by {most:.2} ppm at most"),
        (None, None) => String::new(),
    }
}

fn rate_mismatch(facts: &Facts, in_use: bool) -> Option<Finding> {
    // The kernel's own clock is derived from the rate that the kernel states, so if the two differ, that rate is wrong.
    let (stated, ppm) = facts.misstated_rate()?;
    let measured = facts.counter.measured.as_ref()?;
    let says = format!(
        "the counter runs at {}, which is {ppm:+.0} ppm off the stated rate",
        megahertz(measured.hz)
    );
    let severity = if in_use { Severity::Wrong } else { Severity::Note };
    Some(
        finding("rate-mismatch", severity, says)
            .proof(&stated.source, &megahertz(stated.hz))
            .proof(&measured.against, &megahertz(measured.hz)),
    )
}
