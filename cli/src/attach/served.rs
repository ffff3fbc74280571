//! What fastpath serves on this host: the facts that `status` prints.

use std::time::Duration;

use fastpath_evidence::{PageCopy, Residuals};
use fastpath_inject::redirection::{Journal, Purpose};
use fastpath_measure::Clock;
use fastpath_os::Mapping;
use fastpath_page::{ClockSet, MAPPED_NAME, Page, Reader};
use fastpath_protocol::client::{Client, ClientError};
use fastpath_publish::counter;
use serde::{Deserialize, Serialize};

use crate::output;
use crate::unserved::UnservedRequests;

/// The document that `--json` prints; later versions of the same schema only add fields.
#[derive(Serialize, schemars::JsonSchema)]
pub struct ServedStatus {
    /// Processes that have a page.
    pub(super) processes: Vec<Served>,
    /// Processes whose mappings this user may not see.
    pub(super) unreadable: usize,
    /// Processes that took too long to examine.
    pub(super) unanswered: usize,
    /// The daemon of this host, if one runs.
    pub(super) daemon: Option<Daemon>,
}

/// The state that a daemon reports.
#[derive(Serialize, schemars::JsonSchema)]
pub(super) struct Daemon {
    /// fastpath's version.
    pub(super) version: String,
    /// Its process id.
    pub(super) pid: u32,
    /// Time since it was started.
    pub(super) uptime_seconds: u64,
    /// Pages of all users.
    pub(super) pages: usize,
    /// Requests so far.
    pub(super) refused: u64,
    /// The file that its policy is read from.
    pub(super) policy: Option<String>,
    /// Number of rules in the policy in force.
    pub(super) rules: usize,
    /// Error in the policy file as it is now; the previous policy stays in force.
    pub(super) policy_error: Option<String>,
    /// Method by which the daemon detects processes that the policy attaches.
    pub(super) notices: Option<String>,
}

/// A process that has a page.
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
pub(super) struct Served {
    /// The process id.
    pub(super) pid: i32,
    /// The name of the process (proc_pid_comm(5)).
    pub(super) comm: String,
    /// How it got its page.
    pub(super) by: ServedBy,
    /// The rule of the daemon's policy that attached it.
    pub(super) rule: Option<usize>,
    /// Whether the daemon's policy has come to say never for it since it was served.
    #[serde(default)]
    pub(super) is_forbidden: bool,
    /// The system calls for time in its own code that are redirected (`--rescue`).
    #[serde(default)]
    pub(super) rescued_sites: usize,
    /// Whether the code for reads is in the kernel's vDSO, or is the vDSO: unwinders find the callers there. `null`: not known,
    /// or the kernel's own functions have no call frames.
    #[serde(default)]
    pub(super) in_vdso: Option<bool>,
    /// The clocks that the page answers; empty: they are withdrawn, or there are none yet.
    pub(super) clocks: Vec<String>,
    /// Age of the anchor in force.
    pub(super) age_ns: Option<u64>,
    /// Whether clocks are answered from the page at this moment.
    pub(super) is_fresh: Option<bool>,
    /// Error against the kernel's clock before the last refresh.
    pub(super) residual_ns: Option<i64>,
    /// Number of times that the clocks were withdrawn, so that reads fell back to the kernel.
    pub(super) fallbacks: Option<u64>,
    /// Reason for which they are withdrawn at this moment.
    pub(super) withdrawn: Option<String>,
    /// The process that keeps the page current.
    pub(super) publisher: Option<u32>,
    /// Whether that process is alive.
    pub(super) publisher_is_alive: Option<bool>,
    /// A C library that it has loaded again, as dlmopen(3) does: programs that it executes by that are not served.
    #[serde(default)]
    pub(super) unseen_library: Option<String>,
    /// The requests of its tree that were not served.
    #[serde(default)]
    pub(super) unserved: Option<UnservedRequests>,
}

