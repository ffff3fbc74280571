//! `fastpath doctor`: why clocks are slow here, or are not, and how to fix that.

use std::path::Path;
use std::time::Duration;

use fastpath_doctor::{DoctorOptions, DoctorReport, Finding, Line, Mark, Proof, Severity, Unseen, Verdict};

use crate::args;
use crate::document;
use crate::exit;
use crate::file;
use crate::output::{self, Paint, note, wrapped};
use crate::processes::{listed, none_is_called, status_of_none};

/// Time after which a long examination is explained, in ms: it is rare.
const LONG_MS: libc::c_int = 2000;
/// Time for which a process's CPU time is sampled.
const SAMPLED: Duration = Duration::from_secs(1);
/// Least such time where several processes share it.
const LEAST_SAMPLED: Duration = Duration::from_millis(200);

/// Runs the command; returns its exit status.
pub fn run(options: &args::Doctor) -> i32 {
    if let Some(path) = &options.replay {
        let examined = file::read(path).and_then(|(name, text)| fastpath_report::examined(&text, &name));
        return print_or_note(options, examined, exit::NO_INPUT);
    }
    explain_a_long_wait();
    let Some(name) = &options.process else {
        return print_or_note(options, examine(options, None, SAMPLED), exit::CANNOT_TELL);
    };
    let pids = name.all();
    let sampled = (SAMPLED / pids.len().max(1) as u32).max(LEAST_SAMPLED);
    let mut reports = Vec::new();
    let mut status = 0;
    // The host of several is examined once.
    let host = (pids.len() > 1).then(|| examine(options, None, sampled));
    for pid in &pids {
        let examined = match &host {
            Some(host) => host
                .clone()
                .and_then(|host| host.on_process(pid.cast_unsigned(), sampled)),
            None => examine(options, Some(*pid), sampled),
        };
        match examined {
            Ok(report) => reports.push(report),
            Err(why) => {
                let failed = exit::without(Some(*pid));
                // One of several may end meanwhile.
                if failed != exit::NO_SUCH_PROCESS || pids.len() == 1 {
                    note(why);
                    status = failed;
                }
            }
        }
    }
    if reports.is_empty() {
        if status == 0 {
            note(none_is_called(name));
            status = status_of_none();
        }
        return status;
    }
    match print(options, &reports) {
        0 => status,
        printed => printed,
    }
}

/// Examines this host, and a process.
fn examine(options: &args::Doctor, process: Option<i32>, sampled: Duration) -> Result<DoctorReport, String> {
    fastpath_doctor::examine(&DoctorOptions {
        pid: process.map(i32::cast_unsigned),
        sampled,
        rate: Duration::from_secs(options.rate.unwrap_or_default().into()),
        ..DoctorOptions::host()
    })
}

/// Prints the report on a host; returns the exit status, `without` if there is no report.
fn print_or_note(options: &args::Doctor, report: Result<DoctorReport, String>, without: i32) -> i32 {
    match report {
        Ok(report) => print(options, &[report]),
        Err(why) => {
            note(why);
            without
        }
    }
}

/// Writes the report on a host without names.
fn write_evidence(path: &Path, report: &DoctorReport) -> Result<(), String> {
    let line = document::line("doctor", &report.without_names())?;
    file::replace(path, &line).map_err(|error| format!("doctor: {}: {error}", path.display()))
}

/// Prints the reports; returns the exit status, the most severe first.
fn print(options: &args::Doctor, reports: &[DoctorReport]) -> i32 {
    if let (Some(path), [report]) = (&options.evidence, reports)
        && let Err(why) = write_evidence(path, report)
    {
        note(why);
        return exit::NOT_WRITTEN;
    }
    let is_printed = options.evidence.as_deref().is_some_and(file::is_standard_output);
    let written = if is_printed {
        0
    } else if options.json {
        let printed = reports.iter().map(|report| document::print("doctor", report));
        printed.max().unwrap_or(0)
    } else {
        output::print(texts(reports, options.verbose))
    };
    let is_any = |verdicts: &[Verdict]| reports.iter().any(|report| verdicts.contains(&report.verdict));
    if written != 0 {
        written
    } else if is_any(&[Verdict::Slow, Verdict::Wrong]) {
        exit::FOUND
    } else if is_any(&[Verdict::Unknown]) {
        exit::CANNOT_TELL
    } else {
        0
    }
}

