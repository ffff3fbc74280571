//! `fastpath audit --rescue`: which system calls `--rescue` would redirect, and why not the others.

use std::sync::atomic::Ordering;
use std::time::Duration;

use fastpath_code::rescue::RescueSite;
use fastpath_code::rescue::window::WindowKind;
use fastpath_os::printable;
use fastpath_tools::audit::{AuditFinding, AuditOptions, CallKind, Progress};

use crate::document;
use crate::exit;
use crate::output;
use crate::progress;

/// What is printed with `--json`.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub struct RescueReport {
    /// Files that have sites
    files: Vec<FileSites>,
    /// Sites that `--rescue` redirects
    proven: usize,
    /// Sites that it leaves alone
    refused: usize,
    /// Files that were not examined
    unjudged: Vec<fastpath_tools::audit::Unjudged>,
}

/// The sites of one file.
#[derive(serde::Serialize, schemars::JsonSchema)]
struct FileSites {
    /// The file
    path: String,
    /// Its system calls for time, lowest address first
    sites: Vec<OneSite>,
}

/// One system call for time.
#[derive(serde::Serialize, schemars::JsonSchema)]
struct OneSite {
    /// Address of the instruction as the file states it, before relocation
    address: u64,
    /// The call, or `any call` where its number is an argument, as in libc's `syscall()`
    calls: String,
    /// How it is called
    by: CallKind,
    /// The bytes that are replaced; nothing: the site is left alone
    window: Option<WindowKind>,
    /// Why the site is left alone
    why_not: Option<String>,
}

impl From<RescueSite> for OneSite {
    fn from(site: RescueSite) -> OneSite {
        OneSite {
            address: site.address,
            calls: site.calls.to_string(),
            by: site.by,
            window: site.window.as_ref().ok().map(|window| window.kind),
            why_not: site.window.err().map(|reason| reason.to_string()),
        }
    }
}

/// Returns the sentence that names `--rescue` as the remedy, if it is one.
pub fn remedy(finding: &AuditFinding) -> Option<String> {
    let proven = finding.rescuable?;
    let commands = match finding.isa {
        "x86_64" => "`fastpath run --rescue` and `fastpath attach --rescue` redirect",
        _ => "`fastpath run --rescue` redirects",
    };
    let calls = finding.site_count;
    Some(format!("Without a new build: {commands} {proven} of {calls} calls."))
}

/// Runs the dry run; returns its exit status.
pub fn run(paths: &[std::path::PathBuf], json: bool) -> i32 {
    let progress = Progress::default();
    let so_far = || format!("{} files", progress.files.load(Ordering::Relaxed));
    let (report, missing) = progress::watched(Duration::from_millis(100), so_far, || gather(paths, &progress));
    for missing in &missing {
        output::note(format_args!("{}: {}", printable(&missing.path), missing.why));
    }
    let written = if json {
        document::print("audit --rescue", &report)
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
    match written {
        0 if !missing.is_empty() => exit::NO_INPUT,
        written => written,
    }
}

fn gather(paths: &[std::path::PathBuf], progress: &Progress) -> (RescueReport, Vec<fastpath_tools::audit::Unjudged>) {
    let options = AuditOptions {
        with_programs: true,
        with_sites: true,
        ..AuditOptions::default()
    };
    let audited = fastpath_tools::audit::audit(paths, &options, progress);
    let mut report = RescueReport {
        files: Vec::new(),
        proven: 0,
        refused: 0,
        unjudged: audited.unjudged,
    };
    for program in audited.programs {
        let in_archive = || Err("--rescue examines no files in archives".to_owned());
        match program.sites.unwrap_or_else(in_archive) {
            Ok(sites) if sites.is_empty() => {}
            Ok(sites) => {
                let proven = sites.iter().filter(|site| site.window.is_ok()).count();
                report.proven += proven;
                report.refused += sites.len() - proven;
                report.files.push(FileSites {
                    path: program.path,
                    sites: sites.into_iter().map(OneSite::from).collect(),
                });
            }
            Err(why) => report.unjudged.push(fastpath_tools::audit::Unjudged {
                path: program.path,
                why,
            }),
        }
    }
    (report, audited.missing)
}

fn text(report: &RescueReport) -> String {
    let mut text = String::new();
    for file in &report.files {
        text += &format!("{}\n", printable(&file.path));
        for site in &file.sites {
            let verdict = match (&site.window, &site.why_not) {
                (Some(_), _) => output::painted("rescued", output::Paint::Good),
                (None, why) => format!(
                    "{}: {}",
                    output::painted("left alone", output::Paint::Doubtful),
                    why.as_deref().unwrap_or_default()
                ),
            };
            let by = match site.by {
                CallKind::SystemCall => "system call",
                CallKind::Vsyscall => "vsyscall",
            };
            text += &format!("  {:#x}  {} by {by}: {verdict}\n", site.address, site.calls);
        }
    }
    text + &format!(
        "{} system calls in {} files: --rescue would redirect {}, and leave {} alone\n",
        report.proven + report.refused,
        report.files.len(),
        report.proven,
        report.refused
    )
}
