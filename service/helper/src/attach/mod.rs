//! Attaches running processes, each with a grant of the host's daemon, or of a helper.

pub mod by_rule;
mod tree;
mod wanted;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use fastpath_daemon::record::{Record, Requester, Target, What};
use fastpath_inject::Cache;
use fastpath_inject::attach::{self, AttachConfig, Attached, LastResort, Refusal, StoppedTooLong};
use fastpath_page::Grant;
use fastpath_protocol::Code;
use fastpath_protocol::client::ClientError;

use crate::grant::{self, Purpose};
use crate::policy::DaemonsPolicy;
use crate::process::Surroundings;
use tree::TimeNamespace;

pub use wanted::Wanted;

/// Longest time to wait for a page's first anchor: a publisher needs milliseconds, but beside busy threads more.
const FIRST_ANCHOR: Duration = Duration::from_secs(5);

/// Result for one process.
pub enum Outcome {
    /// It is attached.
    Attached(Attached),
    /// It cannot be attached.
    Refused(Refusal),
    /// The policy of the host's daemon says never.
    Forbidden(String),
    /// There is no page for it.
    NoPage(String),
}

/// Returns the record of a process that was stopped for too long, and still is: it has only what is known.
pub fn record_of_stop(request: What, why: &StoppedTooLong, by: Requester) -> Record {
    let target = Target {
        pid: Some(why.pid),
        ..Target::default()
    };
    Record::refused(request, StoppedTooLong::WORD, &why.to_string(), by, target)
}

impl Outcome {
    /// Returns the record of it.
    pub fn record(&self, pid: i32, by: Requester) -> Record {
        let target = Target::read(pid);
        let (word, why) = match self {
            Outcome::Attached(attached) => {
                return Record {
                    sites: Some(attached.sites),
                    stopped_us: Some(attached.pauses.together.as_micros() as u64),
                    ..Record::done(What::Attach, by, target)
                };
            }
            Outcome::Refused(refusal) => (refusal.word(), refusal.to_string()),
            Outcome::Forbidden(why) => ("forbidden", why.clone()),
            Outcome::NoPage(why) => ("no-page", why.clone()),
        };
        Record::refused(What::Attach, word, &why, by, target)
    }

    fn without_page(pid: i32, why: String) -> Outcome {
        attach::end_of(pid).map_or(Outcome::NoPage(why), Outcome::Refused)
    }
}

/// Attaches `pids` and, if that is wanted, their descendants. Reports each to `report`, and whether it is one of
/// `pids`; processes without a page that share a helper are reported once. `give_up` is called by a thread of its own
/// if a process would be stopped for too long, and must end this process.
pub fn attach_all(
    pids: &[i32],
    wanted: &Wanted,
    surroundings: &Surroundings,
    give_up: LastResort,
    mut report: impl FnMut(i32, bool, Outcome),
) {
    let descendants = if wanted.service.children {
        descendants_of(pids)
    } else {
        Vec::new()
    };
    let is_named = |pid: i32| !descendants.contains(&pid);
    // Read once: while a process is stopped, there is no time for it. The daemon, which has a policy of its own, is asked
    // for each page but those of descendants.
    let (policy, unreadable) = match wanted.policy.as_ref().map(DaemonsPolicy::read).transpose() {
        Ok(policy) => (policy, None),
        Err(why) => (None, Some(why).filter(|_| wanted.service.children)),
    };
    let allows = |pid: i32| wanted.refusal(policy.as_ref(), pid).map_or(Ok(()), Err);
    let mut of_helper = Vec::new();
    for pid in pids.iter().chain(&descendants).copied() {
        let outcome = match unreadable.clone().or_else(|| allows(pid).err()) {
            Some(why) => Outcome::Forbidden(why),
            // Only a helper serves descendants.
            None if wanted.service.children => {
                of_helper.push(pid);
                continue;
            }
            None => match of_host(wanted, pid) {
                Ok(grant) => {
                    let config = AttachConfig {
                        grant: &grant,
                        children: None,
                        ptracer: 0,
                        rescue: wanted.service.rescue,
                        allows: &allows,
                    };
                    attach_one(pid, &config, give_up)
                }
                Err(failure) if grant::is_forbidden(&failure) => Outcome::Forbidden(failure.to_string()),
                Err(_) if wanted.may_publish => {
                    of_helper.push(pid);
                    continue;
                }
                Err(failure) => Outcome::without_page(pid, failure.to_string()),
            },
        };
        report(pid, is_named(pid), outcome);
    }
    let scans = wanted.service.children.then(Cache::default);
    of_helper.retain(|pid| match attach::end_of(*pid) {
        Some(refusal) => {
            report(*pid, is_named(*pid), Outcome::Refused(refusal));
            false
        }
        None => true,
    });
    for (namespace, pids) in by_time_namespace(&of_helper) {
        let Some(first) = pids.first().copied() else { continue };
        let served = match tree::start(wanted, first, namespace.as_ref(), surroundings) {
            Ok(served) => served,
            Err(why) => {
                report(first, is_named(first), Outcome::without_page(first, why));
                continue;
            }
        };
        let config = AttachConfig {
            grant: &served.grant,
            children: scans.as_ref(),
            ptracer: served.ptracer,
            rescue: wanted.service.rescue,
            allows: &allows,
        };
        for pid in pids {
            report(pid, is_named(pid), attach_one(pid, &config, give_up));
        }
    }
}