/// Returns the text of each report. Of processes with the same findings, only the first is described.
fn texts(reports: &[DoctorReport], with_evidence: bool) -> String {
    let findings = |report: &DoctorReport| {
        let ids: Vec<_> = report.findings.iter().map(|finding| finding.id.clone()).collect();
        (report.verdict, ids)
    };
    let mut groups: Vec<Vec<&DoctorReport>> = Vec::new();
    for report in reports {
        match groups.iter_mut().find(|group| findings(group[0]) == findings(report)) {
            Some(group) => group.push(report),
            None => groups.push(vec![report]),
        }
    }
    let of_group = |group: &Vec<&DoctorReport>| {
        let text = text(group[0], with_evidence);
        let processes = group.iter().filter_map(|report| report.facts.process.as_ref());
        let pids: Vec<_> = processes.map(|process| process.pid.cast_signed()).collect();
        match pids.len() {
            0 | 1 => text,
            count => {
                wrapped(
                    "",
                    &format!("{count} processes are alike: {}. The first:", listed(&pids)),
                ) + &text
            }
        }
    };
    groups.iter().map(of_group).collect::<Vec<_>>().join("\n")
}

/// Explains a long wait, if a thread may be started.
fn explain_a_long_wait() {
    let _ = std::thread::Builder::new().spawn(|| {
        // SAFETY: poll of no descriptors only waits. (The standard library's sleep panics where a seccomp filter
        // forbids it.)
        if unsafe { libc::poll(std::ptr::null_mut(), 0, LONG_MS) } == 0 {
            output::progress("still measuring; the machine is busy, or its clocks are very slow");
        }
    });
}

/// Returns verdict, reason, advice, facts that could not be read, and the evidence if requested: without it, the rest
/// fits on one screen.
fn text(report: &DoctorReport, with_evidence: bool) -> String {
    let mut text = headline(report);
    // Where fastpath serves the process, the faults of its host do not matter to it, and come last.
    let is_healthy = report.verdict == Verdict::Healthy;
    let (host, own): (Vec<_>, Vec<_>) = report
        .findings
        .iter()
        .partition(|finding| is_healthy && finding.severity != Severity::Note);
    for finding in own {
        text += &of_finding(finding, finding.severity.word(), &report.summary);
    }
    for finding in host {
        text += &of_finding(finding, "host", &report.summary);
    }
    text += &gains(report);
    if !report.remedies.is_empty() {
        text += "\nWhat to do\n";
    }
    for remedy in &report.remedies {
        text += &wrapped(&format!("  {:<14}", remedy.when.words()), &remedy.does);
        text += &wrapped(&" ".repeat(16), &format!("Cost: {}.", remedy.cost));
    }
    if !report.unseen.is_empty() {
        text += "\nCould not be seen\n";
    }
    for unseen in &report.unseen {
        text += &of_unseen(unseen);
    }
    if with_evidence {
        return text + "\nEvidence" + &evidence(&report.evidence);
    }
    let process = report.facts.process.as_ref();
    let pid = process.map_or_else(String::new, |process| format!(" {}", process.pid));
    text += &format!(
        "\n{} lines of evidence: fastpath doctor --verbose{pid}\n",
        report.evidence.len()
    );
    if is_healthy && process.is_none() {
        text += "How much one program reads clocks: fastpath doctor PID\n";
    }
    text
}

fn evidence(lines: &[Line]) -> String {
    let mut text = String::new();
    for section in lines.chunk_by(|a, b| a.section == b.section) {
        let name = &section[0].section;
        // The source that all lines of a section share is printed once.
        let common = &section[0].source;
        if section.len() > 1 && section.iter().all(|line| line.source == *common) {
            text += &format!("\n  {name} [{common}]\n");
            text.extend(section.iter().map(|line| of_line(line, false)));
        } else {
            text += &format!("\n  {name}\n");
            text.extend(section.iter().map(|line| of_line(line, true)));
        }
    }
    text
}

