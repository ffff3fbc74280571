//! Attaches one process by a rule of the host's daemon, as its client: the daemon starts itself again for that, because
//! it must not read another process's memory itself.

use std::path::PathBuf;

use fastpath_daemon::Service;
use fastpath_daemon::log::{self, Priority, say};
use fastpath_daemon::record::{Record, Requester, What};
use fastpath_inject::Rescued;
use fastpath_inject::attach::{Refusal, StoppedTooLong, may_attach};

use super::wanted::{OTHER_PROGRAM, Wanted};
use super::{Outcome, attach_all, record_of_stop};
use crate::policy::DaemonsPolicy;
use crate::process::Surroundings;

/// A process that the daemon has attached.
pub struct Order {
    /// Process id.
    pub pid: i32,
    /// Process that asked for it.
    pub by: Requester,
    /// Rule that selects it.
    pub rule: Option<usize>,
    /// What it gets.
    pub service: Service,
    /// The policy file, which decides about its descendants.
    pub policy: PathBuf,
    /// Facts by which the daemon decided ([`fastpath_daemon::ProcessFacts::fingerprint`]).
    pub facts: Option<u64>,
    /// Number of tries so far, if this is the last one.
    pub tries: Option<u32>,
}

/// Result of an attach.
pub enum Attempt {
    /// The target is attached, or left as it is for good.
    Over,
    /// Another try may succeed.
    TryAgain,
}

/// Attaches a process, and puts the result on record, except in expected cases: the target has ended, is served already,
/// or is fast by itself, or another try follows.
pub fn attach(order: &Order, surroundings: &Surroundings) -> Attempt {
    let (pid, tries) = (order.pid, order.tries);
    let outcome = match may_attach(pid) {
        Ok(()) => attach_it(order, surroundings),
        Err(refusal) => Some(Outcome::Refused(refusal)),
    };
    let Some(outcome) = outcome.filter(|outcome| !is_no_news(pid, outcome)) else {
        return Attempt::Over;
    };
    let may_pass = match &outcome {
        Outcome::Refused(refusal) => refusal.is_passing(),
        // The daemon decides about it anew.
        Outcome::Forbidden(why) => why == OTHER_PROGRAM,
        Outcome::Attached(_) | Outcome::NoPage(_) => false,
    };
    if may_pass && tries.is_none() {
        return Attempt::TryAgain;
    }
    let mut record = outcome.record(pid, order.by);
    record.rule = order.rule;
    if let Some(tries) = tries.filter(|_| may_pass) {
        record.message += &format!(" (after {tries} tries)");
    }
    log::tell_daemon(&record.result);
    log::record(record);
    Attempt::Over
}

/// Attaches a process. Returns `None` if it is not reported.
fn attach_it(order: &Order, surroundings: &Surroundings) -> Option<Outcome> {
    let (pid, service) = (order.pid, order.service);
    let wanted = Wanted {
        service,
        policy: service.children.then(|| DaemonsPolicy::at(order.policy.clone())),
        selected: order.facts.map(|facts| (pid, facts)),
        may_publish: false,
    };
    let mut done = None;
    attach_all(&[pid], &wanted, surroundings, give_up, |attached_pid, _, outcome| {
        if let Outcome::Attached(attached) = &outcome
            && attached_pid == pid
        {
            if let Some(why) = &attached.without_children {
                say(
                    Priority::Notice,
                    format_args!("process {pid}: the programs that it executes will not be served: {why}"),
                );
            }
            attached.rescued.iter().for_each(|rescued| log_rescued(pid, rescued));
        }
        match attached_pid == pid {
            true => done = Some(outcome),
            // A descendant, which is not tried again.
            false if is_no_news(attached_pid, &outcome) => {}
            false => log::record(Record {
                rule: order.rule,
                ..outcome.record(attached_pid, order.by)
            }),
        }
    });
    done
}

/// Logs what became of a process's own system calls for time.
fn log_rescued(pid: i32, rescued: &Rescued) {
    let left_alone = rescued.left_alone.len();
    match (&rescued.refused, rescued.sites) {
        (Some(why), _) => say(
            Priority::Notice,
            format_args!("process {pid}: its own system calls for time are not rescued: {why}"),
        ),
        (None, 0) => say(
            Priority::Notice,
            format_args!(
                "process {pid}: none of its own system calls for time is rescued; {left_alone} cannot be redirected safely"
            ),
        ),
        (None, sites) => say(
            Priority::Info,
            format_args!("process {pid}: {sites} of its own system calls for time are rescued, {left_alone} are not"),
        ),
    }
}

fn exists(pid: i32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

/// Ends this process, so that the kernel detaches all its tracees.
fn give_up(stands: &StoppedTooLong) -> ! {
    // The daemon is the parent.
    let by = Requester {
        by_pid: nix::unistd::getppid().as_raw(),
        ..Requester::this_process()
    };
    log::tell_daemon(StoppedTooLong::WORD);
    log::record(record_of_stop(What::Attach, stands, by));
    // SAFETY: _exit ends the process at once, without waiting for the thread that waits in the kernel.
    unsafe { libc::_exit(1) }
}

/// Returns whether an outcome is expected: the process has ended, is served already, or is not to be served.
fn is_no_news(pid: i32, outcome: &Outcome) -> bool {
    let refusal = match outcome {
        Outcome::Refused(refusal) => refusal,
        Outcome::NoPage(_) => return !exists(pid),
        Outcome::Attached(_) | Outcome::Forbidden(_) => return false,
    };
    matches!(
        refusal,
        Refusal::NoSuchProcess { .. }
            | Refusal::KernelThread
            | Refusal::Zombie
            | Refusal::AttachedAlready { .. }
            | Refusal::UnderRun
            | Refusal::Publisher
    )
}
