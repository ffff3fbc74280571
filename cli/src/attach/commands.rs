//! Attaching and detaching.

use std::fmt::Display;
use std::io::IsTerminal;
use std::path::Path;

use fastpath_daemon::Service;
use fastpath_daemon::record::{Record, Requester, Target, What};
use fastpath_helper::attach::{Outcome, Wanted, attach_all, record_of_stop};
use fastpath_helper::policy::DaemonsPolicy;
use fastpath_helper::process::Surroundings;
use fastpath_inject::attach::{self, Attached, Refusal};
use fastpath_inject::{Error, Rescued};
use fastpath_measure::{Clocks, Comparison};
use fastpath_os::printable;
use fastpath_publish::evidence::{self, Trust};

use crate::args;
use crate::exit;
use crate::limits::{FileSize, LARGEST_FILE};
use crate::output::{error_output, note, warn};
use crate::processes::Named;
use crate::run::selection::select;

use crate::{groups, processes, rescue_hint};

/// The counter is not trusted, or no page is available.
const NO_PAGE: i32 = 16;
/// A thread cannot be stopped for now.
const DOES_NOT_STOP: i32 = 14;
/// Another tool has changed the code.
const CHANGED_SINCE: i32 = 17;
/// The policy of this host's daemon says never.
const FORBIDDEN: i32 = 18;

/// Attaches processes; returns the exit status of the first that was refused.
pub fn attach(options: &args::Attach) -> i32 {
    let surroundings = Surroundings::note();
    let _files = match FileSize::at_least(LARGEST_FILE) {
        Ok(files) => files,
        Err(why) => {
            note(format_args!("{why}; nothing was attached"));
            return NO_PAGE;
        }
    };
    // Before anything is started for these processes.
    let selected = Selected::from_options(&options.processes);
    let (pids, mut status) = selected.each(What::Attach, attach::may_attach);
    if pids.is_empty() {
        return status;
    }
    let trust = Trust::from_option(options.trust_counter);
    if let Err(why) = evidence::is_promising(trust) {
        note(why.refusal());
        return NO_PAGE;
    }
    let comparison = (trust == Trust::Invariant).then(Comparison::begin_quickly);
    let clocks = match select(options.clocks.as_ref(), options.rescue, false) {
        Ok(clocks) => clocks,
        Err(why) => {
            note(format_args!("{why}; nothing was attached"));
            return status;
        }
    };
    if let Some(why) = comparison.and_then(Comparison::refusal) {
        note(format_args!("{why}; nothing was attached"));
        return NO_PAGE;
    }
    let wanted = Wanted {
        service: Service {
            clocks: Clocks::Set(clocks),
            children: options.children,
            rescue: options.rescue,
            trust,
        },
        policy: policy(options.children),
        selected: None,
        may_publish: true,
    };
    attach_all(&pids, &wanted, &surroundings, give_up, |pid, is_named, outcome| {
        outcome.record(pid, Requester::this_process()).write();
        let one = match outcome {
            Outcome::Attached(attached) => {
                note_change(&options.quiet, changed(pid, "attached"));
                report(pid, &attached, options.verbose);
                if attached.is_changed_by_others {
                    CHANGED_SINCE
                } else {
                    0
                }
            }
            Outcome::Refused(refusal) => selected.report(pid, &refusal),
            // The user did not name it.
            Outcome::Forbidden(_) if !is_named => 0,
            Outcome::Forbidden(why) => {
                note(format_args!("{pid}: {why}"));
                FORBIDDEN
            }
            Outcome::NoPage(why) => {
                note(why);
                NO_PAGE
            }
        };
        // A descendant may have ended, or be traced by another process.
        if is_named {
            status = first(status, one);
        }
    });
    status
}

/// Reports an attach as far as the user must know, or wants to.
fn report(pid: i32, attached: &Attached, verbose: bool) {
    for left in &attached.left_alone {
        warn(format_args!(
            "{pid}: {} stays on the kernel's path: {}",
            left.function, left.why
        ));
    }
    if let Some(why) = &attached.without_children {
        warn(format_args!(
            "{pid}: the programs that it executes will not be served: {why}"
        ));
    }
    match &attached.rescued {
        Some(rescued) => report_rescued(pid, rescued, verbose),
        None => rescue_hint::give(Path::new(&format!("/proc/{pid}/exe")), &pid),
    }
    if verbose {
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let attach::Pauses {
            times,
            together,
            longest,
        } = attached.pauses;
        let each = match times {
            1 => String::new(),
            _ => format!(", {times} times, {:.3} ms at most", ms(longest)),
        };
        note(format_args!(
            "{pid}: {} thread{} {} stopped for {:.3} ms{each}",
            attached.threads,
            if attached.threads == 1 { "" } else { "s" },
            if attached.threads == 1 { "was" } else { "were" },
            ms(together)
        ));
    }
}

/// Returns the policy of the host's daemon, if one runs. Descendants are not asked for one by one: if they are served by
/// no policy for the lack of a daemon, that is reported.
fn policy(children: bool) -> Option<DaemonsPolicy> {
    DaemonsPolicy::find().unwrap_or_else(|failure| {
        if children {
            warn(failure);
        }
        None
    })
}

