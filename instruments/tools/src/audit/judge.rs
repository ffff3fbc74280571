//! Derives the findings from the contents of a file.

use crate::audit::facts::{self, FileFacts, Runtime};
use crate::audit::families;
use crate::audit::report::{AuditFinding, AuditedProgram, CodePlace, Judged};
use crate::audit::rules::{AuditRule, Level};
use fastpath_code::bytes::Bytes;
use fastpath_code::calls::{self, CallKind, CodeSite, CounterRead};
use fastpath_code::elf::{self, Elf, Kind};
use fastpath_code::rescue::{self, Analysis, Calls};

/// Largest number of sites that a finding lists; it counts them all.
const SHOWN_SITES: usize = 16;
/// Size in bytes above which `--rescue` does not examine a file.
const MOST_RESCUED: u64 = 512 << 20;

impl Judged {
    /// Returns about how much memory the result takes.
    pub(crate) fn bytes(&self) -> usize {
        let sites = |finding: &AuditFinding| finding.sites.capacity() * size_of::<CodePlace>();
        let findings = self
            .findings
            .iter()
            .map(|finding| size_of::<AuditFinding>() + sites(finding));
        let reads = self.counter_reads.capacity() * size_of::<CounterRead>();
        let calls = self.calls.capacity() * size_of::<CodeSite>();
        size_of::<Judged>() + calls + findings.sum::<usize>() + reads
    }

    /// Determines which calls `--rescue` redirects, and why not the others. Reads the whole file.
    ///
    /// # Errors
    /// Fails with the reason why the file cannot be examined.
    pub fn analyse<B: Bytes + ?Sized>(&self, bytes: &B) -> Result<Analysis, String> {
        let whole = whole(bytes).map_err(|e| format!("it cannot be read: {e}"))?;
        rescue::analyse_found(&whole, || Ok(self.calls.clone()))
    }

    /// Counts the calls of each finding that `--rescue` redirects.
    pub(crate) fn count(&mut self, analysis: &Analysis) {
        for finding in self.findings.iter_mut().filter(|finding| finding.has_calls()) {
            let by = match finding.rule {
                AuditRule::Vsyscall => CallKind::Vsyscall,
                _ => CallKind::SystemCall,
            };
            let reads_a_clock = |calls: Calls| matches!(calls, Calls::One(call) if call.reads_a_clock());
            let is_proven =
                |site: &&rescue::RescueSite| site.by == by && reads_a_clock(site.calls) && site.window.is_ok();
            finding.rescuable = Some(analysis.sites.iter().filter(is_proven).count()).filter(|proven| *proven > 0);
        }
    }
}

/// Reads a file, if it is not too large.
fn whole<B: Bytes + ?Sized>(bytes: &B) -> std::io::Result<Vec<u8>> {
    if bytes.length() > MOST_RESCUED {
        return Err(std::io::Error::other(format!("larger than {} MiB", MOST_RESCUED >> 20)));
    }
    let mut whole = Vec::new();
    let length = bytes.length() as usize;
    whole
        .try_reserve_exact(length)
        .map_err(|_| std::io::ErrorKind::OutOfMemory)?;
    whole.resize(length, 0);
    bytes.read_exact_at(0, &mut whole)?;
    Ok(whole)
}

/// Judges one file. `None` if it is not run on one of the ISAs of the images.
///
/// # Errors
/// Fails with the reason why an ELF file cannot be judged.
pub fn judge<B: Bytes + ?Sized>(bytes: &B) -> Result<Option<Judged>, String> {
    let mut first = [0; 4];
    if bytes.length() < 4 || bytes.read_exact_at(0, &mut first).is_err() || !elf::is_elf(&first) {
        return Ok(None);
    }
    let Some(elf) = elf::read(bytes)? else {
        return Ok(None);
    };
    let unreadable = |e: std::io::Error| format!("it cannot be read: {e}");
    let mut found = calls::find(elf.isa, bytes, &elf.code).map_err(unreadable)?;
    let all = found.sites.clone();
    found.sites.retain(|site| site.call.reads_a_clock());
    if !found.is_complete() {
        return Err("its code has more system calls than any program: not judged".to_owned());
    }
    // Facts are needed only of static programs and of files with calls.
    let facts = if elf.kind == Kind::StaticProgram || !found.sites.is_empty() {
        facts::read(bytes, &elf).map_err(unreadable)?
    } else {
        FileFacts::default()
    };
    let program = AuditedProgram {
        path: String::new(),
        isa: elf.isa.name(),
        kind: elf.kind,
        runtime: facts.runtime.clone(),
        looks_for_vdso: facts.lookups,
        system_calls: found.sites.len(),
        sites: None,
    };
    let counter_reads = counter_reads(&elf, &facts, found.counter_reads);
    let mut findings = findings(&elf, &facts, &found.sites, &counter_reads);
    if !counter_reads.is_empty() {
        let families = families::find(bytes).map_err(unreadable)?;
        let of_reads = findings.iter_mut().filter(|finding| finding.rule.is_about_counter());
        of_reads.for_each(|finding| finding.families.clone_from(&families));
    }
    Ok(Some(Judged {
        program,
        findings,
        counter_reads,
        calls: all,
    }))
}