fn headline(report: &DoctorReport) -> String {
    let word = report.verdict.word();
    let paint = match report.verdict {
        Verdict::Healthy => Paint::Good,
        Verdict::Slow | Verdict::Wrong => Paint::Bad,
        Verdict::Unknown => Paint::Doubtful,
    };
    let plain = wrapped("", &format!("{word}: {}.", report.summary));
    plain.replacen(word, &output::painted(word, paint), 1)
}

/// Returns the reason for the verdict, or another remark.
fn of_finding(finding: &Finding, word: &str, summary: &str) -> String {
    // The summary repeats the most severe finding's words.
    let is_said = summary.ends_with(&finding.says);
    let mut text = String::new();
    if !is_said {
        text += &wrapped(&format!("  {word:<9}"), &format!("{}.", finding.says));
    }
    for proof in &finding.proofs {
        text += &wrapped("           ", &in_brackets(proof));
    }
    for why in &finding.because {
        let proof = why
            .proof
            .as_ref()
            .map(|proof| format!(" {}", in_brackets(proof)))
            .unwrap_or_default();
        text += &wrapped("  because  ", &format!("{}{proof}", why.says));
    }
    text
}

fn in_brackets(proof: &Proof) -> String {
    format!("[{}: {}]", proof.source, proof.shows)
}

fn gains(report: &DoctorReport) -> String {
    if report.gains.is_empty() {
        return String::new();
    }
    let mut text = "\nCost of a call for that process, now and under fastpath (estimated)\n".to_owned();
    for gain in &report.gains {
        let times = gain.now_ns / gain.under_fastpath_ns;
        text += &format!(
            "  {:<14}{:>9.1} ns   {:>6.1} ns   {times:.0}x\n",
            gain.clock.name(),
            gain.now_ns,
            gain.under_fastpath_ns
        );
    }
    text
}

fn of_unseen(unseen: &Unseen) -> String {
    wrapped("  ", &format!("{}.", unseen.what))
        + &wrapped("    ", &format!("{}: {}", unseen.source, unseen.why))
        + &wrapped("    ", &format!("To see it: {}.", unseen.remedy))
}

/// Returns a line: its mark, its subject, the fact, and its source in brackets.
fn of_line(line: &Line, with_source: bool) -> String {
    let (mark, paint) = match line.mark {
        Mark::Ok => ("ok ", Paint::Good),
        Mark::Bad => ("BAD", Paint::Bad),
        Mark::Unknown => ("?  ", Paint::Doubtful),
        Mark::Info => ("-  ", Paint::Plain),
    };
    let source = if with_source {
        format!(" [{}]", line.source)
    } else {
        String::new()
    };
    let plain = wrapped(
        &format!("    {mark} {:<17}", line.what),
        &format!("{}{source}", line.shows),
    );
    plain.replacen(mark, &output::painted(mark, paint), 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastpath_doctor::Because;

    #[test]
    fn a_line_of_evidence_keeps_its_mark_its_fact_and_its_source() {
        let line = Line {
            section: "kernel".into(),
            what: "clocksource".to_owned(),
            shows: "hpet (available: hpet acpi_pm)".to_owned(),
            mark: Mark::Bad,
            source: "/sys/devices/system/clocksource".to_owned(),
        };
        assert_eq!(
            of_line(&line, true),
            "    BAD clocksource      hpet (available: hpet acpi_pm)\n                         [/sys/devices/system/clocksource]\n"
        );
    }

    #[test]
    fn the_headline_is_not_repeated() {
        let finding = Finding {
            id: "no-vdso".into(),
            severity: Severity::Slow,
            says: "there is no vDSO".to_owned(),
            because: vec![Because {
                says: "the hypervisor removed it".to_owned(),
                proof: None,
            }],
            proofs: Vec::new(),
        };
        let once = of_finding(&finding, "slow", "app (7): there is no vDSO");
        assert_eq!(once, "  because  the hypervisor removed it\n");
        assert!(of_finding(&finding, "slow", "something else").starts_with("  slow     there is no vDSO.\n"));
    }
}
