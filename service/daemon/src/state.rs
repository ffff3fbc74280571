//! State from which requests are answered.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fastpath_inject::target;
use fastpath_measure::{Assume, measure_for_auto};
use fastpath_page::ClockSet;
use fastpath_protocol::{Code, DaemonStatus, RequestRefusal};

use crate::DaemonOptions;
use crate::account::Account;
use crate::log::{Priority, say};
use crate::peer::{Peer, Process};
use crate::policy::{Attached, Policy, ProcessFacts, Watcher};
use crate::record::{self, Record, Target, What};
use crate::record_limit;
use crate::registry::Registry;

/// Time for which a measurement of the kernel's clocks holds: a clocksource rarely changes.
const MEASURE_EVERY: Duration = Duration::from_secs(60);

/// State from which requests are answered.
pub(crate) struct DaemonState {
    /// All pages.
    pub registry: Registry,
    begun: Instant,
    slow: ClockSet,
    /// When the slow clocks were measured, unless the options name them.
    measured: Option<Instant>,
    policy_file: PathBuf,
    /// Reason why the present policy file is not in force.
    policy_error: Option<String>,
    /// The policy.
    watcher: Watcher,
    /// Number of refused requests so far.
    pub refused: u64,
}

impl DaemonState {
    /// Starts with a policy, and measures the kernel's clocks.
    pub(crate) fn new(options: &DaemonOptions, policy: Policy, registry: Registry) -> io::Result<DaemonState> {
        let begun = Instant::now();
        let slow = options.clocks.unwrap_or_else(measured_slow);
        Ok(DaemonState {
            registry,
            begun,
            slow,
            measured: options.clocks.is_none().then(Instant::now),
            policy_file: options.policy.clone(),
            policy_error: None,
            watcher: Watcher::start(policy, slow, options)?,
            refused: 0,
        })
    }

    /// Puts the answer to a client's request on record. `process` is the one that the request is about, if that is known.
    pub(crate) fn record(
        &self,
        request: What,
        peer: Peer,
        process: Option<Process>,
        answer: Result<(), &RequestRefusal>,
    ) {
        let what = if answer.is_ok() { request } else { What::Refuse };
        let word = answer.map_or_else(record::word_for, |()| record::DONE);
        record_limit::put(peer.account, what, word, || {
            let target = process.map_or_else(Target::default, |process| Target::read(process.pid));
            match answer {
                Ok(()) => Record::done(request, peer.by(), target),
                Err(refusal) => Record::refused(request, word, &refusal.sentence, peer.by(), target),
            }
        });
    }

    /// Refuses a process for which the policy says never, and each one if a record is required and cannot be written.
    pub(crate) fn policy_allows(&self, process: Process) -> Result<(), RequestRefusal> {
        self.policy_allows_unless(process, Policy::excludes)
    }

    /// The same for a process that asks for itself.
    pub(crate) fn policy_allows_itself(&self, process: Process) -> Result<(), RequestRefusal> {
        self.policy_allows_unless(process, Policy::excludes_itself)
    }

    fn policy_allows_unless(
        &self,
        process: Process,
        is_excluded: fn(&Policy, &ProcessFacts) -> bool,
    ) -> Result<(), RequestRefusal> {
        let policy = self.watcher.policy();
        if let Some(why) = policy.unrecordable() {
            let why = format!("{}: {why}", self.policy_file.display());
            return Err(RequestRefusal::new(Code::Policy, why));
        }
        if policy.rules() > 0 && is_excluded(&policy, &ProcessFacts::read(process)) {
            let why = format!("{} says never for process {}", self.policy_file.display(), process.pid);
            return Err(RequestRefusal::new(Code::Policy, why));
        }
        Ok(())
    }

    /// Returns why the daemon attaches a process now, if a client asks for a page for it that is the daemon's child.
    pub(crate) fn attaches(&self, peer: Peer, process: Process) -> Option<Attached> {
        let is_ours = peer.uid == nix::unistd::geteuid().as_raw();
        is_ours.then(|| self.watcher.attaches(process.pid)).flatten()
    }

    /// Queues a process to be attached with its descendants.
    pub(crate) fn attach(
        &self,
        peer: Peer,
        process: Process,
        account: Account,
        clocks: ClockSet,
    ) -> Result<(), RequestRefusal> {
        self.watcher.attach(process, account, clocks, peer.by())
    }

    /// Reads the policy again. A policy with a mistake changes nothing.
    pub(crate) fn reload(&mut self) {
        match Policy::read(&self.policy_file) {
            Ok(policy) => {
                let policy = policy.unwrap_or_default();
                let rules = policy.rules();
                let s = if rules == 1 { "" } else { "s" };
                say(Priority::Info, format_args!("the policy has {rules} rule{s} now"));
                let is_forbidden = |process| rules > 0 && policy.excludes(&ProcessFacts::read(process));
                for pid in self.registry.forbid(is_forbidden) {
                    say(
                        Priority::Warning,
                        format_args!(
                            "process {pid}, for which the policy says never now, stays served: `fastpath detach {pid}`"
                        ),
                    );
                }
                self.watcher.replace(policy);
                self.policy_error = None;
            }
            Err(why) => {
                say(Priority::Warning, format_args!("{why}; the policy stays as it was"));
                self.policy_error = Some(why);
            }
        }
    }

    /// Returns the clocks for clients that leave the choice to the daemon.
    pub(crate) fn slow_clocks(&self) -> ClockSet {
        self.slow
    }

    /// Returns the status for a client: up to `most` pages, from after the one with the id `after`.
    pub(crate) fn status(&self, peer: Peer, after: u64, most: usize) -> DaemonStatus {
        let (pages, next) = self.registry.shown_to(peer, after, most);
        let policy = self.policy_file.display().to_string();
        DaemonStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.begun.elapsed().as_secs(),
            slow_clocks: self.slow_clocks().iter().collect(),
            rules: self.watcher.policy().rules(),
            policy: Some(cut_short(&policy, 4096)),
            policy_error: self.policy_error.as_deref().map(|why| cut_short(why, 1024)),
            notices: self.watcher.notices().map(str::to_owned),
            leaves_filtered: target::why_filters_stay(),
            pages,
            pages_in_all: self.registry.count(),
            next,
            refused: self.refused,
            interventions: record::counts(),
        }
    }

    /// Measures the kernel's clocks again from time to time.
    pub(crate) fn measure_if_due(&mut self, now: Instant) {
        if self
            .measured
            .is_some_and(|measured| now.duration_since(measured) >= MEASURE_EVERY)
        {
            self.slow = measured_slow();
            self.watcher.choose(self.slow);
            self.measured = Some(Instant::now());
        }
    }
}

/// Returns the clocks that are slow by the kernel's path now.
fn measured_slow() -> ClockSet {
    let slow = measure_for_auto(Assume::SamePath)
        .into_iter()
        .filter(|path| path.is_slow);
    slow.fold(ClockSet::NONE, |set, path| {
        set.union(ClockSet::of_id(path.clock.id() as u32))
    })
}

/// Returns the start of a text, at most `bytes` long.
fn cut_short(text: &str, bytes: usize) -> String {
    let end = (0..=bytes.min(text.len())).rfind(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].to_owned()
}
