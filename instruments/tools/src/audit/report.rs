//! The outcome of an audit.

use fastpath_code::rescue;
use serde::Serialize;

use crate::audit::facts::{Lookups, Runtime};
use crate::audit::families::Family;
use crate::audit::rules::{AuditRule, Level};
use fastpath_code::calls::{CallKind, CodeSite, CounterRead, TimeCall};
use fastpath_code::elf::Kind;

/// One file and its findings.
#[derive(Clone, Debug)]
pub struct Judged {
    pub program: AuditedProgram,
    pub findings: Vec<AuditFinding>,
    /// The reads of the counter that the findings are about, lowest address first.
    pub counter_reads: Vec<CounterRead>,
    /// The system calls for time and for the CPU's number, lowest address first.
    pub calls: Vec<CodeSite>,
}

/// What the code does at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Means {
    /// A system call.
    SystemCall,
    /// A call of an address in the vsyscall page.
    Vsyscall,
    /// A read of the CPU's counter.
    Counter,
}

/// One place in the code.
#[derive(Clone, Copy, Debug, Serialize, schemars::JsonSchema)]
pub struct CodePlace {
    /// Its address as the file states it, before relocation.
    pub address: u64,
    /// The call, unless it is a read of the counter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<TimeCall>,
    pub by: Means,
}

impl From<&CodeSite> for CodePlace {
    fn from(site: &CodeSite) -> CodePlace {
        CodePlace {
            address: site.address,
            call: Some(site.call),
            by: match site.by {
                CallKind::SystemCall => Means::SystemCall,
                CallKind::Vsyscall => Means::Vsyscall,
            },
        }
    }
}

impl From<&CounterRead> for CodePlace {
    fn from(read: &CounterRead) -> CodePlace {
        CodePlace {
            address: read.address,
            call: None,
            by: Means::Counter,
        }
    }
}

/// One reason why one file does not take the fast path.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct AuditFinding {
    /// The file; in an archive, the archive, `!/`, and the file in it.
    pub path: String,
    /// The layer of an image that contains the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// The rule of the finding.
    pub rule: AuditRule,
    /// The finding's level.
    pub level: Level,
    /// The file's instruction set.
    pub isa: &'static str,
    /// How it is linked.
    pub kind: Kind,
    /// The language runtime in it, if one is recognised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Runtime>,
    /// The statement of the finding, in a sentence.
    pub says: &'static str,
    /// The advice.
    pub help: &'static str,
    /// The first places in the code.
    pub sites: Vec<CodePlace>,
    /// Number of all sites.
    pub site_count: usize,
    /// The known code that the file contains and that reads the counter, for findings about such reads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub families: Vec<&'static Family>,
    /// Number of sites that `fastpath run --rescue` redirects, where there are any. Determined for files that are not in
    /// an archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rescuable: Option<usize>,
}

/// A file that was judged.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct AuditedProgram {
    /// The file; in an archive, the archive, `!/`, and the file in it.
    pub path: String,
    /// The file's instruction set.
    pub isa: &'static str,
    /// How it is linked.
    pub kind: Kind,
    /// The language runtime in it, if one is recognised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Runtime>,
    /// The functions of the vDSO that it looks up. Determined only for static programs, and for those that make system
    /// calls for time.
    pub looks_for_vdso: Lookups,
    /// Number of places that make a system call for time, including those behind the vDSO.
    pub system_calls: usize,
    /// What `--rescue` does with the system calls for time, or the reason why they were not examined. Determined on
    /// request, for files that are not in an archive.
    #[serde(skip)]
    pub sites: Option<Result<Vec<rescue::RescueSite>, String>>,
}

/// A file or archive that could not be judged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
pub struct Unjudged {
    /// The file or archive.
    pub path: String,
    /// The reason.
    pub why: String,
}

/// The totals of a report.
#[derive(Clone, Copy, Debug, Default, Serialize, schemars::JsonSchema)]
pub struct AuditSummary {
    /// Number of regular files that were examined.
    pub files: u64,
    /// Number of ELF files that are run, of the ISAs of the images.
    pub programs: u64,
    /// Findings of this level.
    pub errors: usize,
    /// Findings of this level.
    pub warnings: usize,
    /// Findings of this level.
    pub notes: usize,
    /// Number of files and archives that could not be judged, including those that are not listed.
    pub unjudged: usize,
    /// Number of those that are images, layers, or files that were requested by name.
    pub incomplete: usize,
    /// Duration of the audit.
    pub seconds: f64,
}

/// The outcome.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct AuditReport {
    /// The totals.
    pub summary: AuditSummary,
    /// The findings, the gravest first.
    pub findings: Vec<AuditFinding>,
    /// The programs that were judged, if requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<AuditedProgram>,
    /// Files and archives that could not be judged.
    pub unjudged: Vec<Unjudged>,
    /// Requested paths that do not exist or may not be read.
    pub missing: Vec<Unjudged>,
}

