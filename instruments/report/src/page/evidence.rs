//! Doctor's findings and their evidence.

use super::heading;
use super::missing::why_missing;
use crate::data::{Doctor, Host, Part};
use crate::words::{breakable, ended, sentence, shown};
use fastpath_doctor::{Finding, Line, Mark, Proof};
use maud::{Markup, html};

pub(super) fn section(host: &Host, index: usize, level: u8) -> Markup {
    let id = format!("h{index}-evidence");
    html! {
        section aria-labelledby=(id) {
            (heading(level, &id, "Findings and evidence"))
            @match &host.doctor {
                Some(doctor) => (of_doctor(doctor)),
                None => (why_missing(host, Part::Doctor)),
            }
        }
    }
}

fn of_doctor(doctor: &Doctor) -> Markup {
    html! {
        @if doctor.findings.is_empty() { p { "Nothing was found that would make clocks slow or wrong." } }
        @else { ul.findings { @for finding in &doctor.findings { (of_finding(finding)) } } }
        @if !doctor.evidence.is_empty() {
            details {
                summary { "Evidence: " (crate::words::plural(doctor.evidence.len() as u64, "fact")) ", each with its source" }
                @for section in doctor.evidence.chunk_by(|a, b| a.section == b.section) { (lines(section)) }
            }
        }
        @if !doctor.unseen.is_empty() {
            details {
                summary { "Could not be seen: " (doctor.unseen.len()) }
                ul {
                    @for unseen in &doctor.unseen {
                        li { (sentence(&ended(&unseen.what))) " " (source(&unseen.source)) " " (sentence(&unseen.why)) "; " (sentence(&unseen.remedy)) }
                    }
                }
            }
        }
    }
}

fn of_finding(finding: &Finding) -> Markup {
    html! {
        li {
            span.severity.{ "severity-" (finding.severity.word()) } { (finding.severity.word()) } " "
            (sentence(&ended(&finding.says)))
            @for proof in &finding.proofs { (of_proof(proof)) }
            @if !finding.because.is_empty() {
                ul {
                    @for because in &finding.because {
                        li { "because " (sentence(&because.says)) @if let Some(proof) = &because.proof { (of_proof(proof)) } }
                    }
                }
            }
        }
    }
}

fn of_proof(proof: &Proof) -> Markup {
    html! { div.proof { (source(&proof.source)) " " (shown(&proof.shows)) } }
}

fn source(source: &str) -> Markup {
    html! { span.source { (breakable(source)) } }
}

fn lines(lines: &[Line]) -> Markup {
    html! {
        table.evidence {
            caption { span { (shown(&lines[0].section)) } }
            thead.sr { tr { th scope="col" { "Fact" } th scope="col" { "Seen" } th scope="col" { "Source" } } }
            tbody {
                @for line in lines {
                    tr {
                        th scope="row" { (mark(line.mark)) (shown(&line.what)) }
                        td { (sentence(&line.shows)) }
                        td { (source(&line.source)) }
                    }
                }
            }
        }
    }
}

fn mark(mark: Mark) -> Markup {
    let (class, shape, word) = match mark {
        Mark::Ok => ("ok", "✓", "good"),
        Mark::Bad => ("bad", "✕", "bad"),
        Mark::Unknown => ("unknown", "?", "unknown"),
        Mark::Info => ("info", "·", "neither good nor bad"),
    };
    html! { span.fact.{ "fact-" (class) } { span aria-hidden="true" { (shape) } span.sr { (word) ": " } } }
}
