//! `fastpath status`: the processes that have fastpath's page, and the state of the pages.

use std::time::Duration;

use fastpath_evidence::{PageCopy, Residuals};
use fastpath_inject::redirection::{Journal, Purpose};
use fastpath_measure::Clock;
use fastpath_os::Mapping;
use fastpath_page::{ClockSet, MAPPED_NAME, Page, Reader};
use fastpath_protocol::client::{Client, ClientError};
use fastpath_publish::counter;
use serde::{Deserialize, Serialize};

use crate::args;
use crate::document;
use crate::exit;
use crate::live::{self, Screen};
use crate::output;
use crate::processes;
use crate::unserved::{self, UnservedRequests};

/// The document that `--json` prints; later versions of the same schema only add fields.
#[derive(Serialize, schemars::JsonSchema)]
pub struct Status {
    /// Processes that have a page.
    processes: Vec<Served>,
    /// Processes whose mappings this user may not see.
    unreadable: usize,
    /// Processes that took too long to examine.
    unanswered: usize,
    /// The daemon of this host, if one runs.
    daemon: Option<Daemon>,
}

/// The state that a daemon reports.
#[derive(Serialize, schemars::JsonSchema)]
struct Daemon {
    /// fastpath's version.
    version: String,
    /// Its process id.
    pid: u32,
    /// Time since it was started.
    uptime_seconds: u64,
    /// Pages of all users.
    pages: usize,
    /// Requests so far.
    refused: u64,
    /// The file that its policy is read from.
    policy: Option<String>,
    /// Number of rules in the policy in force.
    rules: usize,
    /// Error in the policy file as it is now; the previous policy stays in force.
    policy_error: Option<String>,
    /// Method by which the daemon detects processes that the policy attaches.
    notices: Option<String>,
}

/// A process that has a page.
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
struct Served {
    /// The process id.
    pid: i32,
    /// The name of the process (proc_pid_comm(5)).
    comm: String,
    /// How it got its page.
    by: By,
    /// The rule of the daemon's policy that attached it.
    rule: Option<usize>,
    /// The system calls for time in its own code that are redirected (`--rescue`).
    #[serde(default)]
    rescued_sites: usize,
    /// Whether the code for reads is in the kernel's vDSO, or is the vDSO: unwinders find the callers there. `null`: not known,
    /// or the kernel's own functions have no call frames.
    #[serde(default)]
    in_vdso: Option<bool>,
    /// The clocks that the page answers; empty: they are withdrawn, or there are none yet.
    clocks: Vec<String>,
    /// Age of the anchor in force.
    age_ns: Option<u64>,
    /// Whether clocks are answered from the page at this moment.
    is_fresh: Option<bool>,
    /// Error against the kernel's clock before the last refresh.
    residual_ns: Option<i64>,
    /// Number of times that the clocks were withdrawn, so that reads fell back to the kernel.
    fallbacks: Option<u64>,
    /// Reason for which they are withdrawn at this moment.
    withdrawn: Option<String>,
    /// The process that keeps the page current.
    publisher: Option<u32>,
    /// Whether that process is alive.
    publisher_is_alive: Option<bool>,
    /// A C library that it has loaded again, as dlmopen(3) does: programs that it executes by that are not served.
    #[serde(default)]
    unseen_library: Option<String>,
    /// The requests of its tree that were not served.
    #[serde(default)]
    unserved: Option<UnservedRequests>,
}

/// How a process got its page.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum By {
    Attach,
    Run,
    /// It was detached, and a thread of it had not left the region.
    Detached,
}

/// Prints the processes, with --watch repeatedly; returns the exit status.
pub fn status(options: &args::Status) -> i32 {
    if let Err(why) = processes::listable() {
        output::note(why);
        return exit::CANNOT_TELL;
    }
    match options.watch {
        Some(interval) => watch(options.json, interval),
        None => {
            let (status, warnings) = look();
            warnings.iter().for_each(output::warn);
            print(options.json, &status)
        }
    }
}

fn print(json: bool, status: &Status) -> i32 {
    if json {
        document::print("status", status)
    } else {
        output::print(text(status))
    }
}