impl AuditFinding {
    /// Returns whether it is about calls that `--rescue` may redirect.
    pub(crate) fn has_calls(&self) -> bool {
        self.site_count > 0 && !self.rule.is_about_counter()
    }

    /// Returns the sentence that names the known code which reads the counter, if there is any.
    pub fn names_family(&self) -> Option<String> {
        let names: Vec<&str> = self.families.iter().map(|family| family.name).collect();
        let is_checked = self.families.iter().any(|family| family.is_checked);
        let checked = if is_checked {
            ", which tests the counter all the time"
        } else {
            ""
        };
        (!names.is_empty()).then(|| format!("It contains {}{checked}.", names.join(", ")))
    }
}

impl AuditReport {
    /// Returns the highest level of all findings.
    pub fn worst(&self) -> Option<Level> {
        self.findings.iter().map(|finding| finding.level).max()
    }
}

/// Largest number of findings that are kept, so that a malicious directory cannot fill the memory. All are counted.
const MOST_FINDINGS: usize = 50_000;
const MOST_LINES: usize = 10_000;
/// Most bytes of all paths that are kept: an archive can give a file a name of 64 KiB, and name it in a thousand
/// images.
const MOST_PATH_BYTES: usize = 32 << 20;

/// Collects the parts of a report.
#[derive(Default)]
pub(crate) struct Gathered {
    pub summary: AuditSummary,
    pub findings: Vec<AuditFinding>,
    pub programs: Vec<AuditedProgram>,
    pub unjudged: Vec<Unjudged>,
    pub missing: Vec<Unjudged>,
    path_bytes: usize,
}

impl Gathered {
    /// Returns whether one more path may be kept.
    fn has_room_for(&mut self, path: &str) -> bool {
        let bytes = self.path_bytes + path.len();
        if bytes <= MOST_PATH_BYTES {
            self.path_bytes = bytes;
        }
        bytes <= MOST_PATH_BYTES
    }

    pub(crate) fn add(&mut self, path: &str, layer: Option<&str>, judged: Judged, with_programs: bool) {
        self.summary.programs += 1;
        for mut finding in judged.findings {
            match finding.level {
                Level::Error => self.summary.errors += 1,
                Level::Warning => self.summary.warnings += 1,
                Level::Note => self.summary.notes += 1,
            }
            if self.findings.len() < MOST_FINDINGS && self.has_room_for(path) {
                path.clone_into(&mut finding.path);
                finding.layer = layer.map(str::to_owned);
                self.findings.push(finding);
            }
        }
        if with_programs && self.programs.len() < MOST_FINDINGS && self.has_room_for(path) {
            let mut program = judged.program;
            path.clone_into(&mut program.path);
            self.programs.push(program);
        }
    }

    pub(crate) fn give_up(&mut self, path: String, why: String) {
        self.summary.unjudged += 1;
        if self.unjudged.len() < MOST_LINES && self.has_room_for(&path) {
            self.unjudged.push(Unjudged { path, why });
        }
    }

    /// Records that an image, a layer of one or a requested file could not be judged as a whole.
    pub(crate) fn give_up_image(&mut self, path: String, why: String) {
        self.summary.incomplete += 1;
        self.give_up(path, why);
    }

    /// Adds what another thread has collected.
    pub(crate) fn append(&mut self, other: Gathered) {
        self.summary.programs += other.summary.programs;
        self.summary.errors += other.summary.errors;
        self.summary.warnings += other.summary.warnings;
        self.summary.notes += other.summary.notes;
        self.summary.unjudged += other.summary.unjudged;
        self.summary.incomplete += other.summary.incomplete;
        for finding in other.findings {
            if self.findings.len() < MOST_FINDINGS && self.has_room_for(&finding.path) {
                self.findings.push(finding);
            }
        }
        for program in other.programs {
            if self.programs.len() < MOST_FINDINGS && self.has_room_for(&program.path) {
                self.programs.push(program);
            }
        }
        for unjudged in other.unjudged {
            if self.unjudged.len() < MOST_LINES && self.has_room_for(&unjudged.path) {
                self.unjudged.push(unjudged);
            }
        }
    }

    pub(crate) fn into_report(mut self, seconds: f64) -> AuditReport {
        self.summary.seconds = seconds;
        self.findings.sort_by(|a, b| (&a.path, a.rule).cmp(&(&b.path, b.rule)));
        self.programs.sort_by(|a, b| a.path.cmp(&b.path));
        self.unjudged.sort();
        AuditReport {
            summary: self.summary,
            findings: self.findings,
            programs: self.programs,
            unjudged: self.unjudged,
            missing: self.missing,
        }
    }
}
