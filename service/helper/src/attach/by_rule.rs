//! Attaches one process by a rule of the host's daemon, as its client: the daemon starts itself again for that, because
//! it must not read another process's memory itself.

use std::path::PathBuf;

use fastpath_daemon::Service;
use fastpath_daemon::log::{Priority, say};
use fastpath_inject::Rescued;
use fastpath_inject::attach::{Refusal, StoppedTooLong, may_attach};

use super::wanted::{OTHER_PROGRAM, Wanted};
use super::{Outcome, attach_all};
use crate::policy::DaemonsPolicy;
use crate::process::Surroundings;

/// A process that the daemon has attached.
pub struct Order<'a> {
    /// Process id.
    pub pid: i32,
    /// Name in the log.
    pub name: &'a str,
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

/// Reason why a process was not attached, and whether another try may succeed.
type Failure = (String, bool);

/// Attaches a process, and logs the result, except in expected cases: the target has ended, is served already, or is
/// fast by itself, or another try follows.
pub fn attach(order: &Order<'_>, surroundings: &Surroundings) -> Attempt {
    let Order { pid, name, tries, .. } = order;
    let done = match may_attach(*pid) {
        Ok(()) => attach_it(order, surroundings),
        Err(refusal) => failed(&refusal),
    };
    match done {
        Ok(is_attached) => {
            if is_attached {
                say(Priority::Info, format_args!("attached process {pid} ({name})"));
            }
            Attempt::Over
        }
        Err((_, true)) if tries.is_none() => Attempt::TryAgain,
        Err((why, may_pass)) => {
            let tries = tries.filter(|_| may_pass);
            let tries = tries.map_or_else(String::new, |tries| format!(" after {tries} tries"));
            say(
                Priority::Notice,
                format_args!("process {pid} ({name}) stays on the kernel's path{tries}: {why}"),
            );
            Attempt::Over
        }
    }
}

fn failed(refusal: &Refusal) -> Result<bool, Failure> {
    match is_no_news(refusal) {
        true => Ok(false),
        false => Err((refusal.to_string(), refusal.is_passing())),
    }
}

/// Attaches a process; returns whether it is attached.
fn attach_it(order: &Order<'_>, surroundings: &Surroundings) -> Result<bool, Failure> {
    let (pid, service) = (order.pid, order.service);
    let wanted = Wanted {
        service,
        policy: service.children.then(|| DaemonsPolicy::at(order.policy.clone())),
        selected: order.facts.map(|facts| (pid, facts)),
        may_publish: false,
    };
    let mut done = Ok(false);
    attach_all(&[pid], &wanted, surroundings, give_up, |attached_pid, _, outcome| {
        if attached_pid == pid {
            done = match outcome {
                Outcome::Attached(attached) => {
                    if let Some(why) = &attached.without_children {
                        say(
                            Priority::Notice,
                            format_args!("process {pid}: the programs that it executes will not be served: {why}"),
                        );
                    }
                    attached.rescued.iter().for_each(|rescued| log_rescued(pid, rescued));
                    Ok(true)
                }
                Outcome::Refused(refusal) => failed(&refusal),
                Outcome::NoPage(_) if !exists(pid) => Ok(false),
                // The daemon decides about it anew.
                Outcome::Forbidden(why) if why == OTHER_PROGRAM => Err((why, true)),
                Outcome::Forbidden(why) | Outcome::NoPage(why) => Err((why, false)),
            };
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
    say(
        Priority::Warning,
        format_args!("process {} stays on the kernel's path: {stands}", stands.pid),
    );
    // SAFETY: _exit ends the process at once, without waiting for the thread that waits in the kernel.
    unsafe { libc::_exit(1) }
}

fn is_no_news(refusal: &Refusal) -> bool {
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