/// Shows the table, or the document, until a signal ends it.
fn watch(json: bool, interval: Duration) -> i32 {
    live::end_by_signal();
    live::redraw_by_signal();
    // SAFETY: SIG_IGN installs no handler. A write to standard output without a reader then returns an error.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let is_redrawn = !json && output::can_redraw();
    let mut screen = Screen::default();
    let mut shown = String::new();
    let mut warned = Vec::new();
    while live::ended_by().is_none() {
        let (status, warnings) = look();
        // The signal may have interrupted the look.
        if live::ended_by().is_some() {
            break;
        }
        let written = if is_redrawn {
            shown = headed(&status, interval);
            // Standard error is usually the same terminal, and would be drawn over.
            let warnings = warnings.iter().map(|why| output::fitted(&format!("warning: {why}")));
            shown.extend(warnings);
            screen.show(&shown)
        } else {
            if warnings != warned {
                warnings.iter().for_each(output::warn);
                warned = warnings;
            }
            if json {
                print(json, &status)
            } else {
                output::print(headed(&status, interval) + "\n")
            }
        };
        if written != 0 {
            return written;
        }
        live::wait(interval);
    }
    // A terminal shows `^C` below the table.
    if shown.is_empty() { 0 } else { screen.show(&shown) }
}

/// Returns the table below a line with the time.
fn headed(status: &Status, interval: Duration) -> String {
    let what = format!("Every {} s: fastpath status", interval.as_secs_f64());
    let time = output::local_time();
    let columns = output::terminal_size().map_or(0, |(_, columns)| columns);
    let gap = columns.saturating_sub(what.len() + time.len()).max(2);
    format!("{what}{:gap$}{time}\n\n{}", "", text(status))
}

fn text(status: &Status) -> String {
    let mut table = output::table([
        "PID",
        "COMMAND",
        "BY",
        "CLOCKS",
        "AGE",
        "RESIDUAL",
        "FALLBACKS",
        "PUBLISHER",
    ]);
    for served in &status.processes {
        let dash = || "-".to_owned();
        table.add_row([
            served.pid.to_string(),
            fastpath_os::printable(&served.comm),
            by_in_words(served),
            match &served.withdrawn {
                Some(why) => format!("none ({why})"),
                None if served.clocks.is_empty() => dash(),
                None if served.clocks.len() == Clock::SERVED.len() => "all".to_owned(),
                None => served.clocks.join(","),
            },
            served.age_ns.map_or_else(dash, age),
            served.residual_ns.map_or_else(dash, |ns| format!("{ns} ns")),
            served.fallbacks.map_or_else(dash, |n| n.to_string()),
            match (served.publisher, served.publisher_is_alive) {
                (Some(pid), Some(false)) => format!("{pid} (gone)"),
                (Some(pid), _) => pid.to_string(),
                (None, _) => dash(),
            },
        ]);
    }
    let mut text = if status.processes.is_empty() {
        "no process is on fastpath here\n".to_owned()
    } else {
        // Hides columns that are only useful if something is wrong; --json has them.
        output::fit(&mut table, &[6, 5]);
        format!("{}\n", table.trim_fmt())
    };
    let outside = status.processes.iter().filter(|served| served.in_vdso == Some(false));
    let outside: Vec<String> = outside.map(|served| served.pid.to_string()).collect();
    if !outside.is_empty() {
        text += &output::fitted(&format!(
            "profilers do not find the callers of clock reads in {} (docs/limits.md)",
            outside.join(", ")
        ));
    }
    let unseen = |served: &Served| {
        let library = fastpath_os::printable(served.unseen_library.as_ref()?);
        let line = format!(
            "{} has loaded {library} again: its calls there are not seen (docs/limits.md)",
            served.pid
        );
        Some(output::fitted(&line))
    };
    text.extend(status.processes.iter().filter_map(unseen));
    let counted = status.processes.iter().map(|served| (served.pid, &served.unserved));
    text.extend(unserved::sentences(counted).iter().map(|line| output::fitted(line)));
    if status.unreadable > 0 {
        // SAFETY: geteuid takes nothing and cannot fail.
        let is_root = unsafe { libc::geteuid() } == 0;
        let why = if is_root {
            "root lacks CAP_SYS_PTRACE for that here"
        } else {
            "of other users: run as root"
        };
        let processes = if status.unreadable == 1 { "process" } else { "processes" };
        text += &output::fitted(&format!(
            "{} {processes} could not be examined ({why})",
            status.unreadable
        ));
    }
    if let Some(daemon) = &status.daemon {
        text.extend(daemon.sentence().lines().map(output::fitted));
    }
    text
}