/// Returns a page for one process from this host's daemon.
fn of_host(wanted: &Wanted, pid: i32) -> Result<Grant, ClientError> {
    let gone = || fastpath_protocol::RequestRefusal::new(Code::Process, format!("there is no process {pid} any more"));
    let process = grant::pidfd(pid).ok_or_else(gone)?;
    grant::of_host(Purpose::for_process(wanted.service.set(), &process), None)
}

fn attach_one(pid: i32, config: &AttachConfig<'_>, give_up: LastResort) -> Outcome {
    // What is attached is served from then on. Without an anchor its reads would take the kernel's path, correctly.
    grant::wait_for_anchor(&config.grant.page, FIRST_ANCHOR);
    match attach::attach(pid, config, give_up) {
        Ok(attached) => Outcome::Attached(attached),
        Err(Refusal::Forbidden { why }) => Outcome::Forbidden(why),
        Err(refusal) => Outcome::Refused(refusal),
    }
}

/// Returns the children of these processes, and their children, except those that are among them.
fn descendants_of(pids: &[i32]) -> Vec<i32> {
    let processes = fastpath_os::processes().into_iter().flatten();
    let all: Vec<_> = processes
        .filter_map(|pid| Some((pid, fastpath_os::Stat::read(pid).ok()?.parent)))
        .collect();
    let mut found = pids.to_vec();
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        let children = all.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid);
        let new: Vec<_> = children.filter(|pid| !found.contains(pid)).collect();
        found.extend(new);
    }
    found.split_off(pids.len())
}

/// Returns processes by their time namespace; `None` is this process's.
fn by_time_namespace(pids: &[i32]) -> Vec<(Option<TimeNamespace>, Vec<i32>)> {
    // A kernel without time namespaces has no such file.
    let open = |pid: &str| File::open(format!("/proc/{pid}/ns/time")).ok();
    let inode = |file: &File| file.metadata().ok().map(|meta| meta.ino());
    let own = open("self").as_ref().and_then(inode);
    let mut groups: BTreeMap<Option<u64>, (Option<TimeNamespace>, Vec<i32>)> = BTreeMap::new();
    for pid in pids {
        let file = open(&pid.to_string());
        let number = file.as_ref().and_then(inode).filter(|number| Some(*number) != own);
        let namespace = number.and(file).map(TimeNamespace);
        groups
            .entry(number)
            .or_insert_with(|| (namespace, Vec::new()))
            .1
            .push(*pid);
    }
    groups.into_values().collect()
}