/// Returns the reads of the counter that are worth a note.
fn counter_reads(elf: &Elf, facts: &FileFacts, mut reads: Vec<CounterRead>) -> Vec<CounterRead> {
    let sections = &elf.code_sections;
    let is_code = |at: u64| sections.is_empty() || sections.iter().any(|section| section.contains(&at));
    let is_glibc = facts.runtime.as_ref().is_some_and(|runtime| runtime.name == "glibc");
    // Go and glibc read the counter for profiles, for the statistics of their start and while a lock is busy.
    let are_of_runtime = elf.go.is_some() || (elf.kind == Kind::StaticProgram && is_glibc);
    let is_harmless = |read: &CounterRead| elf.is_of_shared_glibc || (are_of_runtime && !read.is_scaled);
    reads.retain(|read| is_code(read.address) && !is_harmless(read));
    reads
}

fn findings(elf: &Elf, facts: &FileFacts, sites: &[CodeSite], counter_reads: &[CounterRead]) -> Vec<AuditFinding> {
    let places = |by: CallKind| {
        sites
            .iter()
            .filter(move |site| site.by == by)
            .map(CodePlace::from)
            .collect()
    };
    let vsyscalls: Vec<CodePlace> = places(CallKind::Vsyscall);
    // A shared glibc gets the vDSO's functions from its loader.
    let own: Vec<CodePlace> = if elf.is_of_shared_glibc {
        Vec::new()
    } else {
        places(CallKind::SystemCall)
    };
    let runtime = facts.runtime.as_ref();
    let is = |name| runtime.is_some_and(|runtime| runtime.name == name);
    let mut found = Vec::new();
    let mut add =
        |rule: AuditRule, level: Level, sites: Vec<CodePlace>| found.push(finding(elf, runtime, rule, level, sites));
    if facts.lookups.any() {
        // A file that looks up the vDSO will take the fast path.
    } else if elf.kind == Kind::StaticProgram {
        let rule = if is("go") {
            AuditRule::Go
        } else if is("glibc") {
            AuditRule::StaticGlibc
        } else if is("musl") {
            AuditRule::StaticMusl
        } else {
            AuditRule::Static
        };
        if !own.is_empty() {
            add(rule, rule.level(), own);
        } else if rule == AuditRule::StaticGlibc && vsyscalls.is_empty() {
            add(rule, Level::Note, own);
        }
    } else if !own.is_empty() {
        let rule = if elf.kind == Kind::Library && is("musl") {
            AuditRule::Libc
        } else {
            AuditRule::OwnSystemCall
        };
        add(rule, rule.level(), own);
    }
    if !vsyscalls.is_empty() {
        add(AuditRule::Vsyscall, AuditRule::Vsyscall.level(), vsyscalls);
    }
    let (scaled, others): (Vec<&CounterRead>, Vec<&CounterRead>) =
        counter_reads.iter().partition(|read| read.is_scaled);
    for (rule, reads) in [(AuditRule::CounterAsClock, scaled), (AuditRule::Counter, others)] {
        if !reads.is_empty() {
            add(rule, rule.level(), reads.into_iter().map(CodePlace::from).collect());
        }
    }
    found
}

fn finding(
    elf: &Elf,
    runtime: Option<&Runtime>,
    rule: AuditRule,
    level: Level,
    mut sites: Vec<CodePlace>,
) -> AuditFinding {
    let count = sites.len();
    sites.truncate(SHOWN_SITES);
    sites.shrink_to_fit();
    AuditFinding {
        path: String::new(),
        layer: None,
        rule,
        level,
        isa: elf.isa.name(),
        kind: elf.kind,
        runtime: runtime.cloned(),
        says: rule.says(),
        help: rule.help(),
        sites,
        site_count: count,
        families: Vec::new(),
        rescuable: None,
    }
}