impl Daemon {
    fn sentence(&self) -> String {
        let many = |number: u64, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        let mut text = format!(
            "fastpathd {} ({}), for {}: {}, {} refused\n",
            self.pid,
            self.version,
            duration(self.uptime_seconds),
            many(self.pages as u64, "page"),
            many(self.refused, "request"),
        );
        if let Some(policy) = self.policy.as_ref().filter(|_| self.rules > 0) {
            let noticed = self.notices.as_ref();
            let noticed = noticed.map_or(String::new(), |how| format!(", processes are detected by {how}"));
            text += &format!("{policy}: {}{noticed}\n", many(self.rules as u64, "rule"));
        }
        if let Some(why) = &self.policy_error {
            text += &format!("{why}: the previous policy stays in force\n");
        }
        text
    }
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn age(ns: u64) -> String {
    match ns {
        0..10_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        10_000_000..10_000_000_000 => format!("{:.0} ms", ns as f64 / 1e6),
        _ => format!("{:.0} s", ns as f64 / 1e9),
    }
}

/// Returns the processes, and the warnings.
fn look() -> (Status, Vec<String>) {
    let mut pids: Vec<i32> = fastpath_os::processes().into_iter().flatten().collect();
    pids.sort_unstable();
    let mut status = Status {
        processes: Vec::new(),
        unreadable: 0,
        unanswered: 0,
        daemon: None,
    };
    let mut warnings = Vec::new();
    let asked = daemon().unwrap_or_else(|why| {
        warnings.push(why);
        None
    });
    let pages = asked.as_ref().map(|daemon| &daemon.pages[..]).unwrap_or_default();
    let own = std::process::id() as i32;
    pids.retain(|pid| *pid != own);
    const TIMEOUT: Duration = Duration::from_secs(3);
    let look = |pid| serde_json::to_vec(&look_at(pid, pages)).unwrap_or_default();
    for (pid, looked) in fastpath_os::look_at_all(&pids, TIMEOUT, look) {
        match looked.and_then(|json| serde_json::from_slice(&json).ok()) {
            Some(Looked::Served(served)) => status.processes.push(*served),
            Some(Looked::Unreadable) => status.unreadable += 1,
            Some(Looked::Without) => {}
            None => {
                status.unanswered += 1;
                warnings.push(format!(
                    "process {pid} cannot be examined: reads of its memory do not return (the process itself may provide it)"
                ));
            }
        }
    }
    status.daemon = asked.map(|daemon| Daemon {
        version: daemon.version,
        pid: daemon.pid,
        uptime_seconds: daemon.uptime_seconds,
        pages: daemon.pages_in_all,
        refused: daemon.refused,
        policy: daemon.policy,
        rules: daemon.rules,
        policy_error: daemon.policy_error,
        notices: daemon.notices,
    });
    (status, warnings)
}

/// Returns the processes that are attached, as far as this user may see.
pub fn attached() -> Vec<i32> {
    let (status, warnings) = look();
    warnings.iter().for_each(output::warn);
    let is_attached = |served: &Served| served.by != By::Run;
    status
        .processes
        .iter()
        .filter(|served| is_attached(served))
        .map(|served| served.pid)
        .collect()
}

/// Result of examining a process.
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
enum Looked {
    Served(Box<Served>),
    Without,
    Unreadable,
}

fn look_at(pid: i32, of_daemon: &[fastpath_protocol::status::Page]) -> Looked {
    match fastpath_os::maps::read(memory_of(pid)) {
        Ok(maps) => served(pid, &maps, of_daemon).map_or(Looked::Without, |served| Looked::Served(Box::new(served))),
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Looked::Unreadable,
        Err(_) => Looked::Without,
    }
}

/// Returns the number under which /proc shows a process's memory: another thread's if the first one has ended.
fn memory_of(pid: i32) -> i32 {
    if !has_ended(pid) {
        return pid;
    }
    let mut tids = fastpath_os::threads(pid).into_iter().flatten();
    tids.find(|tid| !has_ended(*tid)).unwrap_or(pid)
}

fn has_ended(tid: i32) -> bool {
    fastpath_os::Stat::read(tid).is_ok_and(|stat| stat.has_ended())
}

/// Returns the status of this host's daemon, if there is one; the error says why it cannot be asked.
fn daemon() -> Result<Option<fastpath_protocol::Status>, String> {
    match Client::connect().and_then(|client| client.status()) {
        Ok(status) => Ok(Some(status)),
        Err(ClientError::NoDaemon { .. }) => Ok(None),
        Err(failure) => Err(failure.to_string()),
    }
}

fn served(pid: i32, maps: &[Mapping], of_daemon: &[fastpath_protocol::status::Page]) -> Option<Served> {
    let mut pages = maps.iter().filter(|mapping| mapping.is_memory(MAPPED_NAME));
    let inode = pages.next()?.inode;
    // The publisher maps the page too, to write it.
    let is_publisher = |page: &Mapping| page.name.starts_with(MAPPED_NAME) && page.writable;
    if maps.iter().any(is_publisher) {
        return None;
    }
    let rule = of_daemon
        .iter()
        .find(|page| page.inode == inode)
        .and_then(|page| page.rule);
    let region = format!("/memfd:{}", fastpath_inject::redirection::REGION_NAME);
    let has_region = maps.iter().any(|mapping| mapping.name.starts_with(&region));
    let comm = fastpath_os::comm(pid).ok()?;
    // A process may belong to this user and still not be readable (prctl(2), PR_SET_DUMPABLE).
    let page = PageCopy::of_process(memory_of(pid) as u32).ok().flatten();
    let page: Option<&Page> = page.as_deref();
    let experience = page.map(Residuals::of_page);
    let reader = page.map(Reader::new);
    let publisher = reader
        .as_ref()
        .map(|reader| reader.stats().publisher_pid)
        .filter(|pid| *pid != 0);
    let clocks = page.map(clocks).unwrap_or_default();
    let now = page
        .filter(|_| counter::is_readable())
        .map(|page| (Reader::new(page), counter::of_page(page)));
    let (by, journal) = by(memory_of(pid), has_region);
    let count = |purpose| journal.as_ref().map_or(0, |journal| journal.count(purpose));
    // Without a changed entry point, the image itself is the vDSO.
    let is_in_vdso = |_: &Journal| count(Purpose::Entry) == 0 || count(Purpose::EntryBody) > 0;
    Some(Served {
        pid,
        comm,
        by,
        rescued_sites: count(Purpose::Rescue),
        in_vdso: journal
            .as_ref()
            .filter(|_| cfg!(target_arch = "x86_64"))
            .map(is_in_vdso),
        unseen_library: journal.as_ref().and_then(|journal| journal.unseen_library(maps)),
        rule,
        is_fresh: now.as_ref().map(|(reader, counter)| {
            let mut ids = clocks.iter();
            ids.any(|id| reader.read(id, counter).is_some())
        }),
        age_ns: now.as_ref().and_then(|(reader, counter)| reader.age_ns(counter())),
        clocks: clock_names(clocks),
        residual_ns: experience.as_ref().filter(|e| e.refreshes > 0).map(|e| e.last_ns),
        fallbacks: experience.as_ref().map(|e| e.withdrawals),
        withdrawn: experience.and_then(|e| e.withdrawn),
        publisher,
        unserved: UnservedRequests::read(memory_of(pid), maps),
        publisher_is_alive: publisher.map(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists()),
    })
}

/// Returns the table's cell for how a process got its page.
fn by_in_words(served: &Served) -> String {
    let by = match (served.by, served.rule) {
        (By::Detached, _) => "(detached)".into(),
        (_, Some(rule)) => format!("rule {rule}"),
        (By::Attach, None) => "attach".into(),
        (By::Run, None) => "run".into(),
    };
    match served.rescued_sites {
        0 => by,
        count => format!("{by}, {count} rescued"),
    }
}

/// Returns the clocks' names.
pub fn clock_names(clocks: ClockSet) -> Vec<String> {
    let has = |clock: &&Clock| clocks.contains(ClockSet::of_id(clock.id() as u32));
    let names = Clock::SERVED.iter().filter(has);
    names.map(|clock| clock.name().to_owned()).collect()
}

/// Returns the clocks of the anchors in force.
pub fn clocks(page: &Page) -> ClockSet {
    let of = |latch: &fastpath_page::layout::Latch| latch.copy[0].answered();
    of(&page.hres).union(of(&page.raw)).intersection(ClockSet::ALL)
}

/// Returns how a process got its page, and the journal of its region, unless it is detached.
#[cfg(target_arch = "x86_64")]
fn by(pid: i32, has_region: bool) -> (By, Option<Journal>) {
    use fastpath_inject::redirection::JournalState;

    let found = fastpath_inject::attach::find_in(pid);
    let by = match &found {
        Ok(Some(found)) if found.journal.state == JournalState::Kept => By::Run,
        Ok(Some(found)) if found.is_in_force().unwrap_or(true) => match found.journal.is_of_start {
            true => By::Run,
            false => By::Attach,
        },
        Ok(Some(_)) => By::Detached,
        _ if has_region => By::Attach,
        _ => By::Run,
    };
    let journal = found.ok().flatten().map(|found| found.journal);
    (by, journal.filter(|_| by != By::Detached))
}

#[cfg(not(target_arch = "x86_64"))]
fn by(pid: i32, has_region: bool) -> (By, Option<Journal>) {
    let maps = fastpath_os::maps::read(pid).unwrap_or_default();
    let found = Journal::find(pid, &maps).ok().flatten();
    let journal = found.and_then(|(_, journal)| journal);
    let by = match &journal {
        Some(journal) if journal.is_of_start => By::Run,
        _ if has_region => By::Attach,
        _ => By::Run,
    };
    (by, journal)
}