/// Reports what became of a process's own system calls for time.
fn report_rescued(pid: i32, rescued: &Rescued, verbose: bool) {
    if let Some(why) = &rescued.refused {
        warn(format_args!(
            "{pid}: its own system calls for time are not rescued: {why}"
        ));
        return;
    }
    if rescued.sites == 0 {
        let found = match rescued.left_alone.len() {
            0 => "none was found in its code".to_owned(),
            1 => "the only one found cannot be redirected safely (-v says why)".to_owned(),
            count => format!("none of the {count} found can be redirected safely (-v says why)"),
        };
        warn(format_args!(
            "{pid}: none of its own system calls for time is rescued: {found}"
        ));
    }
    if verbose {
        note(format_args!(
            "{pid}: {} of its own system calls for time are rescued, {} are not",
            rescued.sites,
            rescued.left_alone.len()
        ));
        for why in &rescued.withheld {
            note(format_args!("{pid}: {why}"));
        }
        for left in &rescued.left_alone {
            note(format_args!(
                "{pid}: {} at {:#x}: {}",
                left.file, left.address, left.why
            ));
        }
    }
}

/// Detaches processes; returns the exit status of the first that was refused.
pub fn detach(options: &args::Detach) -> i32 {
    let _files = match FileSize::at_least(LARGEST_FILE) {
        Ok(files) => files,
        Err(why) => {
            note(format_args!("{why}; nothing was detached"));
            return exit::FAILED;
        }
    };
    let selected = if options.all {
        if let Err(why) = processes::listable() {
            note(why);
            return exit::CANNOT_TELL;
        }
        let all = Selected::found(super::served::attached());
        if all.pids.is_empty() {
            note_change(&options.quiet, "no process is attached");
            return 0;
        }
        if !options.yes && !is_confirmed(all.pids.len()) {
            note("nothing was detached");
            return exit::FAILED;
        }
        all
    } else {
        Selected::from_options(&options.processes)
    };
    if let Some(why) = unrecordable() {
        note(format_args!("{why}; nothing was detached"));
        return FORBIDDEN;
    }
    let (_, status) = selected.each(What::Detach, |pid| {
        let detached = attach::detach(pid, give_up_detach)?;
        Record {
            sites: Some(detached.sites),
            stopped_us: Some(detached.pauses.together.as_micros() as u64),
            ..Record::done(What::Detach, Requester::this_process(), Target::read(pid))
        }
        .write();
        note_change(&options.quiet, changed(pid, "detached"));
        if let Some(refusal) = detached.region_stays_for {
            let why = match refusal {
                Refusal::InTheWay { tid } => format!("thread {tid} has not left them"),
                other => other.to_string(),
            };
            warn(format_args!(
                "{pid}: its clocks are the kernel's again; 36 KiB stay mapped there: {why}"
            ));
        }
        Ok(())
    });
    status
}

/// Returns why nothing may be detached now: the policy of the host's daemon requires a record, and it cannot be written. A
/// policy that this user cannot read does not apply here: a process can be taken off the fast path without it.
fn unrecordable() -> Option<String> {
    let file = DaemonsPolicy::find().ok().flatten()?;
    file.unrecordable(&file.read().ok()?)
}

/// Reports a change, unless that is not wanted.
fn note_change(quiet: &args::Quiet, change: impl Display) {
    if !quiet.quiet {
        note(change);
    }
}

/// Returns what was changed: `7826: attached (python3)`.
fn changed(pid: i32, how: &str) -> String {
    match fastpath_os::comm(pid) {
        Ok(name) => format!("{pid}: {how} ({})", printable(&name)),
        Err(_) => format!("{pid}: {how}"),
    }
}

/// Asks whether this many processes are to be detached, if root types the command: they belong to all users.
fn is_confirmed(processes: usize) -> bool {
    if !nix::unistd::geteuid().is_root() || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return true;
    }
    let count = if processes == 1 {
        "1 process is".to_owned()
    } else {
        format!("{processes} processes are")
    };
    let mut answer = String::new();
    let asked = error_output(&format!("fastpath: {count} attached. Detach all? [y/N] "));
    let answered = asked.and_then(|()| std::io::stdin().read_line(&mut answer));
    answered.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// The processes that a command is for.
struct Selected {
    /// Each once.
    pids: Vec<i32>,
    /// Those that the user named by number.
    numbers: Vec<i32>,
    /// Exit status if no process has a name, else 0.
    status: i32,
}

impl Selected {
    /// Returns processes that were found, not named by number.
    fn found(pids: Vec<i32>) -> Selected {
        Selected {
            pids,
            numbers: Vec::new(),
            status: 0,
        }
    }

    fn from_options(options: &args::Processes) -> Selected {
        let mut selected = Selected::found(Vec::new());
        for name in &options.named {
            if let Named::Pid(pid) = name {
                selected.numbers.push(*pid);
            }
            selected.add(name.all(), || processes::none_is_called(name));
        }
        if let Some(group) = &options.cgroup {
            selected.add(groups::of_cgroup(group), || {
                format!("no process is in the control group {}", group.display())
            });
        }
        if let Some(unit) = &options.unit {
            selected.add(groups::of_unit(unit), || format!("no process is of the unit {unit}"));
        }
        selected
    }

