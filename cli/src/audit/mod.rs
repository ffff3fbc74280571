//! `fastpath audit`: programs that will never take the fast path.

pub mod rescue;

use std::sync::atomic::Ordering;
use std::time::Duration;

use fastpath_os::printable;
use fastpath_tools::audit::{AuditFinding, AuditOptions, AuditReport, Level, Means, Progress, TimeCall, sarif};
use indicatif::HumanBytes;

use crate::args::{self, FailOn};
use crate::document;
use crate::exit;
use crate::output::{self, Paint};
use crate::progress;

/// Runs the command; returns its exit status.
pub fn run(options: &args::Audit) -> i32 {
    if options.rescue {
        return rescue::run(&options.paths, options.json);
    }
    let how = AuditOptions {
        with_programs: options.all,
        ..AuditOptions::default()
    };
    let progress = Progress::default();
    let so_far = || {
        let bytes = HumanBytes(progress.bytes.load(Ordering::Relaxed));
        format!("{} files, {bytes}", progress.files.load(Ordering::Relaxed))
    };
    let every = Duration::from_millis(100);
    let report = progress::watched(every, so_far, || {
        fastpath_tools::audit::audit(&options.paths, &how, &progress)
    });
    for missing in &report.missing {
        output::note(format_args!("{}: {}", printable(&missing.path), missing.why));
    }
    let written = if options.json {
        document::print("audit", &report)
    } else if options.sarif {
        output::print_json(&sarif(&report, env!("CARGO_PKG_VERSION")))
    } else {
        for unjudged in &report.unjudged {
            output::warn(format_args!(
                "{}: {}",
                printable(&unjudged.path),
                printable(&unjudged.why)
            ));
        }
        output::print(text(&report))
    };
    let is_found = match options.fail_on {
        FailOn::Never => false,
        FailOn::Note => report.worst() >= Some(Level::Note),
        FailOn::Warning => report.worst() >= Some(Level::Warning),
        FailOn::Error => report.worst() >= Some(Level::Error),
    };
    match written {
        0 if !report.missing.is_empty() || report.summary.incomplete > 0 => exit::NO_INPUT,
        0 if is_found => exit::FOUND,
        written => written,
    }
}

fn text(report: &AuditReport) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        text += &of_finding(finding);
    }
    for program in &report.programs {
        let runtime = program.runtime.as_ref().map_or_else(String::new, |runtime| {
            format!(
                ", {} {}",
                runtime.name,
                runtime.version.as_deref().unwrap_or("of an unknown version")
            )
        });
        text += &format!("examined   {}: {}{runtime}\n", printable(&program.path), program.isa);
    }
    let summary = &report.summary;
    text + &format!(
        "{} files, {} of them programs or libraries: {} errors, {} warnings, {} notes, {} not judged; {:.1} s\n",
        summary.files,
        summary.programs,
        summary.errors,
        summary.warnings,
        summary.notes,
        summary.unjudged,
        summary.seconds
    )
}

fn of_finding(finding: &AuditFinding) -> String {
    let (word, paint) = match finding.level {
        Level::Error => ("error", Paint::Bad),
        Level::Warning => ("warning", Paint::Doubtful),
        Level::Note => ("note", Paint::Plain),
    };
    let mut text = format!("{:<9} {}\n", output::painted(word, paint), printable(&finding.path));
    text += &output::wrapped("          ", &format!("{}. [{}]", finding.says, finding.rule.id()));
    let mut facts = finding.isa.to_owned();
    if let Some(runtime) = &finding.runtime {
        facts += &format!(", {}", runtime.name);
        if let Some(version) = &runtime.version {
            facts += &format!(" {version}");
        }
    }
    if let Some(layer) = &finding.layer {
        facts += &format!(", layer {}", printable(layer));
    }
    for site in finding.sites.iter().take(3) {
        let by = match site.by {
            Means::SystemCall => " by system call",
            Means::Vsyscall => " by vsyscall",
            Means::Counter => "the counter",
        };
        let call = site.call.map_or("", TimeCall::name);
        facts += &format!(", {call}{by} at {:#x}", site.address);
    }
    if finding.site_count > 3 {
        facts += &format!(", and {} more", finding.site_count - 3);
    }
    text += &output::wrapped("          ", &format!("{facts}."));
    if let Some(family) = finding.names_family() {
        text += &output::wrapped("          ", &family);
    }
    text += &output::wrapped("          ", &format!("To fix it: {}.", finding.help));
    if let Some(remedy) = rescue::remedy(finding) {
        text += &output::wrapped("          ", &remedy);
    }
    text
}