/// How a process got its page.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ServedBy {
    Attach,
    Run,
    /// It was detached, and a thread of it had not left the region.
    Detached,
}

/// Returns the processes, and the warnings.
pub(super) fn look() -> (ServedStatus, Vec<String>) {
    let mut pids: Vec<i32> = fastpath_os::processes().into_iter().flatten().collect();
    pids.sort_unstable();
    let mut status = ServedStatus {
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
    let is_attached = |served: &Served| served.by != ServedBy::Run;
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
    match read_maps(pid) {
        Ok((memory, text)) if text.contains(MAPPED_NAME) => {
            let maps = fastpath_os::maps::parse(&text);
            served(pid, memory, &maps, of_daemon).map_or(Looked::Without, |served| Looked::Served(Box::new(served)))
        }
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Looked::Unreadable,
        _ => Looked::Without,
    }
}

/// Returns the text of a process's maps, and the number under which /proc shows its memory: another thread's if the first one
/// has ended.
fn read_maps(pid: i32) -> std::io::Result<(i32, String)> {
    let text = fastpath_os::text(pid, "maps")?;
    if !text.is_empty() || !has_ended(pid) {
        return Ok((pid, text));
    }
    let mut tids = fastpath_os::threads(pid).into_iter().flatten();
    let tid = tids.find(|tid| !has_ended(*tid)).unwrap_or(pid);
    Ok((tid, fastpath_os::text(tid, "maps")?))
}

fn has_ended(tid: i32) -> bool {
    fastpath_os::Stat::read(tid).is_ok_and(|stat| stat.has_ended())
}

/// Returns the status of this host's daemon, if there is one; the error says why it cannot be asked.
fn daemon() -> Result<Option<fastpath_protocol::DaemonStatus>, String> {
    match Client::connect().and_then(|client| client.status()) {
        Ok(status) => Ok(Some(status)),
        Err(ClientError::NoDaemon { .. }) => Ok(None),
        Err(failure) => Err(failure.to_string()),
    }
}

/// `memory`: the number under which /proc shows its memory.
fn served(pid: i32, memory: i32, maps: &[Mapping], of_daemon: &[fastpath_protocol::status::Page]) -> Option<Served> {
    let inode = PageCopy::mapping(maps)?.inode;
    if PageCopy::is_published_in(maps) {
        return None;
    }
    let granted = of_daemon.iter().find(|page| page.inode == inode);
    let region = format!("/memfd:{}", fastpath_inject::redirection::REGION_NAME);
    let has_region = maps.iter().any(|mapping| mapping.name.starts_with(&region));
    let comm = fastpath_os::comm(pid).ok()?;
    // A process may belong to this user and still not be readable (prctl(2), PR_SET_DUMPABLE).
    let page = PageCopy::of_mappings(memory as u32, maps).ok().flatten();
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
    let (by, journal) = by(memory, maps, has_region);
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
        rule: granted.and_then(|page| page.rule),
        is_forbidden: granted.is_some_and(|page| page.is_forbidden),
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
        unserved: UnservedRequests::read(memory, maps),
        publisher_is_alive: publisher.map(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists()),
    })
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
fn by(pid: i32, maps: &[Mapping], has_region: bool) -> (ServedBy, Option<Journal>) {
    use fastpath_inject::redirection::JournalState;

    let found = fastpath_inject::attach::find(pid, maps);
    let by = match &found {
        Ok(Some(found)) if found.journal.state == JournalState::Kept => ServedBy::Run,
        Ok(Some(found)) if found.is_in_force().unwrap_or(true) => match found.journal.is_of_start {
            true => ServedBy::Run,
            false => ServedBy::Attach,
        },
        Ok(Some(_)) => ServedBy::Detached,
        _ if has_region => ServedBy::Attach,
        _ => ServedBy::Run,
    };
    let journal = found.ok().flatten().map(|found| found.journal);
    (by, journal.filter(|_| by != ServedBy::Detached))
}
