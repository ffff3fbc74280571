//! The helper of attached processes: it publishes their page where no daemon runs, and serves the programs that they
//! execute. It is left behind like `run`'s, and ends when no process maps the mailbox any more.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fastpath_daemon::record::Target;
use fastpath_inject::Shared;
use fastpath_inject::attendant::Attendant;
use fastpath_page::{ClockSet, Grant};
use fastpath_protocol::packet;
use fastpath_publish::Publisher;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use super::wanted::Wanted;
use crate::attendant;
use crate::grant::{self, Purpose};
use crate::log::Log;
use crate::parent;
use crate::process::{self, Surroundings};
use crate::trial::Trial;

/// Timeout for the helper's answer: comparing the CPUs' counters and making a page takes milliseconds, but beside 64 busy
/// threads on two CPUs up to 20 seconds.
const TIMEOUT: Duration = Duration::from_secs(45);
/// Most bytes of the answer: the process that clients must declare, or the reason why there is no grant.
const ANSWER: usize = 4096;

/// A time namespace other than this process's.
pub(crate) struct TimeNamespace(pub File);

/// A grant of a helper.
pub(crate) struct Served {
    /// The grant.
    pub grant: Grant,
    /// Attendant that clients must declare before they ask (PR_SET_PTRACER), where Yama requires that; else 0.
    pub ptracer: u32,
    /// The helper stays as long as this is open, or a process maps the mailbox.
    _needed: OwnedFd,
}

/// Starts a helper for processes of a time namespace (`None`: this process's), of which `pid` is one.
pub(crate) fn start(
    wanted: &Wanted,
    pid: i32,
    namespace: Option<&TimeNamespace>,
    surroundings: &Surroundings,
) -> Result<Served, String> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
        .map_err(|e| format!("socketpair: {e}"))?;
    process::start(|| {
        let has_room = process::require_room();
        // What is attached may be scheduled differently.
        let _ = process::settle(surroundings);
        process::release_standard_error();
        // The helper would wait for the end of its own copy of the parent's end.
        // SAFETY: this process never returns to code that uses `ours`.
        unsafe { libc::close(ours.as_raw_fd()) };
        match has_room.and_then(|()| serve(wanted, pid, namespace, &theirs)) {
            Ok(()) => 0,
            Err(why) => {
                let _ = packet::send(theirs.as_fd(), &why.as_bytes()[..why.len().min(ANSWER)], &[]);
                1
            }
        }
    })
    .map_err(|e| format!("clone: {e}"))?;
    drop(theirs);
    receive(ours)
}

/// Receives the grant and the number that comes with it, or the reason why there is none.
fn receive(channel: OwnedFd) -> Result<Served, String> {
    let mut bytes = [0; ANSWER];
    let received = packet::wait_for(channel.as_fd(), TIMEOUT)
        .and_then(|()| packet::receive(channel.as_fd(), &mut bytes))
        .map_err(|e| format!("the publisher did not start: {e}"))?;
    let Some((length, fds)) = received else {
        return Err("the publisher ended before it was ready".into());
    };
    let answer = &bytes[..length.min(ANSWER)];
    match (<[OwnedFd; 2]>::try_from(fds), <[u8; 8]>::try_from(answer)) {
        (Ok([page, mailbox]), Ok(numbers)) => {
            let numbers = u64::from_le_bytes(numbers);
            let clocks = ClockSet((numbers >> 32) as u32);
            Ok(Served {
                grant: Grant { page, mailbox, clocks },
                ptracer: numbers as u32,
                _needed: channel,
            })
        }
        _ => Err(String::from_utf8_lossy(answer).into_owned()),
    }
}

fn serve(wanted: &Wanted, pid: i32, namespace: Option<&TimeNamespace>, channel: &OwnedFd) -> Result<(), String> {
    // First: programs are only served in the time namespace of their attendant, and a process with threads may not
    // enter one.
    if let Some(TimeNamespace(file)) = namespace.filter(|_| wanted.service.children) {
        // SAFETY: setns takes integers.
        if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWTIME) } != 0 {
            let e = std::io::Error::last_os_error();
            return Err(format!(
                "its time namespace cannot be entered, for its clocks to be read: setns: {e}; run as root"
            ));
        }
    }
    let process = grant::pidfd(pid);
    let mailbox = Arc::new(Shared::create().map_err(|e| e.to_string())?);
    let (grant, mut publisher) = granted(wanted, pid, &mailbox)?;
    let attendant = wanted.service.children.then(|| attendant(&grant, &mailbox, wanted));
    let attendant = attendant.transpose()?;
    let numbers = u64::from(grant.clocks.0) << 32 | u64::from(process::ptracer());
    packet::send(
        channel.as_fd(),
        &numbers.to_le_bytes(),
        &[grant.page.as_fd(), grant.mailbox.as_fd()],
    )
    .map_err(|e| format!("sendmsg: {e}"))?;
    // If it stayed open here, it would count as a process that maps it.
    drop(grant);
    process::trim_heap();
    let mut log = Log::new(Target::read(pid));
    let serves = attendant.clone();
    let served = || serves.as_ref().map_or(0, |attendant| attendant.served());
    let needed = || {
        log.record_served(served(), false);
        log.record_unserved(&mailbox);
        !is_closed(channel) || (mailbox.in_use() && !parent::waits_for_helpers_only())
    };
    match (attendant, &publisher) {
        (Some(attendant), None) => attendant.serve_while(needed),
        (Some(attendant), Some(_)) => {
            process::spawn(move || attendant.serve())?;
            grant::stay_while(publisher.as_mut(), process.as_ref(), needed);
        }
        (None, _) => grant::stay_while(publisher.as_mut(), process.as_ref(), needed),
    }
    log.record_served(served(), true);
    Ok(())
}

/// Returns a grant of the host's daemon if this helper only serves descendants; else one of a publisher.
fn granted(wanted: &Wanted, pid: i32, mailbox: &Shared) -> Result<(Grant, Option<Publisher>), String> {
    let process = grant::pidfd(pid).ok_or_else(|| format!("there is no process {pid} any more"))?;
    let purpose = Purpose::for_process(wanted.service.set(), &process);
    if wanted.service.children {
        match grant::of_host(purpose, Some(mailbox)) {
            Ok(grant) => return Ok((grant, None)),
            Err(failure) if !wanted.may_publish || grant::is_forbidden(&failure) => return Err(failure.to_string()),
            Err(_) => {}
        }
    }
    let log = Log::new(Target::read(pid));
    let (report, service) = (move |news: &_| log.record_news(news), &wanted.service);
    let (grant, mut publisher) = grant::publish(service.set(), grant::offsets(pid)?, mailbox, service.trust, report)?;
    grant::begin(&mut publisher, service.trust)?;
    Ok((grant, Some(publisher)))
}

/// Returns what serves the descendants of attached processes.
fn attendant(grant: &Grant, mailbox: &Arc<Shared>, wanted: &Wanted) -> Result<Arc<Attendant>, String> {
    let page = grant.page.try_clone().map_err(|e| format!("the page: {e}"))?;
    let (policy, trial) = (wanted.policy.clone(), Trial::default());
    let attendant = attendant::new(page, grant.clocks, mailbox, &wanted.service, policy, trial, false);
    mailbox.answer_until_this_thread_ends();
    attendant.prepare();
    Ok(attendant)
}

/// Returns whether the process that asked is done, or has ended.
fn is_closed(channel: &OwnedFd) -> bool {
    fastpath_os::is_ready(channel, libc::POLLRDHUP, Duration::ZERO)
}
