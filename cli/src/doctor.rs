//! `fastpath doctor`: why clocks are slow here, or are not, and how to fix that.

use std::io;
use std::path::Path;
use std::time::Duration;

use fastpath_doctor::facts::Reads;
use fastpath_doctor::{Finding, Line, Mark, Options, Proof, Report, Unseen, Verdict};

use crate::args;
use crate::document;
use crate::exit;
use crate::output::{self, Paint, note, wrapped};
use crate::processes::Named;

/// Time after which a long examination is explained, in ms: it is rare.
const LONG_MS: libc::c_int = 2000;
/// Time for which a process's CPU time is sampled.
const SAMPLED: Duration = Duration::from_secs(1);

/// Runs the command; returns its exit status.
pub fn run(options: &args::Doctor) -> i32 {
    explain_a_long_wait();
    let process = match options.process.as_ref().map(Named::one).transpose() {
        Ok(pid) => pid,
        Err(why) => {
            note(why);
            return exit::NO_SUCH_PROCESS;
        }
    };
    let pid = process.map(i32::cast_unsigned);
    let sampling = pid.map(|pid| std::thread::Builder::new().spawn(move || sample(pid)));
    let examined = fastpath_doctor::examine(&Options {
        root: Path::new("/"),
        pid,
    });
    let report = match examined {
        Ok(report) => match sampling {
            Some(begun) => report.with_reads(begun.and_then(|thread| {
                let failed = |_| Err(io::Error::other("the thread that samples has failed"));
                thread.join().unwrap_or_else(failed)
            })),
            None => report,
        },
        Err(why) => {
            note(why);
            return exit::without(process);
        }
    };
    let written = if options.json {
        document::print("doctor", &report)
    } else {
        output::print(text(&report, options.verbose))
    };
    match (written, report.verdict) {
        (0, Verdict::Healthy) => 0,
        (0, Verdict::Slow | Verdict::Wrong) => exit::FOUND,
        (0, Verdict::Unknown) => exit::CANNOT_TELL,
        (written, _) => written,
    }
}

/// Samples the clock reads of a process. A seccomp filter might kill this process for that.
fn sample(pid: u32) -> io::Result<Reads> {
    let mode = fastpath_os::Status::read("self")
        .ok()
        .and_then(|status| status.number("Seccomp"));
    match mode {
        Some(0) => fastpath_tools::trace::reads(pid, SAMPLED),
        _ => Err(io::Error::other(
            "not tried: this process may be under a seccomp filter",
        )),
    }
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
fn text(report: &Report, with_evidence: bool) -> String {
    let mut text = headline(report);
    for finding in &report.findings {
        text += &of_finding(finding, &report.summary);
    }
    text += &gains(report);
    if !report.remedies.is_empty() {
        text += "\nWhat to do\n";
    }
    for remedy in &report.remedies {
        text += &wrapped(&format!("  {:<14}", remedy.when.words()), &remedy.does);
        text += &wrapped(&" ".repeat(16), &format!("Cost: {}.", remedy.price));
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
    text + &format!(
        "\n{} lines of evidence: fastpath doctor --verbose\n",
        report.evidence.len()
    )
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

fn headline(report: &Report) -> String {
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
fn of_finding(finding: &Finding, summary: &str) -> String {
    // The summary repeats the most severe finding's words.
    let is_said = summary.ends_with(&finding.says);
    let word = finding.severity.word();
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

fn gains(report: &Report) -> String {
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
    use fastpath_doctor::{Because, Severity};

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
        let once = of_finding(&finding, "app (7): there is no vDSO");
        assert_eq!(once, "  because  the hypervisor removed it\n");
        assert!(of_finding(&finding, "something else").starts_with("  slow     there is no vDSO.\n"));
    }
}