    fn add(&mut self, pids: Vec<i32>, missing: impl Fn() -> String) {
        if pids.is_empty() {
            note(processes::listable().err().unwrap_or_else(&missing));
            self.status = processes::status_of_none();
        }
        for pid in pids {
            if !self.pids.contains(&pid) {
                self.pids.push(pid);
            }
        }
    }

    /// Returns the processes for which `work` succeeded, and the exit status.
    fn each(&self, request: What, mut work: impl FnMut(i32) -> attach::Answer<()>) -> (Vec<i32>, i32) {
        let mut status = self.status;
        let mut done = Vec::new();
        for pid in self.pids.iter().copied() {
            match work(pid) {
                Ok(()) => done.push(pid),
                Err(refusal) => {
                    let one = self.report(pid, &refusal);
                    if one != 0 {
                        record_refusal(request, pid, &refusal);
                    }
                    status = first(status, one);
                }
            }
        }
        if done.is_empty() && status == 0 && !self.pids.is_empty() {
            note("the processes have ended meanwhile");
            status = exit::NO_SUCH_PROCESS;
        }
        (done, status)
    }

    /// Reports a refusal, and returns its exit status. A process that was found by its name or its parent may end before
    /// its turn, as connections of servers do: that is no failure.
    fn report(&self, pid: i32, refusal: &Refusal) -> i32 {
        let has_ended = matches!(refusal, Refusal::NoSuchProcess { .. } | Refusal::Zombie);
        if has_ended && !self.numbers.contains(&pid) {
            return 0;
        }
        note(format_args!("{pid}: {refusal}"));
        exit_status(refusal)
    }
}

fn record_refusal(request: What, pid: i32, refusal: &Refusal) {
    let by = Requester::this_process();
    Record::refused(request, refusal.word(), &refusal.to_string(), by, Target::read(pid)).write();
}

fn first(status: i32, next: i32) -> i32 {
    if status == 0 { next } else { status }
}

fn give_up(why: &attach::StoppedTooLong) -> ! {
    end(What::Attach, why)
}

fn give_up_detach(why: &attach::StoppedTooLong) -> ! {
    end(What::Detach, why)
}

/// Ends this process, so that the kernel detaches all its tracees.
fn end(request: What, why: &attach::StoppedTooLong) -> ! {
    note(format_args!(
        "{}: {why}; the remaining requests were not carried out",
        why.pid
    ));
    record_of_stop(request, why, Requester::this_process()).write();
    // SAFETY: _exit ends the process at once, without waiting for the thread that waits in the kernel.
    unsafe { libc::_exit(DOES_NOT_STOP) }
}

/// Returns the exit status by which scripts distinguish refusals; `--help` lists them.
fn exit_status(refusal: &Refusal) -> i32 {
    match refusal {
        Refusal::Failed(Error::PlaceTaken) => DOES_NOT_STOP,
        Refusal::Failed(_) | Refusal::FirstThreadEnded => exit::FAILED,
        Refusal::NoSuchProcess { .. } => exit::NO_SUCH_PROCESS,
        Refusal::KernelThread => 4,
        Refusal::Zombie => 5,
        Refusal::Traced { .. } => 6,
        Refusal::NotPermitted { .. } => 7,
        Refusal::AttachedAlready { .. } | Refusal::UnderRun | Refusal::Publisher => 8,
        Refusal::OtherPrograms { .. } => 9,
        Refusal::NoVdso { .. } => 10,
        Refusal::Seccomp { .. } => 11,
        Refusal::Sealed { .. } => 12,
        Refusal::CounterForbidden => 13,
        Refusal::DoesNotStop { .. }
        | Refusal::StoppedTooLong { .. }
        | Refusal::KeepsExecuting
        | Refusal::Frozen
        | Refusal::InTheWay { .. }
        | Refusal::KernelBehind { .. }
        | Refusal::StackNotReadable { .. }
        | Refusal::Shares { .. } => DOES_NOT_STOP,
        Refusal::NotAttached => 15,
        Refusal::Forbidden { .. } => FORBIDDEN,
        Refusal::ChangedSince { .. } => CHANGED_SINCE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_found_by_name_and_has_ended_is_no_failure() {
        let ended = |gone: &'static [i32]| {
            move |pid: i32| match gone.contains(&pid) {
                true => Err(Refusal::NoSuchProcess { hint: String::new() }),
                false => Ok(()),
            }
        };
        let mut selected = Selected::found(vec![1, 2, 3]);
        assert_eq!(selected.each(What::Attach, ended(&[2])), (vec![1, 3], 0));
        assert_eq!(
            selected.each(What::Attach, ended(&[1, 2, 3])),
            (vec![], exit::NO_SUCH_PROCESS)
        );
        selected.numbers.push(2);
        assert_eq!(
            selected.each(What::Attach, ended(&[2])),
            (vec![1, 3], exit::NO_SUCH_PROCESS)
        );
    }
}
