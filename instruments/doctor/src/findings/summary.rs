//! The verdict and its sentence.

use super::super::facts::{Facts, VdsoKind};
use super::super::words::nanoseconds;
use super::finding::{Finding, Severity, Verdict};
use super::process::is_about_process;
use fastpath_measure::clocks::Clock;
use fastpath_measure::probe::MeasuredCall;

impl Verdict {
    /// Returns the verdict on the process that was asked about or, without one, on the host.
    pub(crate) fn from_facts(facts: &Facts, findings: &[Finding]) -> Verdict {
        let of = |severities: Vec<Severity>| match severities.iter().min() {
            Some(Severity::Wrong) => Verdict::Wrong,
            Some(Severity::Slow) => Verdict::Slow,
            Some(Severity::Unknown) => Verdict::Unknown,
            Some(Severity::Note) | None => Verdict::Healthy,
        };
        let severities = |of_process: bool| {
            let wanted = |finding: &&Finding| is_about_process(finding) == of_process;
            findings
                .iter()
                .filter(wanted)
                .map(|finding| finding.severity)
                .collect::<Vec<_>>()
        };
        let Some(process) = &facts.process else {
            return of(severities(false));
        };
        match (of(severities(true)), process.vdso) {
            // The process reads the clocks as this process does.
            (Verdict::Healthy, Some(VdsoKind::Kernel)) => of(severities(false)),
            (verdict, _) => verdict,
        }
    }
}

/// Returns the verdict in a sentence.
pub(crate) fn summary(facts: &Facts, findings: &[Finding], verdict: Verdict) -> String {
    let subject = facts.process.as_ref().map(|process| {
        let name = process.name.as_deref().unwrap_or("process");
        format!("{name} ({})", process.pid)
    });
    let gravest = |severity| {
        findings
            .iter()
            .find(|finding| finding.severity == severity)
            .map(|finding| finding.says.clone())
    };
    match verdict {
        Verdict::Healthy => {
            let whose = match &subject {
                Some(name) if is_served(facts) => format!("the clocks of {name} are fast by fastpath"),
                Some(name) => format!("every clock that can be fast is fast for {name}"),
                None => "every clock that can be fast is fast".to_owned(),
            };
            format!("{whose}{}", reference(facts))
        }
        Verdict::Slow => named(subject, gravest(Severity::Slow)),
        Verdict::Wrong => named(subject, gravest(Severity::Wrong)),
        Verdict::Unknown => named(subject, gravest(Severity::Unknown)),
    }
}

fn is_served(facts: &Facts) -> bool {
    facts
        .process
        .as_ref()
        .filter(|process| process.vdso == Some(VdsoKind::Fastpath))
        .and_then(|process| process.page.as_ref()?.serves.as_ref())
        .is_some_and(|serves| !serves.is_empty())
}

fn named(subject: Option<String>, says: Option<String>) -> String {
    let says = says.unwrap_or_else(|| "the verdict could not be determined".to_owned());
    subject.map_or(says.clone(), |subject| format!("{subject}: {says}"))
}

fn reference(facts: &Facts) -> String {
    let monotonic = facts.clocks.iter().find(|report| report.clock == Clock::MONOTONIC);
    match monotonic.map(|report| &report.measured) {
        Some(MeasuredCall {
            ns: Some(ns),
            syscall_ns: Some(call),
            ..
        }) if !is_served(facts) => format!(
            ": MONOTONIC {}, by system call {}",
            nanoseconds(*ns),
            nanoseconds(*call)
        ),
        _ => String::new(),
    }
}
